"""Fixtures of all tests of commands."""

from tests.cli.test_commands import camtool_, explained, on_screen, photos
from tests.cli.test_progress import fast_lines, told_estimates

__all__ = ["camtool_", "explained", "fast_lines", "on_screen", "photos", "told_estimates"]
