"""Checks of an explanation that take further forward passes: what :meth:`camtool.Explanation.check` runs."""
