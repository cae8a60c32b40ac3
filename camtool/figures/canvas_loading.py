"""Import of the module that draws with matplotlib, when the first figure is drawn."""

from __future__ import annotations

from types import ModuleType

from camtool.errors import CamtoolError

__all__ = ["load_canvas"]


def load_canvas() -> ModuleType:
    """Return :mod:`camtool.figures.canvas`, the only module that imports matplotlib.

    Raises:
        CamtoolError: matplotlib is not installed.
    """
    try:
        from camtool.figures import canvas
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise CamtoolError("figures need matplotlib: pip install 'camtool[figures]'") from error
    return canvas
