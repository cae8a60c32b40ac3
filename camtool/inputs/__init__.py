"""Read images and other inputs, and prepare the tensors that a model receives."""
