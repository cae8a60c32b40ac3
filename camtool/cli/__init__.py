"""The command line, one file per command. It is the only package that prints."""
