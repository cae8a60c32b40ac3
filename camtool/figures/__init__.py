"""Figures for papers: each function returns a matplotlib figure that the user can edit further.

    figure = camtool.figures.methods_grid(model, ["cat.jpg", "dog.jpg"], ["gradcam", "layercam", "scorecam"])
    figure.axes[1].title.set_text("Grad-CAM (Selvaraju et al.)")
    camtool.figures.save(figure, "methods.pdf")

They need matplotlib: ``pip install 'camtool[figures]'``. They do not use pyplot and change no settings. The font
is that of ``matplotlib.rcParams["font.family"]``.
"""

from __future__ import annotations

from camtool.figures.channel_figures import feature_maps as feature_maps
from camtool.figures.channel_figures import feature_pages as feature_pages
from camtool.figures.channel_figures import kernel_pages as kernel_pages
from camtool.figures.channel_figures import kernels as kernels
from camtool.figures.explanation_figures import classes_grid as classes_grid
from camtool.figures.explanation_figures import comparison as comparison
from camtool.figures.explanation_figures import gallery as gallery
from camtool.figures.explanation_figures import layers_sweep as layers_sweep
from camtool.figures.explanation_figures import methods_grid as methods_grid
from camtool.figures.explanation_figures import questions_grid as questions_grid
from camtool.figures.paper_style import WIDTHS as WIDTHS
from camtool.figures.paper_style import Width as Width
from camtool.figures.saving import save as save
