"""Metrics equal those of torchcam, grad-cam, captum and Quantus, to 1e-4, or differ from them by a known relation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from camtool.trust.metrics import ClassScore, complexity, faithfulness, localization, sanity
from camtool.trust.metrics.removal import blur_images, impute_linear

N, SIDE, CLASSES = 4, 20, [1, 0, 2, 1]
SHARPNESS = 5


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


IMAGES = 2 * draw(N, 3, SIDE, SIDE) - 0.5


class FixedLinear(nn.Linear):
    """A linear layer whose random parameters are the same in every library."""

    def reset_parameters(self) -> None:
        draw_parameters(self)


class FixedConvolution(nn.Conv2d):
    """A convolution whose random parameters are the same in every library."""

    def reset_parameters(self) -> None:
        draw_parameters(self)


def draw_parameters(layer: nn.Module) -> None:
    generator = torch.Generator().manual_seed(layer.weight.numel())
    with torch.no_grad():
        for parameter in (layer.weight, layer.bias):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


class Net(nn.Module):
    """A small classifier of images with any number of channels, with a map of each class."""

    def __init__(self, channels: int = 3, classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = FixedConvolution(channels, 6, 3, padding=1)
        self.second = FixedConvolution(6, 6, 3, padding=1)
        self.head = FixedLinear(6, classes)
        # reset_parameters() would not change the values that it gave before.
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.7)
        # Without this one class would be certain.
        with torch.no_grad():
            self.head.bias -= self(IMAGES[:, :channels]).mean(0)
        self.eval()

    def activate(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(SHARPNESS * self.activate(x).mean((2, 3)))

    def explain(self, x: Tensor, classes: Tensor) -> Tensor:
        """Return CAM: the activations weighted by the class's weights."""
        with torch.no_grad():
            return (self.activate(x) * self.head.weight[classes][:, :, None, None]).sum(1)


class GivenMaps:
    """An extractor of torchcam that returns given maps."""

    def __init__(self, model: nn.Module, maps: Tensor) -> None:
        self.model, self.maps = model, maps

    def __call__(self, class_idx: Any, scores: Tensor) -> list[Tensor]:
        return [self.maps]

    def fuse_cams(self, cams: list[Tensor]) -> Tensor:
        return cams[0]

    def _hooks_off(self) -> nullcontext[None]:
        return nullcontext()


NET = Net()
MAPS = draw(N, SIDE, SIDE, seed=2)
MASKS = draw(N, SIDE, SIDE, seed=3) > 0.7
PROBABILITY = ClassScore(NET, IMAGES, CLASSES)
LOGIT = ClassScore(NET, IMAGES, CLASSES, kind="logit")
ROWS = torch.arange(N)


def compare(ours: Tensor, theirs: Any) -> None:
    torch.testing.assert_close(ours.double(), torch.as_tensor(np.asarray(theirs)).double(), rtol=1e-4, atol=1e-4)


def softmax(outputs: Tensor) -> Tensor:
    return outputs.softmax(-1)


