"""Wrappers of models: the model inside, and the prefixes that they leave in the names of its weights.

To see through a wrapper of another library, add a row to the table.
"""

# Full name of a wrapper class → its attribute that holds the model inside. These wrappers compute what the model
# computes: on several devices, in a compiled form, or with averaged weights. Names instead of classes, so that nothing
# is imported for them.
INNER_MODELS = {
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    # What torch.compile returns.
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    # YOLO and RTDETR of Ultralytics: what they add is for training and for showing results.
    "ultralytics.engine.model.Model": "model",
    # Averaged weights: swa_utils.AveragedModel holds a copy of the model.
    "torch.optim.swa_utils.AveragedModel": "module",
    # Models and layers of Keras, in no attribute: their layers are modules that can be hooked in another model.
    "keras.src.layers.layer.Layer": "",
}

# What stands before the names in a file of weights of a wrapped model. Lightning's prefix is "model.", too.
NAME_PREFIXES = {f"{attribute}." for attribute in INNER_MODELS.values() if attribute}
