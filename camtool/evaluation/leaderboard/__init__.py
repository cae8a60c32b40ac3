"""Leaderboards: methods compared by metrics on the user's own model and images."""

from camtool.evaluation.leaderboard.measurement import evaluate
from camtool.evaluation.leaderboard.table import Evaluation, EvaluationRow, Interval

__all__ = ["Evaluation", "EvaluationRow", "Interval", "evaluate"]