@contextmanager
def warnings_of_peers() -> Iterator[None]:
    """Let peers warn, e.g. of deprecated functions of numpy and torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -------------------------------------------------------------------------------------------------------- torchcam


def run_torchcam(kind: str, **options: Any) -> dict[str, float]:
    metrics = pytest.importorskip("torchcam.metrics", reason="torchcam is not installed: pip install 'camtool[dev]'")
    metric = getattr(metrics, kind)(GivenMaps(NET, MAPS), softmax, **options)
    metric.update(IMAGES, CLASSES)
    return metric.summary()


def test_average_drop_and_increase_equal_torchcams() -> None:
    found = run_torchcam("ClassificationMetric")
    increase = faithfulness.compute_increase(PROBABILITY, IMAGES, MAPS)
    assert 0 < increase.mean() < 1, "proves nothing"
    compare(faithfulness.compute_average_drop(PROBABILITY, IMAGES, MAPS).mean(), found["avg_drop"])
    compare(increase.mean(), found["conf_increase"])


@pytest.mark.parametrize("removal", ["zero", "blur"])
@pytest.mark.parametrize("steps", [1, 20, 400])
def test_deletion_and_insertion_equal_torchcams(removal: str, steps: int) -> None:
    found = run_torchcam("DeletionInsertionMetric", steps=steps, baseline={"zero": None, "blur": blur_images}[removal])
    options = {"steps": steps, "removal": removal}
    compare(faithfulness.compute_deletion(PROBABILITY, IMAGES, MAPS, **options).mean(), found["deletion_auc"])
    compare(faithfulness.compute_insertion(PROBABILITY, IMAGES, MAPS, **options).mean(), found["insertion_auc"])


def test_torchcams_last_step_is_shorter_where_the_steps_do_not_divide_the_pixels() -> None:
    """400 pixels in 7 steps: torchcam removes 58 in each and 52 in the last one, camtool 57 or 58 in each."""
    found = run_torchcam("DeletionInsertionMetric", steps=7)
    curve = faithfulness.compute_curve(PROBABILITY, IMAGES, MAPS, steps=400)[1]
    counts = torch.tensor([0, 58, 116, 174, 232, 290, 348, 400])
    compare(torch.trapezoid(curve[:, counts], counts / 400, dim=1).mean(), found["deletion_auc"])


# -------------------------------------------------------------------------------------------------------- grad-cam


def run_grad_cam(module: str, kind: str, **options: Any) -> np.ndarray:
    pytest.importorskip("pytorch_grad_cam", reason="grad-cam is not installed: pip install 'camtool[dev]'")
    metrics = pytest.importorskip(f"pytorch_grad_cam.metrics.{module}")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    wanted = [targets.ClassifierOutputSoftmaxTarget(each) for each in CLASSES]
    with warnings_of_peers():
        return getattr(metrics, kind)(**options)(IMAGES, MAPS.numpy(), wanted, NET)


def test_average_drop_is_grad_cams_drop_divided_by_the_score() -> None:
    """grad-cam's DropInConfidence is the difference; Grad-CAM++ (arXiv 1710.11063) divides it by the score."""
    scores = PROBABILITY(IMAGES, ROWS)
    drop = run_grad_cam("cam_mult_image", "DropInConfidence")
    assert drop.max() > 0.01
    compare(faithfulness.compute_average_drop(PROBABILITY, IMAGES, MAPS) * scores, drop)


def test_increase_and_average_gain_equal_grad_cams() -> None:
    compare(
        faithfulness.compute_increase(PROBABILITY, IMAGES, MAPS),
        run_grad_cam("cam_mult_image", "IncreaseInConfidence"),
    )
    # grad-cam has the difference, the numerator of the average gain of Opti-CAM.
    change = run_grad_cam("cam_mult_image", "CamMultImageConfidenceChange")
    assert change.max() > 0.01
    missing = 1 - PROBABILITY(IMAGES, ROWS)
    compare(faithfulness.compute_average_gain(PROBABILITY, IMAGES, MAPS) * missing, change.clip(0))


