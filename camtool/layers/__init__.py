"""Choose the layer to explain and find the layout of its output."""
