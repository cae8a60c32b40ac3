"""Record what layers receive, return, and get as gradients, and edit it on the way.

:class:`Recorder` is the ``with`` block, :class:`Record` the result for one layer. Common edits are :func:`scale`,
:func:`clip`, :func:`zero`, :func:`replace` and :func:`add_noise`. Reducers of many forward passes are :class:`Mean`,
:class:`Max` and :class:`Histogram`.
"""

from camtool.recorder.edits import Edit as Edit
from camtool.recorder.edits import add_noise as add_noise
from camtool.recorder.edits import clip as clip
from camtool.recorder.edits import replace as replace
from camtool.recorder.edits import scale as scale
from camtool.recorder.edits import zero as zero
from camtool.recorder.layer_patterns import LayerSelection as LayerSelection
from camtool.recorder.layer_patterns import select as select
from camtool.recorder.recorder import Recorder as Recorder
from camtool.recorder.recorder import SeveralCallsWarning as SeveralCallsWarning
from camtool.recorder.records import Record as Record
from camtool.recorder.reducers import Fold as Fold
from camtool.recorder.reducers import Histogram as Histogram
from camtool.recorder.reducers import Max as Max
from camtool.recorder.reducers import Mean as Mean
from camtool.recorder.reducers import Reducer as Reducer
