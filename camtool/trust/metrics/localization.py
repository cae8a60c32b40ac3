"""Localization metrics: whether a heatmap is on the object that it explains.

They need a mask of the object. They measure agreement with the object, not with what the model uses: a faithful map
of a model that uses the background scores low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["compute_energy_in_mask", "is_peak_in_mask"]


def compute_energy_in_mask(heatmap: NDArray[np.float32], mask: NDArray[np.bool_]) -> float:
    """Compute the share of a heatmap's sum that is inside a mask. Higher is better, from 0 to 1.

    A constant map scores the mask's share of the image, which is the chance level. A map of zeros scores 0.

    Source: the energy-based pointing game of Score-CAM, arXiv 1910.01279, section 4.3.

    Args:
        heatmap: ``(H, W)``, not negative.
        mask: ``(H, W)``, true on the object.
    """
    total = float(heatmap.sum(dtype="float64"))
    return float(heatmap[mask].sum(dtype="float64")) / total if total > 0 else 0.0


def is_peak_in_mask(heatmap: NDArray[np.float32], mask: NDArray[np.bool_]) -> bool:
    """Check that the highest pixel of a heatmap is inside a mask: the pointing game without a tolerance.

    A random pixel is inside with the mask's share of the image, which is the chance level.

    Source: arXiv 1608.00507, section 4.2, where a distance of 15 pixels still counts as a hit.

    Args:
        heatmap: ``(H, W)``.
        mask: ``(H, W)``, true on the object.
    """
    return bool(mask.flat[heatmap.argmax()])
