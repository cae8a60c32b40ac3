"""The recorder: what layers receive, return, and get as gradients, and edits of all that on the way.

:class:`Recorder` is the ``with`` block, :class:`Record` what it shows of one layer. What can be done on the way is
:func:`scale`, :func:`clip`, :func:`zero`, :func:`replace` and :func:`add_noise`; what can be kept of a whole loader
:class:`Mean`, :class:`Max` and :class:`Histogram`.
"""

from camtool.recorder.edits import Edit, add_noise, clip, replace, scale, zero
from camtool.recorder.recording import Recorder, SeveralCallsWarning
from camtool.recorder.records import Record
from camtool.recorder.reducers import Fold, Histogram, Max, Mean, Reducer
from camtool.recorder.selecting import Which, select

__all__ = [
    "Edit",
    "Fold",
    "Histogram",
    "Max",
    "Mean",
    "Record",
    "Recorder",
    "Reducer",
    "SeveralCallsWarning",
    "Which",
    "add_noise",
    "clip",
    "replace",
    "scale",
    "select",
    "zero",
]
