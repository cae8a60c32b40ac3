"""Rival-CAM, camtool's own method: the evidence for a class where it is stronger than that for its rivals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence
from camtool.inference.chunks import compute_chunk_size
from camtool.methods.options import check_count, check_number
from camtool.methods.registry import method
from camtool.targets import ClassScore, Target

__all__ = ["rivalcam"]


@method("rivalcam", paper="camtool", needs="gradients of several classes")
def rivalcam(evidence: Evidence, *, rivals: int = 10, temperature: float = 0.5, kinship: float = 3.0) -> Tensor:
    """Show what favors the class over its rivals.

    It is made for images of several objects.

    Grad-CAM shows the evidence for a class even where the evidence for another class is stronger. Here the target class
    c and its rivals, the other classes with the highest scores, compete for each position. The contribution of position
    p to the score ``y_j`` of class j is ``s_j(p) = Σ_k g_jk(p) A_k(p)``. The rest of the score, for example a bias, is
    spread evenly: ``m_j(p) = P s_j(p) + y_j - Σ_q s_j(q)``, whose mean over the P positions is the score. After a
    pooled linear head this is the model's own output at the position. The map is

        ``M(p) = relu(s_c(p)) · exp(m_c(p)/T) / Σ_j (1 - relu(ρ_j))^kinship exp(m_j(p)/T)``

    where ``T`` is the temperature times the standard deviation of ``m_c`` over the positions, so the scale of the
    logits has no effect. ``ρ_j`` is the correlation of ``m_j`` with ``m_c``. Rivals with evidence at the same
    positions, such as tabby and tiger cat, are the same object to the model. They hardly compete, so the map has no
    holes. The target class itself counts in full.

    Args:
        evidence: The activations, and the gradients of the target class and its rivals.
        rivals: The number of rivals.
        temperature: How soft the competition is.
        kinship: How strongly a rival is discounted if its evidence is at the same positions; 0 discounts none.

    Returns:
        The maps ``(R, *grid)``, not negative.

    Raises:
        MethodError: A target is not the score of a class, or an option is out of range.
    """
    check_count("rivals", rivals)
    check_number("temperature", temperature, above=0)
    check_number("kinship", kinship, least=0)
    _check_comparable_scores(evidence)
    contestants = [_find_contestants(evidence, row, rivals) for row in range(len(evidence.images))]
    # The gradients of all classes at once could fill the memory.
    chunk = compute_chunk_size(evidence.activations.numel(), evidence.activations)
    parts = [slice(first, first + chunk) for first in range(0, len(contestants[0]), chunk)]
    results = [_compute_contributions(evidence, [each[part] for each in contestants]) for part in parts]
    contributions, scores = (torch.cat(kind, 1) for kind in zip(*results, strict=True))
    return contributions[:, 0].relu() * _compute_share(contributions, scores, temperature, kinship)


def _check_comparable_scores(evidence: Evidence) -> None:
    """Check that all targets are class scores: probabilities and differences have other units than the rivals' scores.

    Raises:
        MethodError: A target is not a class score, or the model does not return ``(N, classes)``.
    """
    others = [target for target in evidence.targets if not target.is_class_score()]
    if evidence.logits.ndim != 2 or others:
        got = f"target {others[0]}" if others else f"an output of shape {tuple(evidence.logits.shape)}"
        raise MethodError(
            "method 'rivalcam' compares the scores of classes, so it needs a model that returns (N, classes) and "
            f"targets that are an index, a name or ClassScore, got {got}; use method='hirescam' for others."
        )


def _find_contestants(evidence: Evidence, row: int, rivals: int) -> list[Target]:
    """Return the row's target, followed by the other classes with the highest scores."""
    target, logits = evidence.targets[row], evidence.logits[evidence.images[row]]
    ranked = logits.topk(min(rivals + 1, len(logits))).indices.tolist()
    others = [index for index in ranked if index != target.get_class_index()]
    link = evidence.forward_pass.find_link() or "softmax"
    return [target, *(ClassScore(index, link) for index in others[: min(rivals, len(logits) - 1)])]


def _compute_contributions(evidence: Evidence, contestants: Sequence[Sequence[Target]]) -> tuple[Tensor, Tensor]:
    """Return the contributions of the positions to each class's score, ``(R, classes, *grid)``, and the scores."""
    images = [image for image, targets in zip(evidence.images, contestants, strict=True) for _ in targets]
    by_row = evidence.for_targets([target for targets in contestants for target in targets], images)
    gradients = by_row.gradients.unflatten(0, (len(contestants), -1))
    contributions = (gradients * evidence.activations[:, None]).sum(2)
    return contributions, by_row.scores.to(contributions).unflatten(0, (len(contestants), -1))


def _compute_share(contributions: Tensor, scores: Tensor, temperature: float, kinship: float) -> Tensor:
    """Return the share of each position that the first class wins, ``(R, *grid)``.

    Args:
        contributions: The contributions ``s_j`` of the positions to the classes' scores, ``(R, 1 + rivals, *grid)``.
        scores: The scores ``y_j``, ``(R, 1 + rivals)``.
        temperature: See :func:`rivalcam`.
        kinship: See :func:`rivalcam`.
    """
    flat = contributions.flatten(2)
    # m_j of the docstring of rivalcam.
    local_scores = flat.shape[2] * flat + (scores - flat.sum(2))[..., None]
    centered = local_scores - local_scores.mean(2, keepdim=True)
    # Divided by the peak first, so that the squares in the norm neither overflow nor vanish.
    centered = centered / _replace_zeros(centered.abs().amax(2, keepdim=True))
    directions = centered / _replace_zeros(centered.norm(dim=2, keepdim=True))
    correlation = (directions[:, :1] * directions).sum(2).clamp(0, 1)
    strength = (1 - correlation) ** kinship
    # The correlation of the class with itself is 1, but it counts in full.
    strength[:, 0] = 1
    spread = local_scores[:, :1].std(2, correction=0, keepdim=True)
    logits = (local_scores - local_scores[:, :1]) / (temperature * _replace_zeros(spread))
    won: Tensor = torch.softmax(logits + strength.log()[..., None], 1)[:, 0]
    share: Tensor = won.unflatten(1, contributions.shape[2:])
    return share


def _replace_zeros(numbers: Tensor) -> Tensor:
    """Return the numbers with 1 for those that are 0, for use as divisors."""
    return torch.where(numbers > 0, numbers, 1)
