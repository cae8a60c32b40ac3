"""Sufficient and necessary regions: brute force, nets whose regions are known, properties, faults, and a real model."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_erosion
from torch import Tensor, nn

import camtool
from benchmarks.networks import HELD_OUT
from benchmarks.sufficient import PAGE, PASSES, RESULTS, write_tables
from camtool.demo.camnet import load_honest_model, prepare_images
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import CamtoolError
from camtool.explaining import refining
from camtool.hooks import chunks
from camtool.trust.metrics.faithfulness import compute_sufficient_area
from camtool.trust.metrics.removal import make_baseline
from camtool.trust.sufficiency import find_part
from tests.hooks.state.test_no_trace import unchanged

SUBSETS = np.array([*itertools.product([False, True], repeat=9)]).reshape(-1, 3, 3)


class Places(nn.Module):
    """Class 1 of two; its logit is 8 times a function of the pixels at some places, less 4."""

    def __init__(self, combine: Callable[[Tensor], Tensor], places: list[tuple[int, int]]) -> None:
        super().__init__()
        self.first, self.combine, self.places = nn.Conv2d(1, 1, 1).double(), combine, places
        nn.init.ones_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.first(x)[:, 0]
        logit = 8 * self.combine(torch.stack([pixels[:, row, column] for row, column in self.places], 1)) - 4
        return torch.stack([torch.zeros_like(logit), logit], 1)


def both() -> nn.Module:
    return Places(lambda pixels: pixels.amin(1), [(0, 1), (2, 2)])


def either() -> nn.Module:
    return Places(lambda pixels: pixels.amax(1), [(0, 1), (2, 2)])


def explain(net: nn.Module, x: Tensor | None = None, target: int = 1, **options: Any) -> camtool.Explanation:
    x = torch.ones(1, 1, 3, 3, dtype=torch.float64) if x is None else x
    return camtool.explain(net.eval(), x, [target], **options)[0]


def list_cells(cells: np.ndarray) -> list[tuple[int, int]]:
    return [(int(row), int(column)) for row, column in np.argwhere(cells)]


# ----------------------------------------------------------------------------------------------------- the search


@pytest.mark.parametrize("seed", range(20))
def test_the_part_of_a_monotone_function_is_one_of_its_smallest_ones_by_brute_force(seed: int) -> None:
    """The value is 1 if a part contains one of some sets of cells, else 0."""
    generator = np.random.default_rng(seed)
    sets = [generator.permutation(9) < generator.integers(1, 5) for _ in range(3)]

    def value(part: np.ndarray) -> float:
        return max(float(part.ravel()[one].all()) for one in sets)

    part, is_minimal, passes = find_part(
        lambda parts: np.array([value(part) for part in parts]), generator.random((3, 3)), 1, 200
    ) or pytest.fail("all cells together hold")
    holding = [subset for subset in SUBSETS if value(subset) >= 1]
    minimal = [
        one for one in holding if not any((one & ~other).any() and not (other & ~one).any() for other in holding)
    ]
    assert is_minimal
    assert any((part == one).all() for one in minimal)
    assert passes <= 200


@pytest.mark.parametrize("passes", [16, 20, 30, 60, 400])
def test_a_part_of_any_function_holds_and_is_minimal_if_it_says_so(passes: int) -> None:
    generator = np.random.default_rng(passes)
    weights, asked = generator.normal(size=(8, 8)) + 0.3, []

    def measure(parts: np.ndarray) -> np.ndarray:
        asked.extend(parts)
        return (parts * weights).sum((1, 2)) / weights.sum()

    found = find_part(measure, weights + generator.normal(size=(8, 8)), 0.9, passes)
    assert found is not None
    part, is_minimal, used = found
    assert used == len(asked) <= passes
    assert measure(part[None])[0] >= 0.9
    without_one = [part & (np.arange(64).reshape(8, 8) != cell) for cell in np.flatnonzero(part)]
    if is_minimal:
        assert (measure(np.stack(without_one)) < 0.9).all()
    assert is_minimal == (passes == 400)


def test_only_allowed_cells_are_used() -> None:
    allowed = np.zeros((4, 4), bool)
    allowed[2:] = True
    found = find_part(lambda parts: parts.mean((1, 2)), np.ones((4, 4)), 0.25, 100, allowed)
    assert found is not None
    assert found[0].sum() == 4
    assert not found[0][~allowed].any()
    assert find_part(lambda parts: parts.mean((1, 2)), np.ones((4, 4)), 0.6, 100, allowed) is None


def test_of_cells_that_cost_about_the_same_the_colder_ones_go() -> None:
    """The hot half costs 1 % less than the cold one; a search by costs alone would drop it."""
    hot = np.zeros((4, 4), bool)
    hot[:, :2] = True
    weights = np.where(hot, 0.99, 1.01) / 16
    found = find_part(lambda parts: (parts * weights).sum((1, 2)), np.where(hot, 3.0, -2.0), 0.49, 200)
    assert found is not None
    assert (found[0] == hot).all()
    # What costs much more stays, though it is cold.
    weights = np.where(hot, 0.3, 1.7) / 16
    found = find_part(lambda parts: (parts * weights).sum((1, 2)), np.where(hot, 3.0, -2.0), 0.84, 200)
    assert found is not None
    assert (found[0] == ~hot).all()


# ------------------------------------------------------------------------------------------------ nets that are known


def test_what_needs_both_places_has_one_region_of_both() -> None:
    region = explain(both()).sufficient(0.9, 100, fill="zero", regions=2)
    assert list_cells(region.cells) == [(0, 1), (2, 2)]
    assert region.others == ()
    assert region.is_minimal
    assert region.share == pytest.approx(2 / 9)
    assert (region.mask == region.cells).all()
    high, low = (1 / (1 + np.exp(-logit)) for logit in (4, -4))
    assert (region.score, region.score_alone, region.score_without) == pytest.approx((high, high, low), rel=1e-12)
    assert str(region) == (
        "22% of the photo alone, the rest at zero, gives 100% of the probability of 'class 1' (100% if in its mean "
        "color); without it 2% is left."
    )


def test_what_needs_either_place_has_two_disjoint_regions() -> None:
    region = explain(either()).sufficient(0.9, 200, fill="zero", regions=3)
    assert sorted(list_cells(region.cells) + list_cells(region.others[0].cells)) == [(0, 1), (2, 2)]
    assert len(region.others) == 1
    assert str(region).endswith("The same holds for 1 other part, of 11%.")


@pytest.mark.parametrize(("net", "count"), [(both, 1), (either, 2)])
def test_what_is_necessary_mirrors_what_is_sufficient(net: Callable[[], nn.Module], count: int) -> None:
    region = explain(net()).necessary(0.5, 100, fill="zero")
    assert set(list_cells(region.cells)) <= {(0, 1), (2, 2)}
    assert region.cells.sum() == count
    assert region.is_minimal
    assert region.score_without == pytest.approx(1 / (1 + np.exp(4)), rel=1e-12)
    assert str(region).startswith(f"Without {count * 11}% of the photo, at zero, 2% of the probability of 'class 1' is")


def test_a_claim_holds_for_each_fill() -> None:
    """The left half is enough if the rest is 0, and all but one corner if the rest has the mean color."""
    x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)).double() + 1
    weights = torch.linspace(-2, 1, 36, dtype=torch.float64).reshape(6, 6)

    class Sum(Places):
        def forward(self, x: Tensor) -> Tensor:
            total = (self.first(x)[:, 0] * weights).sum((1, 2))
            return torch.stack([total, torch.zeros_like(total)], 1)

    net = Sum(torch.amin, []).eval()
    region = explain(net, x, 1, method="rise", samples=20).sufficient(0.95, 400, fill=["zero", "mean"], cells=6)
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    whole = net(x).softmax(1)[0, 1]
    for fill, value in (("zero", torch.zeros_like(x)), ("mean", x.mean().expand_as(x))):
        kept = torch.from_numpy(region.cells)
        alone, without = (net(torch.where(part, x, value)).softmax(1)[0, 1] for part in (kept, ~kept))
        assert alone >= 0.95 * whole
        assert region.by_fill[fill] == pytest.approx((float(alone), float(without)), rel=1e-12)
    assert region.score_alone == min(alone for alone, _ in region.by_fill.values())
    assert region.score_without == max(without for _, without in region.by_fill.values())
    assert region.passes <= 400
    assert "the rest at zero or in its mean color" in str(region)
    functions = [lambda image: torch.zeros_like(image), lambda image: image.mean().expand_as(image)]  # of one name
    again = explain(net, x, 1, method="rise", samples=20).sufficient(0.95, 400, fill=functions, cells=6)
    assert again.by_fill == dict(zip(("<lambda>", "<lambda> 2"), region.by_fill.values(), strict=True))


@pytest.mark.parametrize(
    ("kind", "fill", "other", "said"),
    [
        ("sufficient", "zero", "mean", "in its mean color"),
        ("sufficient", "mean", "blur", "blurred"),
        ("necessary", "zero", "mean", "in its mean color"),
    ],
)
def test_a_claim_tells_what_another_fill_gives(kind: str, fill: str, other: str, said: str) -> None:
    """Cells that need each other are enough with a dark rest, and with its mean only as far as that differs."""
    net, x = both().eval(), torch.rand(1, 1, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    x[0, 0, 0, 1] = x[0, 0, 2, 2] = 1.0
    result = explain(net, x)
    region = getattr(result, kind)(0.8, 100, fill=fill)
    kept = torch.from_numpy(region.cells == (kind == "sufficient"))
    with torch.no_grad():
        expected = float(net(torch.where(kept, x, make_baseline(x, other))).softmax(1)[0, 1])
    assert region.other_fill == (other, pytest.approx(expected, rel=1e-12))
    assert f" ({expected / region.score:.0%} if {said})" in str(region)
    assert result.sufficient(0.9, 100, fill=["zero", "blur"]).other_fill is None


def test_nothing_is_needed_for_a_class_that_does_not_depend_on_the_photo() -> None:
    net = Places(lambda pixels: 0 * pixels.amax(1), [(0, 0)])
    region = explain(net, method="rise", samples=4).sufficient(1.0, 100)
    assert region.share == 0
    assert region.sentence.partition(" For")[0] == (
        "Nothing of the photo is needed: all of it blurred, 100% of the probability of 'class 1' is left (100% if in "
        "its mean color)."
    )
    with pytest.raises(CamtoolError, match=r"no part is necessary for 'class 1': .* 100% of its score is left"):
        explain(net, method="rise", samples=4).necessary(0.5, 100)


def test_another_answer_of_the_model_is_said() -> None:
    region = explain(both(), target=0).sufficient(0.9, 100, fill="zero")
    assert region.answer == "class 1"
    assert str(region).endswith("For the whole photo the model answers 'class 1', not 'class 0'.")


# --------------------------------------------------------------------------------------------------------- properties


@pytest.fixture(scope="module")
def scene() -> camtool.Explanation:
    image = prepare_images(draw_scene(UNSEEN + 3, size=128).image[None])
    return camtool.explain(load_honest_model().model, image)[0]


@pytest.fixture(scope="module")
def region(scene: camtool.Explanation) -> Any:
    return scene.sufficient(0.9, 120)


def test_a_real_model_confirms_the_claim(scene: camtool.Explanation, region: Any) -> None:
    from camtool.trust.metrics.removal import blur_images

    x = prepare_images(draw_scene(UNSEEN + 3, size=128).image[None])
    kept = torch.from_numpy(region.cells).repeat_interleave(8, 0).repeat_interleave(8, 1)
    with torch.no_grad():
        alone = load_honest_model().model(torch.where(kept, x, blur_images(x))).softmax(1)[0, scene.index]
    assert float(alone) == pytest.approx(region.score_alone, rel=1e-4)
    assert float(alone) >= 0.9 * scene.probability
    assert (region.mask == kept.numpy()).all()
    assert region.passes <= 120


@pytest.mark.parametrize("budget", [1, 2**22])
def test_the_size_of_batches_does_not_change_the_region(
    monkeypatch: pytest.MonkeyPatch, scene: camtool.Explanation, region: Any, budget: int
) -> None:
    monkeypatch.setitem(chunks._BUDGETS, "cpu", budget)
    assert (scene.sufficient(0.9, 120).cells == region.cells).all()


def test_the_search_leaves_no_trace() -> None:
    net = both().train()
    result = explain(net)
    net.train()
    with unchanged(net):
        result.sufficient(0.9, 60, regions=2)
        result.necessary(0.5, 60, fill="zero")


@pytest.mark.parametrize("passes", [20, 30, 60])
def test_few_passes_are_not_exceeded_and_said(scene: camtool.Explanation, passes: int) -> None:
    few = scene.sufficient(0.9, passes)
    assert few.passes <= passes
    assert few.score_alone >= 0.9 * few.score
    assert not few.is_minimal
    assert str(few).endswith("It may be smaller still: the passes did not suffice to try each cell.")


def test_an_engine_runs_the_search(monkeypatch: pytest.MonkeyPatch, region: Any) -> None:
    pytest.importorskip("onnxruntime")
    sizes, run_by_engines = [], refining.run_by_engines

    def spy(engines: Any, *arguments: Any) -> Any:
        observed = run_by_engines(engines, *arguments)
        sizes.append(len(observed.output))
        return observed

    monkeypatch.setattr(refining, "run_by_engines", spy)
    image = prepare_images(draw_scene(UNSEEN + 3, size=128).image[None])
    result = camtool.Explainer(load_honest_model().model, engine="onnxruntime")(image)[0]
    by_engine = result.sufficient(0.9, 120)
    assert sum(sizes) > 60
    assert (by_engine.cells == region.cells).all()


def test_the_overlay_fades_all_but_the_region(region: Any, tmp_path: Any) -> None:
    pixels, times = region.overlay(), region.view.enlargement
    mask = np.kron(region.mask, np.ones((times, times), bool))
    inside = binary_erosion(mask, np.ones((3, 3)), iterations=6)
    assert inside.any()
    assert (pixels[inside] == region.view.enlarge().photo[inside]).all()
    corner = pixels[0, 0] if not mask[:12, :12].any() else pixels[-1, -1]
    assert len({*corner.tolist()}) == 1
    assert region.save(tmp_path / "region.png").exists()


def test_a_region_is_pickled(region: Any) -> None:
    assert str(pickle.loads(pickle.dumps(region))) == str(region)


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "keep must be a finite number above 0 and at most 1, got 0"),
        ({"keep": 1.5}, "keep must be a finite number above 0 and at most 1, got 1.5"),
        ({"passes": 19}, "passes must be a whole number of 20 or more, got 19"),
        ({"passes": 60, "regions": 4}, "passes must be a whole number of 77 or more, got 60"),
        ({"passes": 10**9}, "passes must be at most 100,000, got 1000000000"),
        ({"fill": "blurr"}, "fill must be one of .* got 'blurr'. Did you mean 'blur'"),
        ({"fill": []}, "fill asks for nothing"),
        ({"cells": 1}, "cells must be a whole number of 2 or more, got 1"),
    ],
)
def test_what_does_not_fit_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CamtoolError, match=message):
        explain(both()).sufficient(**arguments)


def test_a_drop_of_all_is_refused() -> None:
    with pytest.raises(CamtoolError, match="drop must be a finite number above 0 and below 1, got 1"):
        explain(both()).necessary(1)


def test_results_without_a_model_or_a_photo_or_with_another_model_are_refused() -> None:
    net = both()
    result = explain(net)
    with pytest.raises(CamtoolError, match=r"was pickled, .* Call sufficient\(\) on what explain\(\) returned"):
        pickle.loads(pickle.dumps(result)).sufficient()
    signal = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 2)).eval()
    with pytest.raises(CamtoolError, match=r"necessary\(\) needs a photo, and this explanation is of a signal"):
        camtool.explain(signal, torch.ones(1, 1, 20), [0])[0].necessary()
    nn.init.constant_(net.first.weight, 3)
    with pytest.raises(CamtoolError, match="the model has changed"):
        result.sufficient()


def test_a_score_that_is_not_positive_is_refused() -> None:
    net = both()
    nn.init.constant_(net.first.weight, 0)
    result = camtool.explain(net, torch.ones(1, 1, 3, 3).double(), [camtool.targets.Contrast(1, [0])], method="rise")[0]
    with pytest.raises(CamtoolError, match="the score must be above 0 to keep a share of it, got -4"):
        result.sufficient()


# ------------------------------------------------------------------------------------------- the metric


def test_the_metric_is_the_share_of_the_hottest_cells_that_hold() -> None:
    """By hand: of 16 cells the first 5 of the map are needed, as the score is the share of them that is kept."""
    heat = torch.arange(16, 0, -1, dtype=torch.float64).reshape(1, 4, 4)
    images = torch.ones(2, 1, 4, 4, dtype=torch.float64)

    def score(variants: Tensor, rows: Tensor) -> Tensor:
        return (variants[:, 0].flatten(1)[:, :5].mean(1)).clamp_min(1e-3)

    maps = torch.cat([heat, heat.flip(1, 2)])
    values = compute_sufficient_area(score, images, maps, keep=0.9, removal="zero", cells=4)
    assert values.tolist() == [5 / 16, 1.0]
    assert compute_sufficient_area(score, images, maps, keep=0.9, removal="zero", cells=4, chunk=1).tolist() == [
        5 / 16,
        1,
    ]


def test_the_page_has_the_numbers_of_the_benchmark() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    assert write_tables(rows) in PAGE.read_text(encoding="utf-8")
    ours = {network: rows[f"{network}, {HELD_OUT}"] for network in ("mobilenet_v2", "squeezenet1_1")}
    for row in ours.values():
        for checks in row["checks"].values():
            assert checks["refuted"] == checks["not minimal after all"] == 0
        for name in ("gradcam", "rise", "scorecam", "random"):
            _, _, gain, error = row["area"][f"{name}, {PASSES[-1]}"]
            assert gain > 2 * error, name
    mean, *_ = ours["mobilenet_v2"]["area"]["sufficient(), 180"]
    assert mean <= 0.22
