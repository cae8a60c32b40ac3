"""Faithfulness, complexity and compound metrics against literal oracles and numbers computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from camtool.errors import MetricError
from camtool.hooks.fast_repeated_passes import FoldedModel
from camtool.trust.metrics import ClassScore, complexity, compound, faithfulness
from camtool.trust.metrics.correlation import correlate_pearson, correlate_spearman
from camtool.trust.metrics.removal import blur_images
from tests.oracles import metrics as oracles

N, SIDE = 3, 8


class Net(nn.Module):
    """A small nonlinear classifier in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)).relu().mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


IMAGES = torch.randn(N, 2, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
MAPS = torch.rand(N, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
CLASSES = torch.tensor([3, 0, 4])


def compare(values: Tensor, expected: list[float], tolerance: float = 1e-6) -> None:
    """The tolerance is that of a model whose batch norms are folded."""
    torch.testing.assert_close(values, torch.tensor(expected, dtype=values.dtype), rtol=0, atol=tolerance)


def score_one(net: nn.Module, kind: str, row: int) -> oracles.Score:
    """The score of one image as nested lists."""

    def score(x: list) -> float:
        with torch.no_grad():
            logits = net(torch.tensor(x, dtype=torch.float64)[None])
        return float((logits.softmax(1) if kind == "probability" else logits)[0, CLASSES[row]])

    return score


def each(net: nn.Module, kind: str, blank: Tensor) -> list[tuple]:
    return [(score_one(net, kind, i), IMAGES[i].tolist(), MAPS[i].tolist(), blank[i].tolist()) for i in range(N)]


@pytest.mark.parametrize("steps", [1, 8, 10])
def test_deletion_and_insertion_follow_the_paper(net: nn.Module, steps: int) -> None:
    score, blank = ClassScore(net, IMAGES, CLASSES), torch.zeros_like(IMAGES)
    mean = IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES)
    # 64 pixels in 10 steps are 7 or 6 each, of which the oracle's equal steps know nothing.
    if steps != 10:
        cases = each(net, "probability", blank)
        compare(
            faithfulness.compute_deletion(score, IMAGES, MAPS, steps=steps),
            [oracles.deletion(*case, steps) for case in cases],
        )
        compare(
            faithfulness.compute_insertion(score, IMAGES, MAPS, steps=steps, removal="mean"),
            [oracles.insertion(*case, steps) for case in each(net, "probability", mean)],
        )
    fractions, curve = faithfulness.compute_curve(score, IMAGES, MAPS, steps=steps)
    assert fractions[0] == 0
    assert fractions[-1] == 1
    for row, case in enumerate(each(net, "probability", blank)):
        compare(curve[row], oracles.curve(*case, steps))


def test_areas_of_steps_of_unequal_size_use_the_true_fractions() -> None:
    # 4 pixels in 3 steps: 2, 3 and 4 pixels are removed; the score is the number of pixels that are left.
    images, maps = torch.ones(1, 1, 2, 2), torch.tensor([[[4.0, 3.0], [2.0, 1.0]]])
    fractions, curve = faithfulness.compute_curve(lambda x, rows: x.sum((1, 2, 3)), images, maps, steps=3)
    assert fractions.tolist() == [0, 0.5, 0.75, 1]
    assert curve.tolist() == [[4, 2, 1, 0]]
    assert faithfulness.compute_deletion(lambda x, rows: x.sum((1, 2, 3)), images, maps, steps=3).tolist() == [2]


def test_road_follows_the_paper(net: nn.Module) -> None:
    values = faithfulness.compute_road(
        ClassScore(net, IMAGES, CLASSES), IMAGES, MAPS, fractions=[0.1, 0.5, 0.9], noise=0
    )
    cases = each(net, "probability", IMAGES)
    compare(values, [oracles.road(*case[:3], [0.1, 0.5, 0.9]) for case in cases])


def test_roads_noise_has_the_given_deviation_on_removed_pixels_only() -> None:
    seen = []

    def score(images: Tensor, rows: Tensor) -> Tensor:
        seen.append(images)
        return rows * 0.0

    images, maps = torch.ones(1, 3, 64, 64), torch.rand(1, 64, 64)
    faithfulness.compute_road(score, images, maps, fractions=[0.5], noise=0.1, seed=3)
    (variants,) = seen
    changed = variants != 1
    hot = maps[0] > maps[0].median()
    assert torch.equal(changed[0].all(0), hot)
    assert torch.equal(changed[1].all(0), ~hot)
    assert float((variants[0] - 1)[changed[0]].std()) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("removal", ["zero", "mean"])
def test_single_deletion_follows_the_paper(net: nn.Module, removal: str) -> None:
    blank = torch.zeros_like(IMAGES) if removal == "zero" else IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES)
    score = ClassScore(net, IMAGES, CLASSES, "logit")
    values = faithfulness.compute_single_deletion(score, IMAGES, MAPS, removal=removal)
    compare(values, [oracles.single_deletion(*case, 4) for case in each(net, "logit", blank)])


