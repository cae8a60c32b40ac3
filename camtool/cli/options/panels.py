"""Headings in the help above the options of one subject."""

from __future__ import annotations

__all__ = ["MAP_PANEL", "MODEL_PANEL", "OUTPUT_PANEL", "PHOTOS_PANEL"]

MODEL_PANEL = "Model"
MAP_PANEL = "Map"
OUTPUT_PANEL = "Output"
PHOTOS_PANEL = "Photos"
