"""Figures compared with reference images.

``python -m tests.figures.test_references`` draws the references in ``tests/figures/expected`` again. Look at them
before you commit them.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from camtool import figures
from tests.figures.drawing_helpers import build_figures, make_explanation, to_png

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")

REFERENCES = Path(__file__).parent / "expected"


KEPT = ("gallery", "comparison", "methods", "feature maps", "lines", "kernels in a table")


def get_reference(kind: str) -> Path:
    return REFERENCES / f"{kind.replace(' ', '-')}.png"


def downscale(data: bytes) -> np.ndarray:
    """Return the image at a quarter of its size: letters may be placed slightly differently on other systems."""
    with Image.open(BytesIO(data)) as image:
        small = image.convert("RGB").resize((image.width // 4, image.height // 4), Image.Resampling.BOX)
    return np.asarray(small, np.float64)


def compare_images(one: bytes, other: bytes) -> float:
    seen, known = downscale(one), downscale(other)
    return float(np.abs(seen - known).mean()) if seen.shape == known.shape else np.inf


@pytest.mark.parametrize("kind", KEPT)
def test_figures_look_like_their_references(kind):
    if matplotlib.rcParams["font.family"] != ["sans-serif"]:
        pytest.skip("another font")
    if tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 11):
        pytest.skip("matplotlib before 3.11 places letters differently")
    assert compare_images(to_png(build_figures()[kind]()), get_reference(kind).read_bytes()) < 1.5


def test_comparison_with_references_detects_other_colors_and_missing_images():
    known = to_png(figures.gallery([make_explanation()] * 3, width=3.25))
    assert compare_images(to_png(figures.gallery([make_explanation()] * 3, width=3.25, colormap="bone")), known) > 1.5
    assert (
        compare_images(to_png(figures.gallery([make_explanation()] * 3, width=3.25, titles=["", "", ""])), known) > 1.5
    )
    assert compare_images(to_png(figures.gallery([make_explanation()] * 2, width=3.25)), known) > 1.5


if __name__ == "__main__":
    REFERENCES.mkdir(exist_ok=True)
    figures.kernels(nn.Conv2d(1, 1, 1))
    for kept in KEPT:
        get_reference(kept).write_bytes(to_png(build_figures()[kept]()))
