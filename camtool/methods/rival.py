"""Our own method: what speaks for the class, where it speaks for that class more than for its rivals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.evidence import Evidence
from camtool.methods.options import check_count, check_number
from camtool.methods.registry import method
from camtool.streaming import room_for
from camtool.targets import ClassScore, Target, class_of

__all__ = ["rivalcam"]


@method("rivalcam", paper="camtool", needs="gradients of several classes")
def rivalcam(evidence: Evidence, *, rivals: int = 10, temperature: float = 0.5, kinship: float = 3.0) -> Tensor:
    """Show what favors the class over its rivals.

    It is made for images of several things.

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
        MethodError: A target is not the score of a class, or an option is out of range.
    """
    check_count("rivals", rivals)
    check_number("temperature", temperature, above=0)
    check_number("kinship", kinship, least=0)
    _check_that_scores_compare(evidence)
    asked = [_contestants(evidence, row, rivals) for row in range(len(evidence.images))]
    some = room_for(evidence.activations.numel(), evidence.activations)  # all at once could fill the memory
    turns = [slice(first, first + some) for first in range(0, len(asked[0]), some)]
    several = [_contributions(evidence, [contest[turn] for contest in asked]) for turn in turns]
    parts, scores = (torch.cat(kind, 1) for kind in zip(*several, strict=True))
    return parts[:, 0].relu() * _share(parts, scores, temperature, kinship)


def _check_that_scores_compare(evidence: Evidence) -> None:
    """A probability, or a difference of scores, is in other units than the scores of the rivals."""
    other = [target for target in evidence.targets if type(target) is not ClassScore]
    if evidence.logits.ndim != 2 or other:
        came = f"target {other[0]}" if other else f"an output of shape {tuple(evidence.logits.shape)}"
        raise MethodError(
            "method 'rivalcam' compares the scores of classes, so it needs a model that returns (N, classes) and "
            f"targets that are an index, a name or ClassScore, got {came}; use method='hirescam' for others."
        )


def _contestants(evidence: Evidence, row: int, rivals: int) -> list[Target]:
    """The row's own target, and the classes that the model ranks highest besides."""
    target, logits = evidence.targets[row], evidence.logits[evidence.images[row]]
    ranked = logits.topk(min(rivals + 1, len(logits))).indices.tolist()
    others = [index for index in ranked if index != class_of(target)]
    link = evidence.link or "softmax"
    return [target, *(ClassScore(index, link) for index in others[: min(rivals, len(logits) - 1)])]


def _contributions(evidence: Evidence, asked: Sequence[Sequence[Target]]) -> tuple[Tensor, Tensor]:
    """What each position adds to the scores of each row's classes, ``(R, classes, *grid)``, and those scores."""
    images = [image for image, contest in zip(evidence.images, asked, strict=True) for _ in contest]
    seen = evidence.about([target for contest in asked for target in contest], images)
    by_class = seen.gradients.unflatten(0, (len(asked), -1))
    parts = (by_class * evidence.activations[:, None]).sum(2)
    return parts, seen.scores.to(parts).unflatten(0, (len(asked), -1))


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
