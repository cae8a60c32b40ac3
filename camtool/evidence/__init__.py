"""The evidence that methods use: activations, gradients, a linear head, attention, scores of further forward passes."""
