"""Methods that read the weights of the linear layer behind global average pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.evidence import Evidence
from camtool.methods.registry import method

__all__ = ["cam"]


@method("cam", paper="arXiv 1512.04150", needs="a pooled linear head")
def cam(evidence: Evidence) -> Tensor:
    """Weigh channels by the linear head's weights.

    ``M = Σ_k w_k A_k`` (Zhou et al. 2016, eq. 2), with ``w`` the class' row of the weights. As in the paper there is
    no ReLU, and the bias, which is the same everywhere, is left out: negative values speak against the class.

    Returns:
        Signed maps ``(R, *grid)`` whose mean is the score less the bias.

    Raises:
        MethodError: The model has another kind of head.
    """
    return torch.einsum("nc,nc...->n...", evidence.head_weights, evidence.head.maps)
