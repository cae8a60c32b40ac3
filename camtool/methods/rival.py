"""Our own method: what speaks for the class, where it speaks for that class more than for its rivals."""

from __future__ import annotations

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence import Evidence
from camtool.methods.registry import method
from camtool.targets import ClassScore, Target, class_of

__all__ = ["rivalcam"]


@method("rivalcam", paper="camtool", needs="gradients of several classes")
def rivalcam(evidence: Evidence, *, rivals: int = 10, temperature: float = 0.5, kinship: float = 3.0) -> Tensor:
    """Show what speaks for the class more than for the model's other top classes, for pictures of several things.

    Grad-CAM tells how much a place speaks for a class, though it may speak for another class even more. Here every
    class j among the asked one, c, and its rivals first says how much each position p adds to its score ``y_j``:
    ``s_j(p) = Σ_k g_jk(p) A_k(p)``. What the positions leave unexplained of the score, a bias say, belongs to all of
    them alike: ``m_j(p) = P s_j(p) + y_j - Σ_q s_j(q)``, whose mean over the P positions is the score. Behind a pooled
    linear head this is the model's own answer at the position. Then the classes compete for each position:

        ``M(p) = relu(s_c(p)) · exp(m_c(p)/T) / Σ_j (1 - relu(ρ_j))^kinship exp(m_j(p)/T)``

    with ``T`` the temperature times the standard deviation of ``m_c`` over the positions, so that the scale of a
    model's logits does not matter. ``ρ_j`` is the correlation of ``m_j`` with ``m_c``: rivals that look at the very
    same places, the tabby and the tiger cat, are one animal to the model and do not fight, and so no holes are torn
    into it. The class itself counts in full.

    Args:
        evidence: What the model showed.
        rivals: How many of the model's highest other classes compete.
        temperature: How softly they do.
        kinship: How fast a rival gives in that looks where the class looks; 0 lets all fight alike.

    Returns:
        The maps ``(R, *grid)``, not negative.

    Raises:
        MethodError: A target is not about a class, or an option is out of range.
    """
    _check(evidence, rivals, temperature, kinship)
    asked = [_contestants(evidence, row, rivals) for row in range(len(evidence.images))]
    wanted = [target for contest in asked for target in contest]
    images = [image for image, contest in zip(evidence.images, asked, strict=True) for _ in contest]
    seen = evidence.about(wanted, images)
    parts: Tensor = (seen.gradients * seen.activations).sum(1).unflatten(0, (len(asked), -1))
    scores = seen.scores.to(parts).unflatten(0, (len(asked), -1))
    return parts[:, 0].relu() * _share(parts, scores, temperature, kinship)


def _check(evidence: Evidence, rivals: int, temperature: float, kinship: float) -> None:
    if rivals < 1 or temperature <= 0 or kinship < 0:
        raise MethodError(
            f"method 'rivalcam' got rivals={rivals}, temperature={temperature}, kinship={kinship}; give 1 or more, "
            "more than 0, and 0 or more."
        )
    if evidence.logits.ndim != 2 or any(class_of(target) is None for target in evidence.targets):
        raise MethodError(
            "method 'rivalcam' compares classes, so it needs a model that returns (N, classes) and targets about a "
            "class, an index, a name or ClassScore; use method='hirescam' for others."
        )


def _contestants(evidence: Evidence, row: int, rivals: int) -> list[Target]:
    """The row's own target, and the classes that the model ranks highest besides."""
    target, logits = evidence.targets[row], evidence.logits[evidence.images[row]]
    ranked = logits.topk(min(rivals + 1, len(logits))).indices.tolist()
    others = [index for index in ranked if index != class_of(target)]
    return [target, *(ClassScore(index) for index in others[: min(rivals, len(logits) - 1)])]


def _share(parts: Tensor, scores: Tensor, temperature: float, kinship: float) -> Tensor:
    """What part of each position the first of the classes wins: ``(R, *grid)``.

    Args:
        parts: ``(R, 1 + rivals, *grid)``, what the positions add to the classes' scores.
        scores: ``(R, 1 + rivals)``.
        temperature: See :func:`rivalcam`.
        kinship: See :func:`rivalcam`.
    """
    flat = parts.flatten(2)
    views = flat.shape[2] * flat + (scores - flat.sum(2))[..., None]
    centred = views - views.mean(2, keepdim=True)
    centred = centred / _or_one(centred.abs().amax(2, keepdim=True))  # so that squares neither overflow nor vanish
    directions = centred / _or_one(centred.norm(dim=2, keepdim=True))
    likeness = (directions[:, :1] * directions).sum(2).clamp(0, 1)
    standing = (1 - likeness) ** kinship
    standing[:, 0] = 1
    spread = views[:, :1].std(2, correction=0, keepdim=True)
    contest = (views - views[:, :1]) / (temperature * _or_one(spread))
    won: Tensor = torch.softmax(contest + standing.log()[..., None], 1)[:, 0]
    share: Tensor = won.unflatten(1, parts.shape[2:])
    return share


def _or_one(numbers: Tensor) -> Tensor:
    return torch.where(numbers > 0, numbers, 1)
