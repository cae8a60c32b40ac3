"""Restore what an explanation changes: training flags, buffers, random generators and thread settings."""
