"""The page in the browser: explain images without code. It needs the extra ``camtool[app]``."""
