"""Leaderboards: methods compared by metrics on the user's own model and images."""

from camtool.evaluation.leaderboard.evaluation import Evaluation, EvaluationRow, Interval
from camtool.evaluation.leaderboard.measurement import evaluate

__all__ = ["Evaluation", "EvaluationRow", "Interval", "evaluate"]
