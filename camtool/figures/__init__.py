"""Figures for papers: each function returns a matplotlib figure that the user can edit further.

    figure = camtool.figures.methods_grid(model, ["cat.jpg", "dog.jpg"], ["gradcam", "layercam", "scorecam"])
    figure.axes[1].title.set_text("Grad-CAM (Selvaraju et al.)")
    camtool.figures.save(figure, "methods.pdf")

They need matplotlib: ``pip install 'camtool[figures]'``. They do not use pyplot and change no settings. The font
is that of ``matplotlib.rcParams["font.family"]``.
"""

from __future__ import annotations

from camtool.figures.explanation_figures import (
    classes_grid,
    comparison,
    gallery,
    layers_sweep,
    methods_grid,
    questions_grid,
)
from camtool.figures.feature_map_figures import feature_maps, feature_pages
from camtool.figures.kernel_figures import kernel_pages, kernels
from camtool.figures.paper_style import WIDTHS, Width
from camtool.figures.saving import save

__all__ = [
    "WIDTHS",
    "Width",
    "classes_grid",
    "comparison",
    "feature_maps",
    "feature_pages",
    "gallery",
    "kernel_pages",
    "kernels",
    "layers_sweep",
    "methods_grid",
    "questions_grid",
    "save",
]
