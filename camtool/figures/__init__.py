"""Figures for papers and for looking inside: each function returns a matplotlib figure that a person can go on editing.

    figure = camtool.figures.methods_grid(model, ["cat.jpg", "dog.jpg"], ["gradcam", "layercam", "scorecam"])
    figure.axes[1].title.set_text("Grad-CAM (Selvaraju et al.)")
    camtool.figures.save(figure, "methods.pdf")

They need matplotlib: ``pip install 'camtool[figures]'``. Nothing goes through pyplot, no setting of it is changed, and
the typeface is that of ``matplotlib.rcParams["font.family"]``.
"""

from __future__ import annotations

from camtool.figures.activity import feature_maps, feature_pages
from camtool.figures.explained import classes_grid, comparison, gallery, layers_sweep, methods_grid
from camtool.figures.filters import kernel_pages, kernels
from camtool.figures.paper import WIDTHS, Width, save

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
    "save",
]
