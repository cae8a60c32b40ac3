"""Factorize activations of several images into concepts that they share, and draw them."""