def test_road_equals_grad_cams_without_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of grad-cam has no seed. It removes the same pixels where a tenth of the pixels is an integer."""
    road = pytest.importorskip("pytorch_grad_cam.metrics.road")
    monkeypatch.setattr(road.NoisyLinearImputer.__init__, "__defaults__", (0.0, road.neighbors_weights))
    theirs = run_grad_cam("road", "ROADCombined")
    assert np.abs(theirs).max() > 0.001
    compare(1000 * faithfulness.compute_road(PROBABILITY, IMAGES, MAPS, noise=0), 1000 * theirs)
    # At the percentile of 80 grad-cam removes the 20 percent above it.
    one = run_grad_cam("road", "ROADCombined", percentiles=[80])
    compare(faithfulness.compute_road(PROBABILITY, IMAGES, MAPS, noise=0, fractions=[0.2]), one)


def test_imputation_equals_grad_cams() -> None:
    road = pytest.importorskip("pytorch_grad_cam.metrics.road")
    with warnings_of_peers():
        theirs = [road.NoisyLinearImputer(noise=0)(x, (~m).float()) for x, m in zip(IMAGES, MASKS, strict=True)]
    compare(impute_linear(IMAGES, MASKS), torch.stack(theirs))


# ---------------------------------------------------------------------------------------------------------- captum


def run_captum_infidelity(maps: Tensor, regions: Tensor, *, normalize: bool) -> Tensor:
    captum = pytest.importorskip("captum.metrics", reason="captum is not installed: pip install 'camtool[test]'")

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        removed = regions.repeat(N, 1, 1)[:, None].expand_as(inputs)
        return removed.float(), inputs * ~removed

    # The heat of a pixel is shared by its channels.
    heat = maps[:, None].expand_as(IMAGES) / IMAGES.shape[1]
    with warnings_of_peers():
        return captum.infidelity(
            NET, perturb, IMAGES, heat, target=CLASSES, n_perturb_samples=len(regions), normalize=normalize
        )


def measure_drops(regions: Tensor) -> Tensor:
    with torch.no_grad():
        after = torch.stack([NET(IMAGES * ~each) for each in regions], 1)
        return NET(IMAGES)[ROWS, CLASSES][:, None] - after[ROWS, :, CLASSES]


def test_infidelity_is_captums_divided_by_the_mean_squared_drop() -> None:
    """captum's number has the unit of the squared logit; ours is the unexplained share of the drops."""
    regions = faithfulness.draw_rectangles(IMAGES, 32, seed=0)
    drops = measure_drops(regions)
    slopes = (MAPS.flatten(1) @ regions.flatten(1).T.float() * drops).sum(1)
    assert len({bool(each > 0) for each in slopes}) == 2, "both signs are tested"
    ours = faithfulness.compute_infidelity(LOGIT, IMAGES, MAPS, samples=32, removal="zero")
    theirs = run_captum_infidelity(MAPS, regions, normalize=True) / (drops**2).mean(1)
    compare(ours[slopes > 0], theirs[slopes > 0])
    # captum lets the scale be negative: a map that is hot where the score rises without the pixels is then good.
    compare(ours[slopes < 0], torch.ones(N)[slopes < 0])
    assert (theirs[slopes < 0] < 0.999).all()
    # Without normalize captum takes the heat as it is, so the unit of the map counts.
    assert not torch.allclose(run_captum_infidelity(MAPS, regions, normalize=False) / (drops**2).mean(1), theirs)


