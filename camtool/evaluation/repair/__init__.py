"""Repair: from the findings of an audit to a model that depends on them less, measured on other images."""

from camtool.evaluation.repair.result import CueRepair, Repair
from camtool.evaluation.repair.running import repair

__all__ = ["CueRepair", "Repair", "repair"]
