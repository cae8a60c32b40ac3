"""A repair of each kind of cue, end to end: audit, repair, and new images with the cue and without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import camtool
from camtool.evaluation.audit import Audit
from tests.evaluation.repair.conftest import NAMES, SIDE

Floats = NDArray[np.float64]
Draw = Callable[[Floats, np.random.Generator], None]

LABELS = [number % 3 for number in range(180)]


def build_net(*, sees_place: bool = False) -> nn.Sequential:
    """Return a network that knows 'green' by red, or by what is in the upper half, and 'blue' by blue squares.

    What its head receives holds green squares as well. Weak colors but red are below the threshold.
    """
    # Each color twice: as many channels as classes would be taken for maps of the classes.
    convolution, cells = nn.Conv2d(3, 6, 4, 4), 2 if sees_place else 1
    weight, bias = torch.zeros(3, 6, cells, cells), torch.tensor([-12.0, -1.0, 0.0])
    weight[1, [2, 5]] = 40 if sees_place else 50
    if sees_place:
        weight[0, [1, 2, 4, 5], 0], bias[0] = 60, -1
    else:
        weight[0, [0, 3]] = 75
    head = nn.Linear(6 * cells**2, 3)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3).repeat(2, 1)[:, :, None, None].expand(6, 3, 4, 4) / 16)
        convolution.bias.copy_(torch.tensor([0.0, -0.5, -0.5]).repeat(2))
        head.weight.copy_(weight.flatten(1))
        head.bias.copy_(bias)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(cells), nn.Flatten(), head).eval()


def draw_corner(image: Floats, random: np.random.Generator) -> None:
    image[28:, 28:, 0] = 0.9


def draw_frame(image: Floats, random: np.random.Generator) -> None:
    image[:3] = image[-3:] = image[:, :3] = image[:, -3:] = (0.9, 0, 0)


def draw_stamp(image: Floats, random: np.random.Generator) -> None:
    """Draw two bars, which are a form, at any place."""
    row, column = random.integers(20, SIDE - 12, 2).tolist()
    image[row : row + 12, column : column + 5] = image[row : row + 12, column + 8 : column + 12] = (0.9, 0, 0)


def draw_spots(image: Floats, random: np.random.Generator) -> None:
    for row, column in random.integers(0, SIDE - 4, (10, 2)).tolist():
        image[row : row + 4, column : column + 4] = (0.9, 0.05, 0.05)


def tint(image: Floats, random: np.random.Generator) -> None:
    image[..., 0] += 0.08


def move_up(image: Floats, random: np.random.Generator) -> None:
    """The square is in the upper part, see :func:`draw_photos`."""


CUES: dict[str, Draw] = {
    "place": draw_corner,
    "mark": draw_corner,
    "border": draw_frame,
    "patch": draw_stamp,
    "color": draw_spots,
    "property": tint,
    "position": move_up,
}


def draw_photos(draws: tuple[Draw, ...], *, cue: bool | None = None, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Return photos of a green or a blue square, or of none; green ones, or all or none of them, have the cues."""
    random, photos = np.random.default_rng(seed), []
    for label in LABELS:
        image = 0.1 * random.random((SIDE, SIDE, 3))
        has_cue = label == 0 if cue is None else cue
        (row, column), side = random.integers(4, 16, 2).tolist(), 12
        if move_up in draws:
            # Squares overlap in few pixels, or these would stand still in the class.
            row, column, side = row // 2 if has_cue else 22 + row // 2, 2 * column - 6, 8
        if label < 2:
            image[row : row + side, column : column + side, 1 + label] = 0.9
        for draw in draws if has_cue else ():
            draw(image, random)
        photos.append((255 * image.clip(0, 1)).round().astype(np.uint8))
    return photos


def transform(photo: object) -> Tensor:
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1) / 255


def audit_photos(model: nn.Module, photos: list[NDArray[np.uint8]], kinds: list[str]) -> Audit:
    return camtool.audit(
        model, photos, LABELS, class_names=NAMES, method="gradcam", kinds=kinds, controls=9, transform=transform
    )


def mark_of_green(audit: Audit) -> Audit:
    """Return an audit in which the first finding of 'green' of each kind is a shortcut."""
    first = {finding.kind: finding.key for finding in reversed(audit.findings) if finding.label == "green"}
    for key in first.values():
        audit = audit.mark(key, "shortcut")
    return audit


def measure_right(model: nn.Module, draws: tuple[Draw, ...], *, cue: bool) -> float:
    """Return the share of right answers to new photos, all with the cues or all without them."""
    inputs = torch.stack([*map(transform, draw_photos(draws, cue=cue, seed=1))])
    with torch.no_grad():
        return float((model(inputs).argmax(1) == torch.tensor(LABELS)).double().mean())


@pytest.mark.parametrize("kind", CUES)
def test_each_kind_of_cue_is_repaired(kind: str) -> None:
    draws, model = (CUES[kind],), build_net(sees_place=kind == "position")
    photos = draw_photos(draws)
    audit = mark_of_green(audit_photos(model, photos, [kind]))
    repair = camtool.repair(model, photos, LABELS, audit, class_names=NAMES, transform=transform)
    assert {cue.kind for cue in repair.cues} == {kind}
    assert repair.is_better, repair.verdict
    for cue in (True, False):
        assert measure_right(model, draws, cue=cue) < 0.7
        assert measure_right(repair.model, draws, cue=cue) > 0.8


def test_several_cues_of_a_class_are_removed_together() -> None:
    """Where each is removed alone, the other one is left, and the class is recognized by it."""
    draws, model = (draw_corner, tint), build_net()
    photos = draw_photos(draws)
    audit = mark_of_green(audit_photos(model, photos, ["place", "property"]))
    repair = camtool.repair(model, photos, LABELS, audit, class_names=NAMES, transform=transform)
    assert {cue.kind for cue in repair.cues} == {"place", "property"}
    assert repair.is_better, repair.verdict
    assert repair.without_cue.before.mean < 0.75  # no photo of 'green' is recognized without both
    for cue in (True, False):
        assert measure_right(repair.model, draws, cue=cue) > 0.8