def test_max_sensitivity_equals_captums_on_the_same_noise() -> None:
    """Only the noise differs: captum's has the radius 0.02 itself, ours 0.02 of the range of each image."""
    captum = pytest.importorskip("captum.metrics", reason="captum is not installed: pip install 'camtool[test]'")
    noisy, ours = record_sensitivity(NET, IMAGES, CLASSES)
    noise = (torch.stack(noisy) - IMAGES).abs().amax((0, 2, 3, 4))
    torch.testing.assert_close(noise, 0.02 * (IMAGES.amax((1, 2, 3)) - IMAGES.amin((1, 2, 3))), rtol=0.01, atol=0)

    def explain(inputs: Any) -> Any:
        x = inputs[0] if isinstance(inputs, tuple) else inputs
        maps = NET.explain(x, torch.tensor(CLASSES).repeat_interleave(len(x) // N))
        return (maps,) if isinstance(inputs, tuple) else maps

    with warnings_of_peers():
        theirs = captum.sensitivity_max(
            explain, IMAGES, lambda inputs: torch.stack(noisy, 1).flatten(0, 1), n_perturb_samples=len(noisy)
        )
    compare(ours, theirs)


def test_max_sensitivity_of_zeros_has_no_value_but_captum_divides_by_1() -> None:
    captum = pytest.importorskip("captum.metrics", reason="captum is not installed: pip install 'camtool[test]'")
    zeros = torch.zeros(N, SIDE, SIDE)

    def explain(inputs: Any) -> Any:
        return (zeros,) if isinstance(inputs, tuple) else zeros + 1

    with warnings_of_peers():
        theirs = captum.sensitivity_max(explain, IMAGES, lambda inputs: inputs, n_perturb_samples=1)
    compare(torch.full((N,), float(SIDE)), theirs)
    assert faithfulness.compute_max_sensitivity(lambda x, rows: zeros + 1, IMAGES, zeros).isnan().all()


def record_sensitivity(net: Net, images: Tensor, classes: list[int]) -> tuple[list[Tensor], Tensor]:
    """Return the noisy images of max-sensitivity, and its value."""
    noisy, wanted = [], torch.tensor(classes)

    def explain(x: Tensor, rows: Tensor) -> Tensor:
        noisy.append(x)
        return net.explain(x, wanted[rows])

    values = faithfulness.compute_max_sensitivity(explain, images, net.explain(images, wanted), samples=5)
    return noisy, values


# --------------------------------------------------------------------------------------------------------- Quantus


@pytest.fixture
def quantus() -> Any:
    with warnings_of_peers():
        return pytest.importorskip("quantus", reason="Quantus is not installed: pip install 'camtool[dev]'")


def run_quantus(metric: Callable[..., Any], maps: Tensor | None, *, net: Net = NET, images: Tensor = IMAGES,
                classes: list[int] = CLASSES, masks: Tensor | None = None, **how: Any) -> Any:  # fmt: skip
    """Return a metric of Quantus, which gets copies because it writes to its arguments."""
    with warnings_of_peers():
        return metric(
            model=net,
            x_batch=images.numpy().copy(),
            y_batch=np.array(classes),
            a_batch=None if maps is None else maps[:, None].numpy().copy(),
            s_batch=None if masks is None else masks[:, None].numpy().copy(),
            device="cpu",
            channel_first=True,
            **how,
        )


QUIET = {"disable_warnings": True, "display_progressbar": False}


def test_sparsity_equals_quantus_sparseness(quantus: Any) -> None:
    compare(complexity.compute_sparsity(MAPS), run_quantus(quantus.Sparseness(**QUIET), MAPS))


def test_entropy_is_quantus_complexity_divided_by_the_logarithm_of_the_number_of_pixels(quantus: Any) -> None:
    theirs = run_quantus(quantus.Complexity(**QUIET), MAPS)
    compare(complexity.compute_entropy(MAPS), np.array(theirs) / math.log(SIDE * SIDE))


def test_energy_in_mask_equals_two_metrics_of_quantus(quantus: Any) -> None:
    ours = localization.compute_energy(MAPS, MASKS)
    for kind in (quantus.RelevanceMassAccuracy, quantus.AttributionLocalisation):
        compare(ours, run_quantus(kind(**QUIET), MAPS, masks=MASKS))


def test_pointing_game_equals_quantus(quantus: Any) -> None:
    ours = localization.compute_pointing(MAPS, MASKS)
    assert 0 < ours.mean() < 1, "proves nothing"
    compare(ours, run_quantus(quantus.PointingGame(**QUIET), MAPS, masks=MASKS))


def test_in_quantus_pointing_game_one_of_several_hottest_pixels_is_enough(quantus: Any) -> None:
    """Here the share of them that are hits counts, so that a constant map has the chance level."""
    maps, masks = MAPS.clone(), torch.zeros_like(MASKS)
    masks[:, 2, 3] = True
    maps[:, 2, 3] = maps[:, 9, 9] = 2
    compare(torch.ones(N), run_quantus(quantus.PointingGame(**QUIET), maps, masks=masks))
    compare(localization.compute_pointing(maps, masks), torch.full((N,), 0.5))


def test_max_sensitivity_equals_quantus_on_the_same_noise(quantus: Any) -> None:
    noisy, ours = record_sensitivity(NET, IMAGES, CLASSES)
    left = iter(noisy)
    metric = quantus.MaxSensitivity(
        nr_samples=len(noisy),
        perturb_func=lambda arr, indices, **_: next(left).flatten(1).numpy(),
        return_nan_when_prediction_changes=False,
        **{"abs": False, "normalise": False, **QUIET},
    )
    maps = NET.explain(IMAGES, torch.tensor(CLASSES))
    compare(ours, run_quantus(metric, maps, explain_func=explain_for_quantus))


def explain_for_quantus(model: Net, inputs: Any, targets: Any, **_: Any) -> np.ndarray:
    return model.explain(torch.as_tensor(inputs), torch.as_tensor(targets))[:, None].numpy()


@pytest.mark.parametrize(("order", "is_cumulative"), [("top_down", True), ("independent", False)])
def test_randomization_equals_quantus_layer_by_layer(quantus: Any, order: str, is_cumulative: bool) -> None:
    """Each library draws its own parameters, so the layers here have a ``reset_parameters`` without randomness."""
    net, classes = Net(), torch.tensor(CLASSES)
    maps = net.explain(IMAGES, classes)
    ours = sanity.compare_randomized(
        net, lambda x, rows: net.explain(x, classes[rows]), IMAGES, maps, is_cumulative=is_cumulative
    )
    metric = quantus.MPRT(layer_order=order, abs=False, normalise=False, **QUIET)
    theirs = run_quantus(metric, maps, net=net, explain_func=explain_for_quantus)
    assert float(ours.std(0).min()) > 1e-3
    steps = np.stack([theirs[name] for name in ("head", "second", "first")], 1)
    compare(ours, steps)
    kind = "cascading" if is_cumulative else "independent"
    compute = getattr(sanity, f"compute_{kind}_randomization")
    mean = compute(net, lambda x, rows: net.explain(x, classes[rows]), IMAGES, maps, groups=None)
    compare(mean, np.abs(steps).mean(1))


def test_class_sensitivity_equals_quantus_random_logit(quantus: Any) -> None:
    """Of two classes the random other one is known. Quantus compares by SSIM unless it is told otherwise."""
    net, classes = Net(classes=2), [1, 0, 0, 1]
    maps, others = (net.explain(IMAGES, each) for each in (torch.tensor(classes), 1 - torch.tensor(classes)))
    metric = quantus.RandomLogit(
        num_classes=2,
        similarity_func=quantus.similarity_func.correlation_pearson,
        **{"abs": False, "normalise": False, **QUIET},
    )
    theirs = run_quantus(metric, maps, net=net, classes=classes, explain_func=explain_for_quantus)
    compare(sanity.compute_class_sensitivity(maps, others), theirs)


def test_the_deletion_curve_equals_quantus_pixel_flipping(quantus: Any) -> None:
    """Quantus's curve has no value before the first step. Its area fails with numpy 2.4."""
    net, images, steps = Net(channels=1), IMAGES[:, :1], 20
    metric = quantus.PixelFlipping(features_in_step=SIDE * SIDE // steps, perturb_baseline=0.0, **QUIET)
    theirs = run_quantus(metric, MAPS, net=net, images=images, softmax=True)
    curve = faithfulness.compute_curve(ClassScore(net, images, CLASSES), images, MAPS, steps=steps)[1]
    compare(curve[:, 1:], theirs)


def test_quantus_road_counts_images_whose_class_stays(quantus: Any) -> None:
    """It is one curve of accuracy over all images, not the difference of two curves of a probability.

    The images have one channel, as the next test shows why.
    """
    net, images, shares = Net(channels=1), IMAGES[:, :1], [5, 10, 20, 50, 90]
    ranks = MAPS.flatten(1).argsort(1, descending=True).argsort(1).reshape(MAPS.shape)
    with torch.no_grad():
        classes = net(images).argmax(1)
        changed = [net(impute_linear(images, ranks < share * SIDE * SIDE // 100)) for share in shares]
    accuracy = torch.stack([(each.argmax(1) == classes).float().mean() for each in changed])
    assert accuracy.min() < accuracy.max(), "proves nothing"
    metric = quantus.ROAD(percentages=shares, noise=0.0, **QUIET)
    theirs = run_quantus(metric, MAPS, net=net, images=images, classes=classes.tolist())
    compare(accuracy, [theirs[share] for share in shares])


def test_quantus_road_fails_for_color_images(quantus: Any) -> None:
    metric = quantus.ROAD(percentages=[50], noise=0.0, **QUIET)
    with pytest.raises(IndexError, match="out of bounds"):
        run_quantus(metric, MAPS)
