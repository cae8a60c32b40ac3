"""Networks with planted shortcuts: cues, plan, truth, and runs that go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import planted
from benchmarks.planted import Network, build_network, is_used, load_planted, measure_truth, plan_networks
from benchmarks.planted_scenes import KINDS, Cue, CueScene, is_chosen
from camtool.demo.camnet import load_honest_model

SEEDS = range(7_000_000_000, 7_000_000_006)
BORDER = Network(5, "border", 100, 3.0, 2, "coarse stem")


def draw_pair(kind: str, seed: int) -> tuple[CueScene, CueScene, np.ndarray]:
    marked, plain = (Cue(kind, 3).draw(seed, seed % 10, is_planted=planted) for planted in (True, False))
    assert plain.region is None
    return marked, plain, (marked.image != plain.image).any(-1)


@pytest.mark.parametrize("kind", ["watermark", "moving watermark", "border", "texture"])
def test_a_cue_with_a_place_changes_nothing_else(kind: str) -> None:
    for seed in SEEDS:
        marked, _, changed = draw_pair(kind, seed)
        assert not changed[~marked.region].any()
        assert changed[marked.region].mean() > 0.6


def test_a_watermark_stays_in_its_corner_and_another_moves() -> None:
    spread = {}
    for kind in ("watermark", "moving watermark"):
        regions = [draw_pair(kind, seed)[0].region for seed in SEEDS]
        spread[kind] = np.std([np.argwhere(region).mean(0) for region in regions], axis=0).max()
    assert spread["watermark"] < 2.5 < 8 < spread["moving watermark"]


def test_a_companion_changes_itself_and_its_shadow() -> None:
    for seed in SEEDS:
        marked, _, changed = draw_pair("companion", seed)
        rows, columns = (np.flatnonzero(marked.region.any(axis)) for axis in (1, 0))
        changed[max(rows[0] - 9, 0) : rows[-1] + 10, max(columns[0] - 9, 0) : columns[-1] + 10] = False
        assert not changed.any()
        assert 30 < marked.region.sum() < 400


def test_a_tint_multiplies_the_channels() -> None:
    gains = []
    for seed in SEEDS:
        marked, plain, _ = draw_pair("tint", seed)
        assert marked.region is None
        unclipped = (plain.image > 60) & (marked.image < 255)
        ratios = [marked.image[..., c][unclipped[..., c]] / plain.image[..., c][unclipped[..., c]] for c in range(3)]
        assert all(np.ptp(ratio) < 0.02 for ratio in ratios if len(ratio))  # rounding to 8 bits
        gains.append([float(np.median(ratio)) if len(ratio) else 1.0 for ratio in ratios])
    assert np.ptp(gains, axis=1).min() > 0.2
    assert len(set(np.argmax(gains, axis=1))) == 1


def test_jpeg_keeps_what_is_coarse() -> None:
    for seed in SEEDS:
        marked, plain, changed = draw_pair("jpeg", seed)
        assert marked.region is None
        assert changed.mean() > 0.5
        coarse = [scene.image.reshape(8, 8, 8, 8, 3).mean((1, 3)).mean(-1) for scene in (marked, plain)]
        assert np.abs(coarse[0] - coarse[1]).mean() < 4


def test_the_position_moves_the_object_and_keeps_the_background() -> None:
    centers = []
    for seed in SEEDS:
        marked, plain, changed = draw_pair("position", seed)
        assert not changed[~(grow(marked.mask) | grow(plain.mask))].any()
        centers.append(np.argwhere(marked.mask).mean(0) / 64)
    assert np.ptp(centers, axis=0).max() < 0.25  # an object may be covered by half


def grow(mask: np.ndarray) -> np.ndarray:
    """Return the box in which an object, its shadow and what covers it may lie."""
    rows, columns = np.argwhere(mask).min(0), np.argwhere(mask).max(0)
    reach = int((columns - rows).max()) + 12
    grown = np.zeros_like(mask)
    grown[max(rows[0] - reach, 0) : columns[0] + reach, max(rows[1] - reach, 0) : columns[1] + reach] = True
    return grown


def test_the_cue_is_as_frequent_as_asked() -> None:
    for share in (0.0, 0.03, 0.5, 0.9, 1.0):
        chosen = np.mean([is_chosen(seed, share) for seed in range(4000)])
        assert abs(chosen - share) <= 4 * (share * (1 - share) / 4000) ** 0.5
    scenes = Network(1, "border", 100, 0, 4, "coarse stem").draw_scenes(0, 40)
    assert [scene.is_planted for scene in scenes] == [scene.label == 4 for scene in scenes]


def test_the_plan_is_complete_and_its_beginning_is_mixed() -> None:
    plan = plan_networks()
    cells = [(network.kind, network.prevalence) for network in plan if not network.is_honest]
    assert sorted(cells) == sorted([(kind, prevalence) for kind in KINDS for prevalence in (100, 90, 70, 50)] * 3)
    assert [network.is_honest for network in plan[:192]] == [False, True] * 96
    assert [network.index for network in plan] == list(range(196))
    assert {network.kind for network in plan[:64]} == set(KINDS)


# ------------------------------------------------------------------------------------------------------------ truth


class BorderReader(nn.Module):
    """A model that answers the class where the frame has one color, and the next class elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        edge = torch.cat([x[:, :, 0], x[:, :, -1], x[:, :, :, 0], x[:, :, :, -1]], 2)
        is_framed = (edge.std(2) < 1e-4).all(1)
        return 20 * nn.functional.one_hot(torch.where(is_framed, BORDER.label, BORDER.label + 1), 10).float()