def test_cells_cover_an_image_that_they_do_not_divide() -> None:
    cells = faithfulness._make_cells(torch.zeros(1, 1, 9, 11), 4)
    assert cells.sum(0).eq(1).all()
    assert cells.flatten(1).sum(1).min() >= 4
    with pytest.raises(MetricError, match="cells=4 is more than the sides"):
        faithfulness.compute_single_deletion(lambda x, r: r * 0.0, torch.zeros(1, 1, 3, 9), torch.zeros(1, 3, 9))


def test_faithfulness_correlation_is_the_mean_of_the_papers_over_sizes_and_replacements(net: nn.Module) -> None:
    masks = faithfulness._draw_cell_masks(IMAGES, 5, seed=2)
    pixels = [[(i, j) for i, j in mask.nonzero().tolist()] for mask in masks]
    # Of 8 x 8 pixels in 7 x 7 cells, the first row and column of cells have two.
    assert [len({(i * 7 // 8, j * 7 // 8) for i, j in region}) for region in pixels] == [6] * 5 + [12] * 5 + [24] * 5
    score = ClassScore(net, IMAGES, CLASSES, "logit")
    values = faithfulness.compute_faithfulness_correlation(score, IMAGES, MAPS, masks=5, seed=2)
    fills = blur_images(IMAGES), IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES)
    expected = torch.tensor(
        [
            [oracles.faithfulness_correlation(*case, pixels[first : first + 5]) for case in each(net, "logit", fill)]
            for fill in fills
            for first in (0, 5, 10)
        ]
    )
    compare(values, expected.mean(0).tolist())
    assert not torch.allclose(expected[0], expected[3], atol=0.01)
    constant = faithfulness.compute_faithfulness_correlation(score, IMAGES, torch.ones_like(MAPS))
    assert constant.tolist() == [0, 0, 0]


def test_infidelity_follows_the_paper(net: nn.Module) -> None:
    blank = IMAGES.mean((2, 3), keepdim=True).expand_as(IMAGES)
    regions = faithfulness.draw_rectangles(IMAGES, 20, seed=0)
    assert {*regions.flatten(1).sum(1).tolist()} <= {a * b for a in range(1, 5) for b in range(1, 5)}
    places = [[(i, j) for i, j in region.nonzero().tolist()] for region in regions]
    values = faithfulness.compute_infidelity(
        ClassScore(net, IMAGES, CLASSES, "logit"), IMAGES, MAPS, samples=20, seed=0
    )
    expected = [oracles.infidelity(*case, places) for case in each(net, "logit", blank)]
    compare(values, expected)
    assert min(expected) < 0.999


def test_infidelity_is_1_if_nothing_changes_the_score() -> None:
    assert faithfulness.compute_infidelity(lambda x, rows: rows * 0.0, IMAGES, MAPS).tolist() == [1, 1, 1]


def test_drop_increase_and_gain_have_numbers_computed_by_hand() -> None:
    # The score is the mean of the image, the image is 0.5: dimmed by the map it is 0.25, and 0.7 with white instead.
    images, maps = torch.full((1, 1, 2, 2), 0.5), torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    pair = (lambda x, rows: x.mean((1, 2, 3)), images, maps)
    assert faithfulness.compute_average_drop(*pair).tolist() == [0.5]
    assert faithfulness.compute_increase(*pair).tolist() == [0]
    assert faithfulness.compute_average_gain(*pair).tolist() == [0]
    assert faithfulness.compute_average_drop(*pair, removal=torch.ones_like).tolist() == [0]
    assert faithfulness.compute_increase(*pair, removal=torch.ones_like).tolist() == [1]
    assert faithfulness.compute_average_gain(*pair, removal=torch.ones_like).tolist() == [0.5]


def test_gain_of_a_certain_model_is_0_and_of_logits_an_error() -> None:
    images, maps = torch.full((1, 1, 2, 2), 1.0), torch.ones(1, 2, 2)
    assert faithfulness.compute_average_gain(lambda x, rows: x.mean((1, 2, 3)), images, maps).tolist() == [0]
    with pytest.raises(MetricError, match="average-gain needs probabilities"):
        faithfulness.compute_average_gain(lambda x, rows: 3 * x.mean((1, 2, 3)), images, maps)


def test_max_sensitivity_of_a_map_that_doubles_a_noise() -> None:
    images = torch.rand(2, 3, 8, 8)
    maps = images.mean(1)
    values = faithfulness.compute_max_sensitivity(lambda x, rows: x.mean(1), images, maps, samples=40, radius=0.1)
    doubled = faithfulness.compute_max_sensitivity(lambda x, rows: x.mean(1), images, maps, samples=40, radius=0.2)
    torch.testing.assert_close(doubled, 2 * values)
    fewer = faithfulness.compute_max_sensitivity(lambda x, rows: x.mean(1), images, maps, samples=4, radius=0.1)
    assert (fewer <= values).all()
    assert (values > 0).all()


def test_max_sensitivity_of_zeros() -> None:
    images, zeros = torch.rand(1, 3, 8, 8), torch.zeros(1, 8, 8)
    assert faithfulness.compute_max_sensitivity(lambda x, rows: zeros, images, zeros).tolist() == [0]
    assert faithfulness.compute_max_sensitivity(lambda x, rows: x.mean(1), images, zeros).isnan().all()


def test_a_constant_map_has_no_rank_correlation() -> None:
    images = torch.rand(1, 3, 8, 8)
    values = faithfulness.compute_single_deletion(lambda x, r: x.square().sum((1, 2, 3)), images, torch.ones(1, 8, 8))
    assert values.tolist() == [0]


# ------------------------------------------------------------------------------------------ complexity and compounds


def test_entropy_and_sparsity_follow_the_papers() -> None:
    compare(complexity.compute_entropy(MAPS), [oracles.entropy(heat) for heat in MAPS.tolist()], 1e-12)
    compare(complexity.compute_sparsity(MAPS), [oracles.gini(heat) for heat in MAPS.tolist()], 1e-12)


def test_entropy_and_sparsity_of_one_pixel_and_of_constant_maps() -> None:
    maps = torch.zeros(3, 4, 5)
    maps[0, 2, 2], maps[1] = 7, 3
    torch.testing.assert_close(complexity.compute_entropy(maps), torch.tensor([0.0, 1.0, 1.0]))
    torch.testing.assert_close(complexity.compute_sparsity(maps), torch.tensor([0.95, 0.0, 0.0]))


def test_coherency_follows_the_paper_and_dims_the_image() -> None:
    seen = []

    def explain(images: Tensor, rows: Tensor) -> Tensor:
        seen.append(images)
        return MAPS.flip(2)

    values = compound.compute_coherency(explain, IMAGES, MAPS)
    assert torch.equal(seen[0], IMAGES * MAPS[:, None])
    expected = [oracles.coherency(*pair) for pair in zip(MAPS.tolist(), MAPS.flip(2).tolist(), strict=True)]
    compare(values, expected, 1e-12)


def test_compounds_are_harmonic_means_and_0_if_a_term_is() -> None:
    # Coherency 1, mean heat 1/4, average drop 3/4: 3 / (1 + 4/3 + 4).
    images, maps = torch.ones(2, 1, 2, 2), torch.zeros(2, 2, 2)
    maps[:, 0, 0] = 1

    def score(x: Tensor, rows: Tensor) -> Tensor:
        return x.mean((1, 2, 3)) * (rows == 0) + (x.mean((1, 2, 3)) == 1) * (rows == 1)

    values = compound.compute_adcc(score, lambda x, rows: maps, images, maps)
    torch.testing.assert_close(values, torch.tensor([9 / 19, 0.0]))
    arcc = compound.compute_arcc(lambda x, rows: 0.0 * rows, lambda x, rows: maps, images, maps)
    assert arcc.tolist() == [0, 0]


# ------------------------------------------------------------------------------------------------------ correlations


def test_correlations_follow_their_definitions_with_ties() -> None:
    one, two = torch.randint(0, 6, (2, 4, 30), generator=torch.Generator().manual_seed(0)).double()
    for row in range(4):
        pair = one[row].tolist(), two[row].tolist()
        assert float(correlate_spearman(one, two)[row]) == pytest.approx(oracles.spearman(*pair), abs=1e-12)
        assert float(correlate_pearson(one, two)[row]) == pytest.approx(oracles.pearson(*pair), abs=1e-12)


def test_correlations_of_constants_are_0_and_of_large_values_finite() -> None:
    values = torch.rand(1, 50)
    assert correlate_pearson(values, torch.full((1, 50), 0.1)).tolist() == [0]
    assert correlate_spearman(torch.zeros(1, 50), values).tolist() == [0]
    torch.testing.assert_close(correlate_pearson(1e30 * values, -1e-30 * values), torch.tensor([-1.0]))


# ----------------------------------------------------------------------------------------------------- class scores


def test_a_class_score_leaves_the_model_as_it_was(net: nn.Module) -> None:
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    score = ClassScore(net, IMAGES, CLASSES)
    values = score(IMAGES, torch.arange(N))
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not values.requires_grad
    assert score.chunk_size >= 1


def test_a_class_score_picks_the_class_of_the_row(net: nn.Module) -> None:
    with torch.no_grad():
        logits = net(IMAGES)
    rows = torch.tensor([2, 0, 2])
    values = ClassScore(net, IMAGES, CLASSES, "logit")(IMAGES, rows)
    torch.testing.assert_close(values, logits[torch.arange(N), CLASSES[rows]])
    one = ClassScore(net, IMAGES, 1)(IMAGES, rows)
    torch.testing.assert_close(one, logits.softmax(1)[:, 1])
    multi_label = ClassScore(FoldedModel(net, IMAGES[:1]), IMAGES, 1, link="sigmoid")(IMAGES, rows)
    torch.testing.assert_close(multi_label, logits[:, 1].sigmoid())


def test_wrong_class_scores_are_errors(net: nn.Module) -> None:
    with pytest.raises(MetricError, match=r"classes has shape \(2,\); it must be one per image, \(3,\)"):
        ClassScore(net, IMAGES, [1, 2])
    with pytest.raises(MetricError, match="kind must be one of"):
        ClassScore(net, IMAGES, 1, "logits")  # type: ignore[arg-type]
    with pytest.raises(MetricError, match=r"needs a classifier; the model's scores have the shape \(3, 3, 8, 8\)"):
        ClassScore(nn.Conv2d(2, 3, 1).double(), IMAGES, 1)(IMAGES, torch.arange(N))


@pytest.mark.parametrize("insert", [False, True])
@pytest.mark.parametrize("removal", ["mean", "inpaint"])
def test_a_curve_that_is_computed_in_parts_is_the_whole_curve(net: nn.Module, removal: str, insert: bool) -> None:
    image, maps = IMAGES[:1], MAPS[:1]
    score = ClassScore(net, image, CLASSES[:1])
    options = {"steps": 7, "removal": removal, "insert": insert, "seed": 3}
    fractions, scores = faithfulness.compute_curve(score, image, maps, **options)
    parts = [*faithfulness.iterate_curve(score, image, maps, **options, chunk=3)]
    assert [len(part[0]) for part in parts] == [3, 6, 8]
    for some_fractions, some_scores in parts:
        torch.testing.assert_close(some_fractions, fractions[: len(some_fractions)])
        torch.testing.assert_close(some_scores, scores[:, : len(some_fractions)])


def test_a_curve_in_parts_takes_one_image(net: nn.Module) -> None:
    score = ClassScore(net, IMAGES, CLASSES)
    with pytest.raises(MetricError, match="takes one image; got 3"):
        next(faithfulness.iterate_curve(score, IMAGES, MAPS))
    with pytest.raises(MetricError, match="chunk"):
        next(faithfulness.iterate_curve(score, IMAGES[:1], MAPS[:1], chunk=0))
