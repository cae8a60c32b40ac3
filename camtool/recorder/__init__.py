"""Record what layers receive, return, and get as gradients, and edit it on the way.

:class:`Recorder` is the ``with`` block, :class:`Record` the result for one layer. Common edits are :func:`scale`,
:func:`clip`, :func:`zero`, :func:`replace` and :func:`add_noise`. Reducers of many forward passes are :class:`Mean`,
:class:`Max` and :class:`Histogram`.
"""

from camtool.recorder.edits import Edit, add_noise, clip, replace, scale, zero
from camtool.recorder.recorder import Recorder, SeveralCallsWarning
from camtool.recorder.records import Record
from camtool.recorder.reducers import Fold, Histogram, Max, Mean, Reducer
from camtool.recorder.selection import LayerSelection, select

__all__ = [
    "Edit",
    "Fold",
    "Histogram",
    "LayerSelection",
    "Max",
    "Mean",
    "Record",
    "Recorder",
    "Reducer",
    "SeveralCallsWarning",
    "add_noise",
    "clip",
    "replace",
    "scale",
    "select",
    "zero",
]
