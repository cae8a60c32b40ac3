"""Register hooks and run models under them. No other package registers hooks.

``observation.run_with_hooks`` runs a model once and returns the outputs of chosen layers, joined to its output by a
graph of the tail alone. Every explanation uses it. ``observation.resume`` is its counterpart: it runs only the tail,
with other activations. ``tracing.trace`` lists the calls of all modules. ``attention.capture`` returns the attention
matrices, or passes them one by one to a function.

Three rules hold for all of them. A hook acts only in the thread that registered it. The tensor that is kept is not the
one that the model continues with, so an in-place operation after the layer cannot change it. Every hook is removed in
the end, wherever an error or an interrupt arrives (:class:`camtool.hooks.state.cleanup.Cleanup`).
"""
