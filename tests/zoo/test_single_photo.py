"""One photo alone has the map that it has in a batch of two."""

from __future__ import annotations

import pytest

import camtool
from tests.zoo.catalogue import BY_MODULE, SMALLEST, Entry, picture

pytest.importorskip("timm", reason="timm is not installed: pip install 'camtool[test]'")

METHODS = ["gradcam", "inputxgradient", "faithcam", "fullgrad"]

QUICK = [
    Entry("xcit_nano_12_p16_224", 64, {"depth": 2}),
    Entry("levit_128s", 224),
    Entry("resnet10t", 64),
    Entry("test_vit", 160),
    Entry("test_efficientnet", 64),
]
"""Norms between tokens and images, and a few small networks without."""

_ENTRIES = {entry.name: entry for entry in [*SMALLEST, *BY_MODULE.values()]}


def hold(entry: Entry) -> None:
    """Check all methods, in double precision, where rounding cannot be mistaken for a difference."""
    model, photos = entry.build().double(), picture(0, entry.size, entry.size, count=2).double()
    for method in METHODS:
        alone, beside = (camtool.explain(model, batch, 1, method=method)[0].raw for batch in (photos[:1], photos))
        peak = float(abs(beside).max())
        assert float(abs(alone - beside).max()) <= 1e-4 * peak, method


@pytest.mark.parametrize("entry", QUICK, ids=str)
def test_small_networks(entry: Entry) -> None:
    hold(entry)


@pytest.mark.nightly
@pytest.mark.parametrize("entry", [*_ENTRIES.values()], ids=str)
def test_all_networks(entry: Entry) -> None:
    hold(entry)
