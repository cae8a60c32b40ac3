"""The methods, one file per family."""
