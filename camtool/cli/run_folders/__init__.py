"""Commands on folders that ``camtool run`` wrote."""
