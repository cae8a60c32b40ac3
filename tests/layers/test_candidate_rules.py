"""Rules on layers: for each rule a network that is read wrongly without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from camtool.hooks.tracing import trace
from camtool.layers import candidate_rules as rules
from camtool.layers.candidate_rules import Rule
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import Layout
from camtool.layers.survey import find_candidates
from tests.helpers.nets import Apply
from tests.layers.nets import (
    AttentionNet,
    ClassAttention,
    ClassTokenNet,
    LatentNet,
    MultiHeadAttention,
    PatchNet,
    QueryDetector,
    QueryNet,
    RegisterNet,
    TokenMixer,
    TokenNet,
    build_small_swin,
    build_small_vit,
)

FIRST, LAST = "channels first", "channels last"


def find_chosen(model: nn.Module) -> str | None:
    """Return the name of the layer that is chosen for a 64 x 64 image."""
    return next((each.name for each in find_candidates(model, torch.randn(1, 3, 64, 64)) if each.chosen), None)


def find_verdict(model: nn.Module, layer: str) -> str | None:
    """Return the verdict on a layer; None if it is not listed."""
    found = {each.name: each.verdict for each in find_candidates(model, torch.randn(1, 3, 64, 64))}
    return found.get(layer)


def find_layouts(model: nn.Module, layer: str, size: int = 64) -> list[Layout]:
    """Return the ways to read the output of a layer."""
    calls = trace(model, torch.randn(1, 3, size, size))
    reader = LayoutReader(calls, (size, size))
    return next(reader.find_layouts(call) for call in calls if call.name == layer)


def split_windows(maps: torch.Tensor) -> torch.Tensor:
    """Return four windows of each image as images of their own."""
    return torch.cat([window for half in maps.chunk(2, 2) for window in half.chunk(2, 3)])


class Example(NamedTuple):
    """A function that finds something else without the rule, and what it finds with the rule."""

    find: Callable[[], Any]
    expected: Any


def build_few_positions_net() -> nn.Module:
    """Return a network whose head reads two of the 8 x 8 positions behind a 3 x 3 convolution."""
    mix = nn.Conv2d(8, 8, 3, padding=1)
    model = PatchNet(mix, lambda x: x[..., 2, 2] + x[..., 5, 5])
    model.shaped = mix
    return model


def build_pooled_windows_net() -> nn.Module:
    """Return a network with a module that returns windows."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 4, stride=4), Apply(split_windows), Apply(lambda x: x.mean((2, 3)).unflatten(0, (4, -1)).sum(0))
    ).append(nn.Linear(8, 5))


