"""The cues of an audit keep their keys, by which numbers are remembered, when they are stored."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch

from camtool.evaluation.audit.cues.mark import MarkCandidate
from camtool.evaluation.audit.cues.patch import PatchCandidate
from camtool.evaluation.audit.cues.place import FrameCandidate, PlaceCandidate, PositionCandidate
from camtool.evaluation.audit.cues.property import ColorCandidate, PropertyCandidate
from camtool.evaluation.audit.cues.sameness import UsualImage
from camtool.evaluation.audit.cues.stored import AuditSettings, encode_cues, read_cues

GENERATOR = torch.Generator().manual_seed(0)
TEMPLATE = torch.rand(2, 3, 3, generator=GENERATOR)
USUAL = UsualImage(torch.rand(3, 8, 8, generator=GENERATOR), 0.03, torch.eye(8) > 0)
PLACE = PlaceCandidate(1, "the center", 4.5, np.eye(10, dtype=bool))
CUES = [
    PLACE,
    FrameCandidate(0, "a frame", 3.0, np.array([1, 0, 2, 0])),
    PositionCandidate(2, "the object in the center", 3.0, np.array([0.1, 1 / 3]), np.full((4, 2), 1 / 7), USUAL),
    MarkCandidate(1, "the same pixels in the center", 2.0, np.eye(10, dtype=bool), USUAL, torch.eye(8) > 0),
    PatchCandidate(1, "a patch", 2.0, "layer1", TEMPLATE, 16, "the center"),
    PropertyCandidate(1, "brighter (brightness)", 2.0, 0, 1, 120.5, 1 / 3, PLACE),
    ColorCandidate(0, "red parts", 2.0, 3, 0.04),
]


@pytest.mark.parametrize("cue", CUES, ids=lambda cue: cue.kind)
def test_a_stored_cue_is_the_same(tmp_path, cue):
    settings = AuditSettings(19, "faithcam", 3, 32, "eager", "patient")
    (tmp_path / "cues.json").write_text(encode_cues(settings, {"its key": cue}))
    read, cues = read_cues(tmp_path)
    assert read == settings
    again = cues["its key"]
    assert (type(again), again.key) == (type(cue), cue.key)
    assert_same(again, cue)


def assert_same(value, expected):
    assert type(value) is type(expected)
    if is_dataclass(expected):
        for each in fields(expected):
            assert_same(getattr(value, each.name), getattr(expected, each.name))
    else:
        assert np.array_equal(value, expected)
        assert getattr(value, "dtype", None) == getattr(expected, "dtype", None)
