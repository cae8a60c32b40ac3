"""Models of every kind under short names, for a page in a test."""

from __future__ import annotations

from torchvision.transforms import Compose, Resize, ToTensor

from camtool.demo.captioner import load_captioner
from camtool.models import Loaded
from tests.app.panels.models import box_model, color_segmenter
from tests.helpers.two_towers import build_hugging_face, encode_texts

KINDS = ("boxes", "empty", "segments", "texts", "answer")
"""Names for :func:`build_for_page`, beside those that camtool knows."""

STAR, ARROW = (48.0, 325.0, 265.0, 525.0), (335.0, 120.0, 545.0, 290.0)
"""Boxes of the objects in the first scene of the page, which has 640 x 640 pixels."""


def build_for_page(name: str) -> Loaded:
    """Return a small model of a kind."""
    if name == "boxes":
        return box_model([(*STAR, 1, 0.91), (*ARROW, 2, 0.64), (0.0, 0.0, 640.0, 640.0, 2, 0.12)])
    if name == "empty":
        return box_model([])
    if name == "segments":
        return color_segmenter(Compose([Resize((96, 96)), ToTensor()]))
    if name == "texts":
        return Loaded(build_hugging_face(), Compose([Resize((24, 24)), ToTensor()]), text=encode_texts)
    return Loaded(load_captioner()[0])
