"""Register hooks and run models under them. No other package registers hooks.

:func:`observe` runs a model once and returns the outputs of chosen layers, joined to the model's output by a graph of
the tail alone. Every explanation uses it. :func:`resume` is its counterpart: it runs only the tail, with other
activations. :func:`trace` lists the calls of all modules. :func:`capture_attention` returns the attention matrices,
and :func:`visit_attention` passes them one by one to a function.

Three rules hold for all of them. A hook acts only in the thread that registered it. The tensor that :func:`observe`
keeps is not the one that the model continues with, so an in-place operation after the layer cannot change it. Every
hook is removed in the end, wherever an error or an interrupt arrives (:class:`camtool.hooks.state.cleanup.Cleanup`).
"""

from camtool.hooks.attention.capture import (
    AttentionBlock,
    AttentionCall,
    CapturedAttention,
    capture_attention,
    visit_attention,
)
from camtool.hooks.model_call import run_model
from camtool.hooks.observation import Observation, get_call, observe, resume
from camtool.hooks.registration import add_forward_hook, add_forward_pre_hook, add_gradient_hook, add_node_hook
from camtool.hooks.structures.modules import describe_unhookable, lacks_gradients
from camtool.hooks.tracing import TracedCall, add_module_hooks, trace

__all__ = [
    "AttentionBlock",
    "AttentionCall",
    "CapturedAttention",
    "Observation",
    "TracedCall",
    "add_forward_hook",
    "add_forward_pre_hook",
    "add_gradient_hook",
    "add_module_hooks",
    "add_node_hook",
    "capture_attention",
    "describe_unhookable",
    "get_call",
    "lacks_gradients",
    "observe",
    "resume",
    "run_model",
    "trace",
    "visit_attention",
]
