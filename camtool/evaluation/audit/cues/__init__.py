"""Kinds of cues that an audit looks for, one file each: how an image has one, and looks without it and with it."""
