"""Comparison of two models: what does a retrained, pruned or quantized model look at differently?"""

from camtool.evaluation.diff.result import CamDiff, ImageChange, MovedHeat
from camtool.evaluation.diff.running import diff

__all__ = ["CamDiff", "ImageChange", "MovedHeat", "diff"]
