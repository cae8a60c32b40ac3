"""Register hooks and run models under them. No other package registers hooks.

:func:`run_with_hooks` runs a model once and returns the outputs of chosen layers, joined to its output by a graph of
the tail alone. Every explanation uses it. :func:`resume` is its counterpart: it runs only the tail, with other
activations. :func:`trace` lists the calls of all modules. :func:`capture_attention` returns the attention matrices,
and :func:`visit_attention` passes them one by one to a function.

Three rules hold for all of them. A hook acts only in the thread that registered it. The tensor that is kept is not the
one that the model continues with, so an in-place operation after the layer cannot change it. Every hook is removed in
the end, wherever an error or an interrupt arrives (:class:`camtool.hooks.state.cleanup.Cleanup`).
"""

from camtool.hooks.attention.capture import AttentionBlock as AttentionBlock
from camtool.hooks.attention.capture import AttentionCall as AttentionCall
from camtool.hooks.attention.capture import CapturedAttention as CapturedAttention
from camtool.hooks.attention.capture import capture_attention as capture_attention
from camtool.hooks.attention.capture import visit_attention as visit_attention
from camtool.hooks.model_passes import run_model as run_model
from camtool.hooks.observation import Observation as Observation
from camtool.hooks.observation import get_call as get_call
from camtool.hooks.observation import resume as resume
from camtool.hooks.observation import run_with_hooks as run_with_hooks
from camtool.hooks.registration import add_forward_hook as add_forward_hook
from camtool.hooks.registration import add_forward_pre_hook as add_forward_pre_hook
from camtool.hooks.registration import add_gradient_hook as add_gradient_hook
from camtool.hooks.registration import add_node_hook as add_node_hook
from camtool.hooks.structures.modules import describe_unhookable as describe_unhookable
from camtool.hooks.structures.modules import lacks_gradients as lacks_gradients
from camtool.hooks.tracing import TracedCall as TracedCall
from camtool.hooks.tracing import add_module_hooks as add_module_hooks
from camtool.hooks.tracing import trace as trace
