"""Geometry of a model's input: how a photo became the input, and the way back for heatmaps and boxes."""