def find_chosen_for_frames() -> str | None:
    """Return the layer that is chosen for a clip of three frames, in a network that takes its channels for frames."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Tanh())
    model = nn.Sequential(
        Apply(lambda x: x.flatten(0, 1)), trunk, Apply(lambda x: x.mean((2, 3)).unflatten(0, (-1, 3)))
    )
    model.append(Apply(lambda x: x.mean(1))).append(nn.Linear(8, 5))
    return next((each.name for each in find_candidates(model, torch.randn(1, 3, 3, 64, 64)) if each.chosen), None)


EXAMPLES: dict[str, Example] = {
    "detection queries": Example(
        lambda: find_verdict(QueryDetector(16), "decoder"), None
    ),  # 16 queries could be 4 x 4 patches
    "windows": Example(lambda: find_verdict(build_pooled_windows_net(), "1"), None),
    "inside of attention": Example(  # (1, 2, 65, 65)
        lambda: find_layouts(
            TokenNet(MultiHeadAttention(128, 2), nn.Conv2d(3, 128, 16, stride=16)), "body.over_tokens", 128
        ),
        [],
    ),
    "inside of token mixing": Example(  # 64 channels could be 8 x 8 tokens
        lambda: find_layouts(TokenNet(TokenMixer(17), nn.Conv2d(3, 64, 16, stride=16)), "body.along"), []
    ),
    "another channel axis": Example(  # (1, 8, 8, 3), whose first two axes have the proportions of the image
        lambda: find_layouts(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 8, (8, 21), stride=(8, 21))), "1"), []
    ),
    "known channel axis": Example(  # 16 channels over 16 x 16 positions
        lambda: find_layouts(build_small_swin(), "features.1"), [Layout(LAST, (16, 16))]
    ),
    "exact proportions": Example(  # 10 channels over 8 x 8 positions could be 10 x 8
        lambda: find_layouts(nn.Sequential(Apply(lambda x: x[:, :1, ::16, ::16].expand(-1, 10, -1, -1))), "0", 128),
        [Layout(FIRST, (8, 8))],
    ),
    "pooling": Example(
        lambda: find_chosen(
            nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, 5))
        ),
        "1",
    ),
    "constant output": Example(lambda: find_verdict(AttentionNet(), "bias"), "it does not depend on the image"),
    "output without gradient": Example(lambda: find_verdict(build_small_vit(), "encoder"), "no gradient reaches it"),
    "one row": Example(
        lambda: find_verdict(AttentionNet(), "attention"), "the score's gradient reaches hardly any of its positions"
    ),
    "few positions": Example(lambda: find_chosen(build_few_positions_net()), "patches"),
    "class scores": Example(
        lambda: find_chosen(
            nn.Sequential(nn.Conv2d(3, 6, 8, 8), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        ),
        "1",
    ),
    "latents": Example(  # 20 latents could be a prefix of 4 and 4 x 4
        lambda: find_verdict(LatentNet(20), "read"), "it holds tokens that are the model's own, not the image's"
    ),
    "tokens in another order": Example(
        lambda: find_chosen(PatchNet(lambda maps: maps.flatten(2).mT.flip(1), lambda tokens: tokens.tanh().mean(1))),
        "patches",
    ),
    "tokens that begin elsewhere": Example(  # a register that starts as the mean of the patches
        lambda: find_chosen(RegisterNet(1, 24, starts_as_mean=True)), "patches"
    ),
    "tokens without places": Example(lambda: find_chosen(QueryNet(64, 8)), "norm"),  # as many queries as patches
    "frames in another order": Example(find_chosen_for_frames, None),
    "attention projection": Example(
        lambda: find_verdict(ClassTokenNet(ClassAttention(8, together=False)), "attention.key"), "a projection of norm"
    ),
}

TABLES: dict[str, tuple[Rule[Any], ...]] = {
    name: value for name, value in vars(rules).items() if isinstance(value, tuple) and isinstance(value[0], Rule)
}

RULES = [pytest.param(table, rule, id=rule.name) for table, entries in TABLES.items() for rule in entries]


@pytest.mark.parametrize(("table", "rule"), RULES)
def test_each_rule_is_needed_by_a_network(table: str, rule: Rule[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if rule.name not in EXAMPLES:
        pytest.fail(f"add a network that needs the rule {rule.name!r} to EXAMPLES in this file")
    example = EXAMPLES[rule.name]
    torch.manual_seed(0)
    assert example.find() == example.expected
    monkeypatch.setattr(rules, table, tuple(each for each in TABLES[table] if each is not rule))
    torch.manual_seed(0)
    assert example.find() != example.expected


def test_a_comment_above_each_rule_names_the_models_that_need_it() -> None:
    lines = [line.strip() for line in Path(rules.__file__).read_text(encoding="utf-8").splitlines()]
    above = [lines[number - 1] for number, line in enumerate(lines) if line.startswith("Rule(")]
    assert len(above) == len(RULES)
    assert all(line.startswith("# ") for line in above)


@pytest.mark.parametrize(("table", "rule"), RULES)
def test_each_excluded_candidate_has_a_reason(table: str, rule: Rule[Any]) -> None:
    assert rule.verdict or table not in ("RESPONSE", "PROJECTION"), "candidates are listed with a reason"


def test_each_example_belongs_to_a_rule() -> None:
    names = [rule.name for entries in TABLES.values() for rule in entries]
    assert sorted(EXAMPLES) == sorted(names)
