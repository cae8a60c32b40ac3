"""Ways to remove pixels, and imputation against a dense system of equations in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from camtool.errors import MetricError
from camtool.trust.metrics.metric_registry import draw_random_maps, rank_pixels
from camtool.trust.metrics.removal import BASELINES, REMOVALS, blur_images, impute_linear, make_baseline, start_removal
from tests.oracles import metrics as oracles


def draw_image(height: int = 9, width: int = 12) -> Tensor:
    return torch.randn(1, 2, height, width, dtype=torch.float64)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("grid", [None, 3])
def test_imputation_solves_the_equations_of_the_paper(share: float, grid: int | None) -> None:
    x = draw_image()
    removed = (rank_pixels(draw_random_maps(x, seed=0, grid=grid)) < share * 108).reshape(1, 9, 12)
    places = [(i, j) for i, j in removed[0].nonzero().tolist()]
    expected = torch.tensor(oracles.impute(x[0].tolist(), places), dtype=torch.float64)
    torch.testing.assert_close(impute_linear(x, removed)[0], expected, rtol=0, atol=1e-6)


def test_small_regions_at_each_edge_solve_the_same_equations() -> None:
    """They are solved in windows, which end where the image does."""
    corners = [(0, 0), (7, 9), (0, 9), (3, 5), (7, 0), (8, 11)]
    x = torch.cat([draw_image() for _ in corners])
    removed = torch.zeros(len(corners), 9, 12, dtype=torch.bool)
    for row, (top, left) in enumerate(corners):
        removed[row, top : top + 2, left : left + 3] = True
    removed[3] |= torch.roll(removed[3], (4, 5), (0, 1))  # around the edges
    filled = impute_linear(x, removed)
    for row in range(len(corners)):
        places = [(i, j) for i, j in removed[row].nonzero().tolist()]
        expected = torch.tensor(oracles.impute(x[row].tolist(), places), dtype=torch.float64)
        torch.testing.assert_close(filled[row], expected, rtol=0, atol=1e-6)


def test_imputed_images_do_not_depend_on_the_others_in_the_batch() -> None:
    x = torch.cat([draw_image(), 100 * draw_image(), torch.zeros(1, 2, 9, 12, dtype=torch.float64)])
    removed = (rank_pixels(draw_random_maps(x, seed=0)) < torch.tensor([[10], [80], [108]])).reshape(3, 9, 12)
    together = impute_linear(x, removed)
    for i in range(3):
        torch.testing.assert_close(impute_linear(x[i : i + 1], removed[i : i + 1])[0], together[i], rtol=0, atol=1e-5)


def test_a_linear_ramp_is_imputed_exactly_and_known_pixels_stay() -> None:
    x = torch.arange(12.0).expand(1, 1, 9, 12).clone()
    removed = torch.zeros(1, 9, 12, dtype=torch.bool)
    removed[0, 2:7, 3:9] = True
    x[0, 0, 4, 4] = 1e6  # a removed value is not looked at
    filled = impute_linear(x, removed)
    torch.testing.assert_close(filled[0, 0, 2:7, 3:9], torch.arange(3.0, 9).expand(5, 6), atol=1e-4, rtol=0)
    assert torch.equal(filled[0, 0][~removed[0]], x[0, 0][~removed[0]])


def test_an_image_without_known_pixels_gets_its_mean_color() -> None:
    x = draw_image()
    filled = impute_linear(x, torch.ones(1, 9, 12, dtype=torch.bool))
    torch.testing.assert_close(filled, x.mean((2, 3), keepdim=True).expand_as(x))


def test_half_precision_images_stay_half_precision() -> None:
    x = draw_image().half()
    removed = torch.zeros(1, 9, 12, dtype=torch.bool)
    removed[0, 3, 3] = True
    assert impute_linear(x, removed).dtype == torch.float16


@pytest.mark.parametrize("removal", REMOVALS)
def test_only_removed_pixels_change(removal: str) -> None:
    x = torch.cat([draw_image(), draw_image()])
    removed = torch.zeros(3, 9, 12, dtype=torch.bool)
    removed[1, 2:5, 2:5] = True
    removed[2] = True
    filled = start_removal(x, removal)(torch.tensor([1, 0, 1]), removed)
    assert torch.equal(filled[0], x[1])
    assert torch.equal(filled[1][:, ~removed[1]], x[0][:, ~removed[1]])
    assert not torch.isclose(filled[1][:, removed[1]], x[0][:, removed[1]]).any()
    if removal in BASELINES:
        assert torch.equal(filled[2], BASELINES[removal](x)[1])


def test_baselines_have_the_numbers_that_they_promise() -> None:
    x = draw_image()
    assert make_baseline(x, "zero").eq(0).all()
    torch.testing.assert_close(make_baseline(x, "mean")[0, 1, 4, 4], x[0, 1].mean())
    assert torch.equal(make_baseline(x, lambda images: images + 1), x + 1)


def test_blur_is_the_gaussian_of_torchvision_away_from_the_border() -> None:
    from torchvision.transforms.functional import gaussian_blur

    x = torch.randn(2, 3, 112, 150, dtype=torch.float64)
    blurred = blur_images(x)
    expected = gaussian_blur(x, [31, 31], [5.0, 5.0])
    torch.testing.assert_close(blurred[..., 15:-15, 15:-15], expected[..., 15:-15, 15:-15])
    torch.testing.assert_close(blur_images(torch.ones(1, 1, 20, 30)), torch.ones(1, 1, 20, 30))


def test_wrong_removals_are_errors() -> None:
    x = draw_image()
    with pytest.raises(MetricError, match=r"removal must be one of 'blur', 'mean', 'zero', 'inpaint', got 'zeros'"):
        start_removal(x, "zeros")
    with pytest.raises(MetricError, match=r"removal must be one of 'blur', 'mean', 'zero', got 'inpaint'"):
        make_baseline(x, "inpaint")
    with pytest.raises(MetricError, match=r"must have the shape of the images, \(1, 2, 9, 12\); got \(2, 9, 12\)"):
        start_removal(x, lambda images: images[0])
