"""Fail unless one package brings OpenCV: of two, whichever was installed last overwrites files of the other."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions

found = sorted(set(packages_distributions().get("cv2", [])))
if len(found) != 1:
    sys.exit(f"One package must bring OpenCV, and here are {len(found)}: {', '.join(found)}.")
