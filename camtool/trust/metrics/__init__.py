"""Metrics of maps: small functions from a heatmap, and what is known of the image, to a number. One file per kind."""
