"""Walk nested structures of tensors and trees of modules, and remember answers about a model."""
