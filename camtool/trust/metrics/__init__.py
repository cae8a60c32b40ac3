"""Metrics of maps: small functions that return one number per image, and the registry that a leaderboard reads.

``METRICS`` maps names to :class:`~.metric_registry.Metric` objects: the function, its direction, range, chance level,
source, and what it needs of :class:`~.metric_registry.MetricInputs`. Importing this package registers all of them. One
file per kind::

    from camtool.trust.metrics import METRICS, ClassScore, MetricInputs

    inputs = MetricInputs(images, maps, probability=ClassScore(model, images, classes))
    METRICS["deletion"].compute(inputs)           # one number per image, (N,)
    METRICS["deletion"].compute_chance(inputs)    # what random maps score
"""

from camtool.trust.metrics import complexity as complexity
from camtool.trust.metrics import compound as compound
from camtool.trust.metrics import faithfulness as faithfulness
from camtool.trust.metrics import localization as localization
from camtool.trust.metrics import mosaics as mosaics
from camtool.trust.metrics import sanity as sanity
from camtool.trust.metrics.metric_registry import METRICS as METRICS
from camtool.trust.metrics.metric_registry import Metric as Metric
from camtool.trust.metrics.metric_registry import MetricInputs as MetricInputs
from camtool.trust.metrics.metric_registry import metric as metric
from camtool.trust.metrics.scores import ClassScore as ClassScore
from camtool.trust.metrics.scores import Explain as Explain
from camtool.trust.metrics.scores import ExplainCells as ExplainCells
from camtool.trust.metrics.scores import Score as Score