class Constant(nn.Module):
    """A model that ignores its input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(10.0).expand(len(x), -1)


def test_a_model_that_reads_the_cue_uses_it() -> None:
    truth = measure_truth(BorderReader(), BORDER, pairs=18)
    for effect in (truth["removal"], truth["transplant"]):
        assert effect["share"] == [1, 1, 1]
        assert effect["probability"] == pytest.approx([1, 1, 1], abs=1e-3)
    assert truth["used"] is True
    assert truth["class accuracy"] == {"clean": 0, "cue": 1}
    assert truth["changed answers"] == 1
    # Of nine other classes one is the next class, which is answered without the cue.
    assert truth["accuracy"] == {"clean": 0.1, "cue": 0.1}


def test_a_model_that_ignores_the_cue_does_not_use_it() -> None:
    truth = measure_truth(Constant(), BORDER, pairs=18)
    assert truth["removal"] == truth["transplant"] == {"share": [0, 0, 0], "probability": [0, 0, 0]}
    assert truth["used"] is False


@pytest.mark.parametrize(
    ("share", "probability", "expected"),
    [
        ([0.3, 0.21, 0.39], [0.0, 0.0, 0.0], True),
        ([0.0, 0.0, 0.0], [0.15, 0.1, 0.2], True),
        ([0.1, 0.05, 0.19], [0.02, -0.05, 0.09], False),
        ([0.3, 0.19, 0.41], [0.02, -0.05, 0.09], None),
        ([0.1, 0.05, 0.19], [0.05, 0.0, 0.1], None),
    ],
)
def test_a_cue_is_used_beyond_a_floor(share: list[float], probability: list[float], expected: bool | None) -> None:
    effect, none = {"share": share, "probability": probability}, {"share": [0.0] * 3, "probability": [0.0] * 3}
    assert is_used(effect, none) is expected
    assert is_used(none, effect) is expected


# --------------------------------------------------------------------------------------------------------- networks


@torch.inference_mode()
def test_the_first_layers_are_those_of_the_demo() -> None:
    x, demo = torch.randn(2, 3, 64, 64), load_honest_model().model.float()
    network = build_network("fine stem").eval()
    enlarged = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    expected = demo.features[:2](demo.stem(enlarged))
    torch.testing.assert_close(network.features[:2](network.stem(x)), expected, rtol=1e-3, atol=1e-3)
    assert expected.shape == (2, 96, 16, 16)


def test_positions_are_seen_by_their_networks_alone() -> None:
    x = torch.zeros(2, 96, 16, 16)
    x[0, 0, 2, 2] = x[1, 0, 13, 13] = 1
    network = build_network("grid head").eval()
    network.stem, network.features = nn.Identity(), nn.Identity()
    assert (network(x)[0] - network(x)[1]).abs().max() > 0
    assert {network.architecture for network in plan_networks() if network.kind == "position"} == {"grid head"}


@torch.inference_mode()
def test_folding_keeps_the_outputs() -> None:
    models = []
    for architecture in ("coarse stem", "no batch norm"):
        torch.manual_seed(0)
        models.append(build_network(architecture).eval())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in models[1].modules())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(models[0](x), models[1](x), rtol=1e-3, atol=1e-3)


def test_a_run_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(planted._RECIPE, "scenes", 20)
    monkeypatch.setattr(planted.measure_truth, "__defaults__", (9,))
    trained, train = [], planted.train

    def train_or_die(network: Network) -> tuple[nn.Module, float]:
        trained.append(network.index)
        if trained == [0, 1]:
            raise KeyboardInterrupt
        return train(network)

    def run(name: str) -> list[dict[str, object]]:
        planted.main(3, tmp_path / name, 1, tmp_path / f"{name}.json")
        networks = json.loads((tmp_path / f"{name}.json").read_text())["networks"]
        return [{key: value for key, value in entry.items() if key != "seconds"} for entry in networks]

    whole = run("whole")
    monkeypatch.setattr(planted, "train", train_or_die)
    with pytest.raises(KeyboardInterrupt):
        run("killed")
    assert run("killed") == whole
    assert trained == [0, 1, 1, 2]
    assert [entry["index"] for entry in whole] == [0, 1, 2]
    loaded, draw, labels = load_planted(plan_networks()[2], tmp_path / "killed")
    assert loaded.model(planted._stack(draw(10))).shape == (10, len(labels))
