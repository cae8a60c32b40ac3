"""Metrics of maps: small functions that return one number per image, and the registry that a leaderboard reads.

``METRICS`` maps names to :class:`~.registry.Metric` objects: the function, its direction, range, chance level, source,
and what it needs of :class:`~.registry.MetricInputs`. Importing this package registers all of them. One file per kind::

    from camtool.trust.metrics import METRICS, ClassScore, MetricInputs

    inputs = MetricInputs(images, maps, probability=ClassScore(model, images, classes))
    METRICS["deletion"].compute(inputs)           # one number per image, (N,)
    METRICS["deletion"].compute_chance(inputs)    # what random maps score
"""

from camtool.trust.metrics import complexity, compound, faithfulness, localization, mosaics, sanity
from camtool.trust.metrics.registry import METRICS, Metric, MetricInputs, metric
from camtool.trust.metrics.scores import ClassScore, Explain, ExplainCells, Score

__all__ = [
    "METRICS",
    "ClassScore",
    "Explain",
    "ExplainCells",
    "Metric",
    "MetricInputs",
    "Score",
    "complexity",
    "compound",
    "faithfulness",
    "localization",
    "metric",
    "mosaics",
    "sanity",
]
