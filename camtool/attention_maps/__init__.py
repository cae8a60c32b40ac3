"""Attention matrices of a transformer, by layer, head and query, as maps on the photo: ``camtool.attention``."""
