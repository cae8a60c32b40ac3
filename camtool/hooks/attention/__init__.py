"""Attention of a forward pass: its matrices, and the branches that it feeds."""
