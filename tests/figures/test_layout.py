"""Layout of all figures: texts inside, no overlaps, and widths of columns."""

from __future__ import annotations

from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image
from torch import nn

from camtool import figures
from camtool.explaining.explanation import Explanation
from camtool.rendering.views import Signal
from tests.figures.drawing_helpers import (
    KINDS,
    build_figures,
    find_texts,
    get_drawn_axes,
    get_images,
    make_explanation,
    to_png,
)

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_inside_the_figure_and_do_not_overlap(kind):
    figure = build_figures()[kind]()
    canvas = backend_agg.FigureCanvasAgg(figure)
    canvas.draw()
    texts = [(text, text.get_window_extent(canvas.get_renderer())) for text in find_texts(figure)]
    assert texts
    for text, box in texts:
        assert 8 <= text.get_fontsize() <= 9, text
        assert figure.bbox.x0 - 1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1, text
        assert figure.bbox.y0 - 1 <= box.y0 <= box.y1 <= figure.bbox.y1 + 1, text
    shown = [thing for axes in figure.axes for thing in (axes.images or [axes])]
    panels = [(thing, thing.get_window_extent()) for thing in shown]
    for thing, box in panels:
        assert figure.bbox.x0 - 1 <= box.x0 < box.x1 <= figure.bbox.x1 + 1, thing
        assert figure.bbox.y0 - 1 <= box.y0 < box.y1 <= figure.bbox.y1 + 1, thing
        assert box.width > 0.07 * figure.dpi, thing
        if thing in get_images(figure) and thing.get_array().ndim == 3:  # an image, not values
            rows, columns = thing.get_array().shape[:2]
            assert_allclose(box.height / box.width, rows / columns, rtol=0.03)
    for (one, its), (other, others) in combinations([*texts, *panels], 2):
        across = min(its.x1, others.x1) - max(its.x0, others.x0)
        down = min(its.y1, others.y1) - max(its.y0, others.y0)
        assert not (across > 1 and down > 1), (one, other)


@pytest.mark.parametrize("dpi", [72, 150, 300])
def test_text_in_a_file_is_as_wide_as_measured(dpi):
    figure = figures.canvas.create_figure(4, 0.5)
    figures.canvas.write_line(figure, 0, 0.3, "encoder.illimitable_tail", 9)
    with Image.open(BytesIO(to_png(figure, dpi))) as image:
        ink = np.flatnonzero(np.asarray(image.convert("L")).min(0) < 200)
    assert abs((ink.max() + 1) / dpi - figures.canvas.measure_text("encoder.illimitable_tail", 9)) < 0.025


def test_overlays_of_signals_have_the_full_width():
    view = Signal(np.sin(np.arange(40, dtype=np.float32))[None])
    shown = Explanation(np.arange(5, dtype=np.float32), view, "beat", 0, 0.0, 0.5, "gradcam", "0")
    for figure in (figures.gallery(shown), figures.gallery([shown] * 2), figures.comparison([shown])):
        assert [axes.get_position().width * figure.get_figwidth() for axes in get_drawn_axes(figure)] == pytest.approx(
            [6.75] * len(get_drawn_axes(figure))
        )


@pytest.mark.parametrize(("width", "inches"), [("single", 3.25), ("double", 6.75), (5, 5.0)])
def test_figures_are_as_wide_as_a_column(width, inches):
    assert figures.gallery([make_explanation()] * 3, width=width).get_size_inches()[0] == inches
    assert figures.kernels(nn.Conv2d(3, 8, 3), width=width).get_size_inches()[0] == inches
    assert figures.kernels(nn.Conv2d(4, 8, 3), width=width).get_size_inches()[0] == inches


def test_default_width_is_one_column_for_few_images_and_two_for_many():
    assert figures.gallery([make_explanation()] * 3).get_size_inches()[0] == 3.25
    assert figures.gallery([make_explanation()] * 4).get_size_inches()[0] == 6.75
