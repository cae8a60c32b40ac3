"""Photos on their way through the model, in batches: the same here and on the workers of a cluster."""
