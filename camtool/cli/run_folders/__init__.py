"""Commands about the folder of a finished run."""
