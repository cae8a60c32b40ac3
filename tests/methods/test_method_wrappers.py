"""Method wrappers: names, oracles, numbers by hand, and properties that all share."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import floor
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.testing import assert_close

import camtool
from camtool.arguments.message_parts import suggest_names
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.layers.selection import find_layers
from camtool.methods import METHODS, WRAPPERS, Method, check_options, find_method, wrap_method, wrapper
from camtool.methods.augmentation import compute_class_confidence
from camtool.targets import AgainstRest, ClassScore, Contrast, Custom, Negated, Probability, Region, Target, Value
from camtool.trust.metrics.sanity import compute_cascading_randomization
from tests.helpers.nets import Apply
from tests.helpers.vision_transformers import TinyViT, make_images, make_tiny_vit

SIZE = (8, 10)
BLACK = torch.tensor([-2.0, -1.5, 0.25])
CLASS = ClassScore(2)
NAMES = ["tta:gradcam", "noise:gradcam", "sess:gradcam", "eigen:gradcam"]
Map = list[list[float]]


def net(axes: int = 2) -> nn.Module:
    """Return a net with the trunk "0" of stride 2 and a tail that depends on the position."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes](3, 4, 3, stride=2, padding=1)
    return nn.Sequential(
        nn.Sequential(conv, nn.Softplus()),
        Apply(lambda a: (a * torch.linspace(-1, 2, a.shape[-1], dtype=a.dtype)).flatten(2).mean(2)),
        nn.Tanh(),
        nn.Linear(4, 5),
    )


def pictures(count: int = 3, size: tuple[int, ...] = SIZE) -> Tensor:
    return torch.randn(count, 3, *size, dtype=torch.float64)


def look(
    model: nn.Module,
    x: Tensor,
    target: Target | list[Target] = CLASS,
    images: list[int] | None = None,
    black: Tensor | None = BLACK,
) -> Evidence:
    wanted = target if isinstance(target, list) else [target] * len(x)
    (evidence,) = gather_evidence(
        run_forward_pass(model, x, find_layers(model, x, ["0"]), PassSettings(black, placement="stretch")),
        wanted,
        images,
    )
    return evidence


def seen_as(function: Callable[[Tensor], Tensor], log: list[Tensor] | None = None) -> Method:
    """A method whose map is a function of the pictures."""

    def method(evidence: Evidence) -> Tensor:
        if log is not None:
            log.append(evidence.inputs)
        return function(evidence.inputs)

    return find_method(method)


# --------------------------------------------------------------------------------------------------------- the names


def test_wrapped_method_has_names_papers_and_options_of_both() -> None:
    found = find_method("noise:tta:smoothgradcam++")
    assert found.name == "noise:tta:smoothgradcam++"
    inner = METHODS["smoothgradcam++"]
    assert found.options == inner.options | {"noise_samples": 10, "noise_level": 0.15, "noise_seed": 0}
    assert found.paper == f"arXiv 1706.03825, {inner.paper}"
    assert (found.needs, found.ignores_layer, found.weight_function) == (inner.needs, False, None)
    assert found.summary == "Average over noisy copies of the image."


@pytest.mark.parametrize("by", WRAPPERS)
def test_wrapper_has_a_summary_and_its_own_options(by: str) -> None:
    found, names = find_method(f"{by}:gradcam"), {name for method in METHODS.values() for name in method.options}
    assert found.summary.endswith(".")
    assert not found.options.keys() & names
    assert all(option.startswith(f"{by}_") for option in found.options)


def test_wrapped_method_costs_some_passes_or_more() -> None:
    assert (find_method("tta:gradcam").cost, METHODS["gradcam"].cost) == ("some passes", "a pass")
    assert find_method("eigen:gradcam").cost == "a pass"
    costly = next(method for method in METHODS.values() if method.cost == "many passes")
    assert find_method(f"tta:{costly.name}").cost == "many passes"


def test_wrapped_method_ignores_the_layer_if_its_method_does() -> None:
    name = next(name for name, method in METHODS.items() if method.ignores_layer)
    assert find_method(f"tta:{name}").ignores_layer


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ttb:gradcam", r"wrapper 'ttb' is unknown\. Did you mean 'tta'\? Known wrappers: tta, noise, sess, eigen"),
        ("tta:nois:gradcam", r"wrapper 'nois' is unknown. Did you mean 'noise'"),
        ("tta:grad-can", r"method 'grad-can' is unknown. Did you mean 'gradcam'"),
        ("tta:", "method '' is unknown"),
        ("tta", "method 'tta' is a wrapper; .* 'tta:gradcam'"),
        ("tta:noise", "method 'noise' is a wrapper; .* 'noise:gradcam'"),
        (
            "eigen:cam",
            r"wrapper 'eigen' needs a method that weighs activations, but 'cam' does not; .*gradcam.*layercam",
        ),
        ("eigen:tta:gradcam", "but 'tta:gradcam' does not; use 'tta:eigen:gradcam'"),
    ],
)
def test_invalid_wrapped_name_is_rejected(name: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        find_method(name)


def test_unknown_option_is_rejected_with_options_of_both() -> None:
    with pytest.raises(
        MethodError, match=r"'noise:gradcam' has no option 'noise_sample'; .*Did you mean 'noise_samples'"
    ):
        check_options([find_method("noise:gradcam")], {"noise_sample": 2})
    assert suggest_names("noise_sample", find_method("noise:gradcam").options)


def test_wrapper_name_is_unique() -> None:
    before = dict(WRAPPERS)
    with pytest.raises(MethodError, match=r"wrapper 'tta' is registered already, by camtool\.methods\.augmentation"):
        wrapper("tta")(lambda evidence, method: method(evidence))
    assert before == WRAPPERS


def test_options_reach_the_wrapper_or_the_method() -> None:
    seen: list[tuple[float, int]] = []

    def mine(evidence: Evidence, *, power: float = 1.0) -> Tensor:
        seen.append((power, len(evidence.images)))
        return evidence.activations.sum(1) ** power

    evidence, method = look(net().double(), pictures()), wrap_method("noise", wrap_method("tta", mine))
    assert method.options == {"power": 1.0, "noise_samples": 10, "noise_level": 0.15, "noise_seed": 0}
    method(evidence, power=2.0, noise_samples=3)
    assert seen == [(2.0, 3)] * 3 * 6
    seen.clear()
    wrap_method("tta", mine)(evidence)
    assert seen == [(1.0, 3)] * 6


@patch.dict(WRAPPERS)
def test_shared_option_reaches_wrapper_and_method() -> None:
    @wrapper("twice")
    def twice(evidence: Evidence, method: Method, *, factor: float = 2.0) -> Tensor:
        return factor * method(evidence)

    evidence = look(net().double(), pictures())
    method = wrap_method("twice", wrap_method("twice", lambda evidence: evidence.inputs[:, 0]))
    assert method.options == {"factor": 2.0}
    assert_close(method(evidence, factor=3.0), 9 * evidence.inputs[:, 0])


def test_wrapper_accepts_a_users_own_weighting() -> None:
    own = Method("own", lambda evidence: evidence.scores, weight_function=lambda evidence: evidence.gradients.relu())
    evidence = look(net().double(), pictures())
    assert_close(wrap_method("eigen", own)(evidence), find_method("eigen:layercam")(evidence))


# --------------------------------------------------------------------------------------------------------------- tta


def test_tta_equals_numbers_by_hand() -> None:
    x, ramp = torch.tensor([[[[1.0, 2.0], [4.0, 0.0]]]]), torch.tensor([1.0, 3.0])
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 3))
    evidence = look(model, x, black=torch.tensor([1.0]))
    # x' = 1 + f (x - 1), for f of .9, 1 and 1.1, has the mean x; the ramp has that of 1 and 3, once flipped back.
    assert_close(wrap_method("tta", seen_as(lambda x: x[:, 0] * ramp))(evidence), 2 * x[:, 0])
    # (x - 1)² is taken .81, 1 and 1.21 times.
    assert_close(wrap_method("tta", seen_as(lambda x: (x[:, 0] - 1) ** 2))(evidence), (x[:, 0] - 1) ** 2 * 3.02 / 3)


def test_tta_runs_three_brightnesses_and_their_mirror_images() -> None:
    x, log = pictures(), []
    wrap_method("tta", seen_as(lambda x: x[:, 0], log))(look(net().double(), x))
    black = BLACK.double().reshape(3, 1, 1)
    light, dark = black + 1.1 * (x - black), black + 0.9 * (x - black)
    expected = [dark, x, light, dark.flip(-1), x.flip(-1), light.flip(-1)]
    assert_close(torch.stack(log), torch.stack(expected))


def test_tta_does_not_mirror_the_image_for_a_regional_target() -> None:
    model, x, log = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)).double(), pictures()[:2], []
    regions = [Region(0, torch.ones(8, 10).tril()), Region(1, torch.ones(8, 10).triu())]
    forward_pass = run_forward_pass(model, x, find_layers(model, x), PassSettings(BLACK))
    ramp = torch.arange(10.0).double()

    def maps_of(targets: list[Target]) -> Tensor:
        log.clear()
        (evidence,) = gather_evidence(forward_pass, targets)
        return wrap_method("tta", seen_as(lambda x: x[:, 0] * ramp, log))(evidence)

    both = maps_of(regions)
    black = BLACK.double().reshape(3, 1, 1)
    assert_close(torch.stack(log), torch.stack([black + factor * (x - black) for factor in (0.9, 1.0, 1.1)]))
    assert_close(both, x[:, 0] * ramp)
    mixed = maps_of([regions[0], ClassScore(1)])  # what is asked beside it makes no difference
    assert_close(mixed, torch.stack([both[0], maps_of([ClassScore(1), ClassScore(1)])[1]]))
    assert not torch.allclose(mixed[1], both[1])


def test_tta_without_black_only_mirrors() -> None:
    x, log = pictures(), []
    wrap_method("tta", seen_as(lambda x: x[:, 0], log))(look(net().double(), x, black=None))
    assert_close(torch.stack(log), torch.stack([x, x.flip(-1)]))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", ["gradcam", "layercam", "eigen:hirescam", "gradcam++"])
def test_tta_map_of_a_mirror_image_is_the_mirrored_map(name: str, axes: int) -> None:
    model, x = net(axes).double(), pictures(2, (7, 8, 6)[-axes:])
    ours = find_method(f"tta:{name}")(look(model, x))
    assert_close(find_method(f"tta:{name}")(look(model, x.flip(-1))), ours.flip(-1))
    assert not torch.allclose(find_method(name)(look(model, x.flip(-1))), find_method(name)(look(model, x)).flip(-1))


def gradcam_of(model: nn.Module, picture: Map | Any, index: int) -> Map:
    """Grad-CAM of one picture, term by term: ``relu(Σ_k mean(g_k) A_k)``."""
    seen = model[0](torch.tensor([picture], dtype=torch.float64)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model[1:](seen)[0, index], seen)
    A, g = seen[0].tolist(), gradient[0].tolist()
    h, w = len(A[0]), len(A[0][0])
    weights = [sum(sum(row) for row in plane) / (h * w) for plane in g]
    return [
        [max(sum(v * plane[i][j] for v, plane in zip(weights, A, strict=True)), 0) for j in range(w)] for i in range(h)
    ]


def literal_tta(model: nn.Module, picture: Any, index: int, black: list[float] | None) -> Map:
    total: Map = []
    factors = [1.0] if black is None else [0.9, 1.0, 1.1]
    for flip in (False, True):
        for factor in factors:
            base = black or [0.0] * len(picture)
            changed = [
                [[b + factor * (v - b) for v in row] for row in plane] for b, plane in zip(base, picture, strict=True)
            ]
            if flip:
                changed = [[row[::-1] for row in plane] for plane in changed]
            found = gradcam_of(model, changed, index)
            found = [row[::-1] for row in found] if flip else found
            total = total or [[0.0] * len(row) for row in found]
            for i in range(len(found)):
                for j in range(len(found[0])):
                    total[i][j] += found[i][j] / (2 * len(factors))
    return total


@pytest.mark.parametrize("black", [BLACK.double(), None], ids=["black known", "black unknown"])
def test_tta_equals_its_oracle(black: Tensor | None) -> None:
    model, x = net().double(), pictures()
    known = None if black is None else black.tolist()
    expected = [literal_tta(model, picture, 2, known) for picture in x.tolist()]
    ours = find_method("tta:gradcam")(look(model, x, black=black))
    close_to_peak(ours, torch.tensor(expected, dtype=torch.float64))


def close_to_peak(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().amax() > 0, "an empty map proves nothing"
    assert_close(ours, theirs, rtol=0, atol=1e-10 * float(theirs.abs().amax()))


# ------------------------------------------------------------------------------------------------------------- noise


def test_noise_is_the_mean_over_noisy_images_of_one_seed() -> None:
    model, x = net().double(), pictures(2)
    dice = torch.Generator().manual_seed(5)
    total = torch.zeros(2, 4, 5, dtype=torch.float64)
    for _ in range(4):
        drawn = torch.randn(3, *SIZE, generator=dice).double()
        for n, picture in enumerate(x):
            noisy = picture + 0.3 * (picture.max() - picture.min()) * drawn
            total[n] += torch.tensor(gradcam_of(model, noisy.tolist(), 2), dtype=torch.float64) / 4
    ours = find_method("noise:gradcam")(look(model, x), noise_samples=4, noise_level=0.3, noise_seed=5)
    close_to_peak(ours, total)


def test_noise_of_level_zero_or_on_a_uniform_image_changes_nothing() -> None:
    model, x = net().double(), pictures()
    assert_close(find_method("noise:gradcam")(look(model, x), noise_level=0), find_method("gradcam")(look(model, x)))
    uniform = torch.full_like(x, 0.7)
    assert_close(find_method("noise:gradcam")(look(model, uniform)), find_method("gradcam")(look(model, uniform)))


def test_noise_depends_on_the_seed_only() -> None:
    evidence = look(net().double(), pictures())
    once = find_method("noise:gradcam")(evidence, noise_seed=1)
    assert torch.equal(find_method("noise:gradcam")(evidence, noise_seed=1), once)
    assert not torch.allclose(find_method("noise:gradcam")(evidence, noise_seed=2), once)


# -------------------------------------------------------------------------------------------------------------- sess


def literal_resize(values: Map, height: int, width: int) -> Map:
    """Linear between the centers of cells."""

    def along(place: int, length: int, to: int) -> tuple[int, int, float]:
        position = max((place + 0.5) * length / to - 0.5, 0.0)
        low = min(floor(position), length - 1)
        return low, min(low + 1, length - 1), position - low

    result = []
    for i in range(height):
        top, bottom, down = along(i, len(values), height)
        row = []
        for j in range(width):
            left, right, across = along(j, len(values[0]), width)
            above = (1 - across) * values[top][left] + across * values[top][right]
            below = (1 - across) * values[bottom][left] + across * values[bottom][right]
            row.append((1 - down) * above + down * below)
        result.append(row)
    return result


def literal_corners(length: int, window: int, step: int) -> list[int]:
    corners, corner = [], 0
    while corner + window < length:
        corners.append(corner)
        corner += step
    return [*corners, length - window]


def literal_sess(model: nn.Module, picture: Any, index: int, scales: list[float], step: float, threshold: float) -> Map:
    h, w = len(picture[0]), len(picture[0][0])
    found: list[tuple[float, Map]] = []
    for scale in scales:
        H, W = round(scale * h), round(scale * w)
        large = [literal_resize(plane, H, W) for plane in picture]
        for y in literal_corners(H, h, round(step * h)):
            for x in literal_corners(W, w, round(step * w)):
                part = [[row[x : x + w] for row in plane[y : y + h]] for plane in large]
                values = gradcam_of(model, part, index)
                lowest, highest = min(map(min, values)), max(map(max, values))
                values = [
                    [(v - lowest) / (highest - lowest) if highest > lowest else 0.0 for v in row] for row in values
                ]
                values = literal_resize(values, h, w)
                canvas = [[0.0] * W for _ in range(H)]
                for i in range(h):
                    canvas[y + i][x : x + w] = values[i]
                chance = model(torch.tensor([part], dtype=torch.float64)).softmax(1)[0, index].item()
                found.append((chance, literal_resize(canvas, h, w)))
    most = max(chance for chance, _ in found)
    result = [[0.0] * w for _ in range(h)]
    for i in range(h):
        for j in range(w):
            counting = [chance / most * m[i][j] for chance, m in found if chance / most * m[i][j] > threshold]
            result[i][j] = sum(counting) / max(len(counting), 1)
    return result


@pytest.mark.parametrize(
    ("scales", "step", "threshold"), [([1.0, 1.5, 2.0], 1.0, 0.0), ([1.25], 0.4, 0.0), ([1.0, 2.2], 1.0, 0.3)]
)
def test_sess_equals_its_oracle(scales: list[float], step: float, threshold: float) -> None:
    model, x = net().double(), pictures(2)
    expected = [literal_sess(model, picture, 2, scales, step, threshold) for picture in x.tolist()]
    ours = find_method("sess:gradcam")(look(model, x), sess_scales=scales, sess_step=step, sess_threshold=threshold)
    close_to_peak(ours, torch.tensor(expected, dtype=torch.float64))


def test_sess_uses_nine_windows_by_default() -> None:
    x, log = pictures(), []
    wrap_method("sess", seen_as(lambda x: x[:, 0], log))(look(net().double(), x))
    assert len(log) == 1 + 4 + 4
    assert {each.shape for each in log} == {x.shape}
    assert torch.equal(log[0], x)


class Blobs(nn.Module):
    """Sees a blob only if it fills a cell of 4 x 4 pixels, and the largest of its cells makes the score."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.Sequential(Apply(lambda x: -nn.functional.max_pool2d(-x, 4)), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        cells = self.cells(x).flatten(2).amax(2)
        return torch.cat([-cells, 4 * cells - 2], 1)


def test_sess_finds_two_objects_that_are_too_small_for_the_model() -> None:
    x = torch.zeros(1, 1, 16, 16)
    x[..., 0:3, 0:3] = x[..., 12:15, 4:7] = 1.0
    raw = {
        name: camtool.explain(Blobs(), x, ClassScore(1), method=name, layer="cells.0")[0].raw
        for name in ("gradcam", "sess:gradcam")
    }
    assert not raw["gradcam"].any()
    found = raw["sess:gradcam"]
    assert min(found[1, 1], found[13, 5]) > 0.2
    assert found[4:12, 8:].max() == 0


def test_windows_count_equally_if_all_probabilities_are_zero() -> None:
    evidence = look(net().double(), pictures(), Custom(lambda one: one.sum() * 0 - 1))
    ones = seen_as(lambda x: torch.ones_like(x[:, 0]).cumsum(-1))
    whole = wrap_method("sess", ones)(evidence, sess_scales=[1.0])
    assert_close(whole[0, 0], torch.linspace(0, 1, 10, dtype=torch.float64))


@pytest.mark.parametrize("target", [Negated(CLASS), Contrast(2, 0), AgainstRest(2)], ids=str)
def test_target_without_a_probability_weighs_windows_by_its_score(target: Target) -> None:
    """Not by the probability of the class that it is about, which says the opposite of a negated target."""
    seen = look(net().double(), pictures(), target)
    assert_close(compute_class_confidence(seen), seen.scores.relu())
    for one in (CLASS, Probability(2)):
        seen = look(net().double(), pictures(), one)
        assert_close(compute_class_confidence(seen), seen.logits.softmax(1)[:, 2])


def test_target_without_a_class_weighs_windows_by_its_score() -> None:
    def score(one: Tensor) -> Tensor:
        return 2 - one.square().sum()

    model, x = net().double(), pictures(1)
    evidence = look(model, x, Custom(score))
    ones = seen_as(lambda x: torch.ones_like(x[:, 0]).cumsum(-1))
    # One window alone, of whatever weight, counts wholly; it is the largest.
    assert_close(wrap_method("sess", ones)(evidence, sess_scales=[1.0]).amax(), torch.tensor(1.0, dtype=torch.float64))
    log: list[Tensor] = []
    wrap_method("sess", seen_as(lambda x: x[:, 0], log))(evidence, sess_scales=[1.0, 1.3])
    scores = torch.stack([score(model(seen)[0]) for seen in log]).detach()
    assert scores.argmax() > 0, "or the first window is the largest anyway"
    only_first = wrap_method("sess", seen_as(lambda x: ones(look(model, x)) * torch.equal(x, log[0])))
    peak = only_first(evidence, sess_scales=[1.0, 1.3]).amax()
    assert_close(peak, scores[0] / scores.amax())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("noise:gradcam", {"noise_samples": 0}, "noise_samples must be a whole number of 1 or more, got 0"),
        ("noise:gradcam", {"noise_samples": "many"}, "noise_samples .* got 'many'"),
        ("noise:gradcam", {"noise_level": -0.1}, "noise_level must be a finite number at least 0, got -0.1"),
        ("noise:gradcam", {"noise_level": float("nan")}, "noise_level .* got nan"),
        ("sess:gradcam", {"sess_scales": []}, r"sess_scales must be a list of numbers, .* got \[\]"),
        ("sess:gradcam", {"sess_scales": [0.5]}, "each of sess_scales .* at least 1, got 0.5"),
        ("sess:gradcam", {"sess_scales": 2}, "sess_scales must be a list of numbers, .* got 2"),
        ("sess:gradcam", {"sess_step": 0}, "sess_step must be a finite number above 0 and at most 1, got 0"),
        ("sess:gradcam", {"sess_step": 1.5}, "sess_step .* got 1.5"),
        ("sess:gradcam", {"sess_threshold": "high"}, "sess_threshold must be a finite number, got 'high'"),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        find_method(name)(look(net().double(), pictures()), **options)


@pytest.mark.parametrize("axes", [1, 3])
def test_sess_rejects_inputs_that_are_not_images(axes: int) -> None:
    with pytest.raises(MethodError, match=r"needs images \(N, C, H, W\), but the inputs are of size"):
        find_method("sess:gradcam")(look(net(axes).double(), pictures(2, (6, 8, 6)[:axes])))


@pytest.mark.parametrize(("name", "black"), [("tta:gradcam", None), ("sess:gradcam", BLACK)])
@pytest.mark.parametrize("about", [lambda region: region, Negated])
def test_wrappers_that_move_the_image_reject_regional_targets(
    name: str, black: Tensor | None, about: Callable[[Region], Target]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1))
    target = about(Region(0, torch.ones(8, 10)))
    with pytest.raises(MethodError, match=f"target {type(target).__name__} refers to a fixed region of it"):
        find_method(name)(look(model, pictures().float(), target, black=black))
    assert find_method("noise:gradcam")(look(model, pictures().float(), target)).any()


# ------------------------------------------------------------------------------------------------------------- eigen


def test_eigen_of_hirescam_equals_eigengradcam() -> None:
    evidence = look(net().double(), pictures())
    assert_close(find_method("eigen:hirescam")(evidence), METHODS["eigengradcam"](evidence))


def test_eigen_is_the_first_singular_vector_of_the_weighted_activations() -> None:
    evidence = look(net().double(), pictures())
    weights, A = METHODS["gradcam"].weight_function, evidence.activations
    assert weights is not None
    X = (weights(evidence) * A).flatten(2).mT.numpy()  # (R, positions, channels)
    expected = []
    for row in X:
        _, _, V = np.linalg.svd(row)
        component = row @ V[0]
        energy = (row**2).sum(1)
        expected.append(np.maximum(component * np.sign((component * energy).sum()), 0).reshape(4, 5))
    close_to_peak(find_method("eigen:gradcam")(evidence), torch.from_numpy(np.stack(expected)))


# -------------------------------------------------------------------------------------------- what all of them keep


@pytest.mark.parametrize("name", NAMES)
def test_batch_equals_single_images(name: str) -> None:
    model, x = net().double(), pictures()
    together = find_method(name)(look(model, x, [ClassScore(2), Value(0), ClassScore(4)]))
    assert together.dtype == torch.float64
    for n, target in enumerate([ClassScore(2), Value(0), ClassScore(4)]):
        assert_close(find_method(name)(look(model, x[n : n + 1], target))[0], together[n])


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_one_image_equal_single_rows(name: str) -> None:
    model, x, rows = net().double(), pictures(2), [0, 1, 0]
    wanted: list[Target] = [ClassScore(2), ClassScore(2), ClassScore(0)]
    together = find_method(name)(look(model, x, wanted, rows))
    for row, (image, target) in enumerate(zip(rows, wanted, strict=True)):
        assert_close(find_method(name)(look(model, x[image : image + 1], target))[0], together[row])


@pytest.mark.parametrize("name", NAMES)
def test_wrappers_do_not_change_evidence_or_global_generator(name: str) -> None:
    evidence = look(net().double(), pictures())
    before = [evidence.inputs.clone(), evidence.activations.clone(), evidence.gradients.clone()]
    state, python = torch.get_rng_state(), random.getstate()
    find_method(name)(evidence)
    assert all(map(torch.equal, before, [evidence.inputs, evidence.activations, evidence.gradients]))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", ["tta:gradcam", "noise:gradcam", "eigen:gradcam"])
def test_wrappers_accept_signals_images_and_volumes(name: str, axes: int) -> None:
    evidence = look(net(axes).double(), pictures(2, (6, 8, 6)[:axes]))
    assert find_method(name)(evidence).shape == METHODS["gradcam"](evidence).shape


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_maps_are_finite_for_images_of_any_scale(name: str, scale: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), Apply(lambda a: a.relu().mean((2, 3))), nn.Linear(4, 5))
    assert find_method(name)(look(model, scale * pictures().float())).isfinite().all()


@pytest.mark.parametrize("name", [*NAMES, "noise:tta:gradcam", "tta:eigen:layercam"])
def test_half_precision_gives_float32_maps(name: str) -> None:
    evidence = look(net().bfloat16(), pictures().bfloat16())
    assert find_method(name)(evidence).dtype == torch.float32


# ----------------------------------------------------------------------------------------------------- for a person


class Prepare:
    """Transform with a known normalization, like torchvision's."""

    mean, std = (0.5, 0.4, 0.3), (0.25, 0.25, 0.25)

    def __call__(self, picture: Image.Image) -> Tensor:
        numbers = torch.from_numpy(np.asarray(picture).copy()).movedim(2, 0) / 255
        return (numbers - torch.tensor(self.mean).reshape(3, 1, 1)) / torch.tensor(self.std).reshape(3, 1, 1)


@pytest.mark.parametrize("method", ["guided-gradcam", "cameras", "groupcam", "sess:gradcam", "tta:guided-gradcam"])
def test_maps_at_the_size_of_the_input_are_not_placed_again(method: str) -> None:
    """A layer with as many cells as pixels: its grid has the shape of the map, which is at the right place already."""
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2))
    model = nn.Sequential(trunk, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)).eval()
    x = torch.rand(1, 3, 16, 16)
    (cam,) = camtool.explain(model, x, 1, method="gradcam", layer="0")
    (fine,) = camtool.explain(model, x, 1, method=method, layer="0")
    assert cam.centers is not None
    assert cam.raw.shape == fine.raw.shape == (16, 16)
    assert fine.centers is None


def test_tta_changes_the_brightness_of_the_photo() -> None:
    photo = np.random.default_rng(0).integers(0, 200, (8, 10, 3), dtype=np.uint8)
    model, prepare = net(), Prepare()
    result = camtool.explain(model, photo, 2, method="tta:layercam", layer="0", transform=prepare, placement="stretch")
    assert (result.method, result.layer) == ("tta:layercam", "0")
    total = torch.zeros(4, 5)
    for factor in (0.9, 1.0, 1.1):
        for flip in (False, True):
            x = (prepare(photo) - prepare(0 * photo)) * factor + prepare(0 * photo)
            maps = METHODS["layercam"](look(model, (x.flip(-1) if flip else x)[None]))[0]
            total += (maps.flip(-1) if flip else maps) / 6
    assert result.raw.any()
    assert_close(torch.from_numpy(result.raw), total)


def test_several_wrapped_methods_take_their_own_options() -> None:
    x = pictures().float()
    options = {"noise_samples": 2, "sess_scales": (1.0,), "layer": "0"}
    by_method = camtool.explain(net(), x, 2, method=["noise:layercam", "sess:gradcam", "gradcam"], **options)[0]
    assert [each.method for each in by_method] == ["noise:layercam", "sess:gradcam", "gradcam"]
    assert [each.raw.shape for each in by_method] == [(4, 5), (8, 10), (4, 5)]


@pytest.mark.parametrize("name", ["tta:gradcam", "sess:gradcam"])
def test_zero_gradient_has_a_warning_through_a_wrapper(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Apply(lambda a: 0 * a.mean((2, 3))), nn.Linear(4, 5))
    (result,) = camtool.explain(model, pictures(1).float(), 2, method=name, layer="0")
    assert any("gradient at the layer is zero everywhere" in warning for warning in result.warnings)


class SeesUpAndLeft(nn.Module):
    """Four strided averages: on an even image the evidence is even, but for the padding; the grid lies up and left."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(channels, 1, 3, stride=2, padding=1, bias=False) for channels in (3, 1, 1, 1)]
        self.trunk, self.head = nn.Sequential(*layers), nn.Linear(1, 3, bias=False)
        for layer in [*layers, self.head]:
            nn.init.constant_(layer.weight, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x).mean((2, 3)))


def test_the_mirror_image_takes_no_heat_from_the_edge() -> None:
    """Mirrored back, its cells begin further inward. They see as much there, so the mean does not fall."""
    net, x = SeesUpAndLeft().eval(), 1 + 0.001 * torch.rand(1, 3, 64, 64)
    plain, mean = (
        camtool.explain(net, x, 1, method=name, layer="trunk")[0].raw for name in ("hirescam", "tta:hirescam")
    )
    assert mean[0, 0] / mean.max() > plain[0, 0] / plain.max()


def test_no_seam_is_dark_where_a_window_ends() -> None:
    net, x = SeesUpAndLeft().eval(), 1 + 0.001 * torch.rand(1, 3, 64, 64)
    row = camtool.explain(net, x, 1, method="sess:hirescam", layer="trunk")[0].raw[32]
    assert row[24:44].min() > 0.75 * row.max()  # the padding of the convolutions takes a quarter where one begins


# --------------------------------------------------------------------------------------------- conservative gradients


def make_bias_free_vit() -> TinyViT:
    """A transformer whose score is the sum of what the image's pixels contribute: nothing is added to them."""
    model = make_tiny_vit(pooling="attention")
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or name in ("first", "position"):
            nn.init.zeros_(parameter)
    return model


def test_conservative_contributions_of_pixels_and_of_tokens_sum_to_the_score() -> None:
    model, x = make_bias_free_vit(), make_images()

    def multiply(evidence: Evidence) -> Tensor:
        return (evidence.activations * evidence.gradients).sum(1)

    pixels = camtool.explain(model, x, [1, 4], method="conservative:inputxgradient", signed=True)
    at_layer = camtool.explain(model, x, [1, 4], method=wrap_method("conservative", multiply), layer="blocks.0")
    logits = model(x).detach()
    for index, (image, label) in enumerate([(0, 1), (1, 4)]):
        for result in (pixels[index], at_layer[index]):
            assert result.raw.sum(dtype=float) == pytest.approx(float(logits[image, label]), rel=1e-5)
    plain = camtool.explain(model, x, [1, 4], method="inputxgradient", signed=True)
    assert plain[0].raw.sum(dtype=float) != pytest.approx(float(logits[0, 1]), rel=0.1)


@pytest.mark.parametrize("name", ["gradcam", "rivalcam", "faithcam", "chefer", "legrad", "inputxgradient"])
def test_conservative_maps_of_a_batch_are_those_of_its_images_and_leave_no_trace(name: str) -> None:
    model, x = make_tiny_vit(), make_images(3)
    plain = [result.raw for result in camtool.explain(model, x, [0, 1, 2], method=name)]
    both = camtool.explain(model, x, [0, 1, 2], method=f"conservative:{name}")
    several = camtool.explain(model, x[1:2], [[0, 1, 2]], method=f"conservative:{name}")[0]
    for index, result in enumerate(both):
        (single,) = camtool.explain(model, x[index : index + 1], [index], method=f"conservative:{name}")
        np.testing.assert_allclose(result.raw, single.raw, rtol=1e-5, atol=1e-6 * abs(single.raw).max())
    np.testing.assert_allclose(several[1].raw, both[1].raw, rtol=1e-5, atol=1e-6 * abs(both[1].raw).max())
    assert any(not np.allclose(result.raw, raw, rtol=1e-2) for result, raw in zip(both, plain, strict=True))
    again = camtool.explain(model, x, [0, 1, 2], method=name)
    assert all((result.raw == raw).all() for result, raw in zip(again, plain, strict=True))
    assert _get_current_function_mode_stack() == []
    assert all(parameter.grad is None for parameter in model.parameters())


def test_conservative_map_depends_on_the_weights() -> None:
    """Compare the map with those of the network whose last 1, 2, ... eighths are random."""
    model, x = make_tiny_vit(), make_images(1)

    def explain(images: Tensor, rows: Tensor) -> Tensor:
        (result,) = camtool.explain(model, images, [2], method="conservative:inputxgradient")
        return torch.from_numpy(result.raw)[None]

    assert compute_cascading_randomization(model, explain, x, explain(x, x)).item() < 0.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conservative:eigencam", "wrapper 'conservative' changes gradients, which 'eigencam' does not read; use "),
        ("conservative:noise:rise", "changes gradients, which 'noise:rise' does not read"),
        ("eigen:conservative:gradcam", "use 'conservative:eigen:gradcam'"),
        ("conservative:conservative:gradcam", "'conservative' is applied twice in 'conservative:conservative:gradcam'"),
    ],
)
def test_conservative_rejects_methods_without_gradients_and_itself(name: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        camtool.explain(make_tiny_vit(), make_images(), 1, method=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tta:" * 4 + "gradcam", "4 wrappers came; give 3 at most"),
        ("eigen:noise:sess:tta:gradcam", "4 wrappers came"),
        ("tta:" * 100_000 + "gradcam", "100000 wrappers came"),
    ],
)
def test_the_nesting_of_wrappers_is_bounded(name: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        find_method(name)


def test_conservative_rejects_a_model_that_it_does_not_change() -> None:
    relus = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(2), Apply(lambda x: x.mean(2))
    )
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(MethodError, match=r"changes nothing: no attention, norm .* was observed after layer '3', so "):
        camtool.explain(relus, x, 1, method="conservative:gradcam", layer="3")
    assert camtool.explain(relus, x, 1, method="conservative:gradcam", layer="0")[0].layer == "0"
    relus[1] = nn.ReLU()
    with pytest.raises(MethodError, match="was observed in this model"):
        camtool.explain(relus, x, 1, method="conservative:inputxgradient")


def test_conservative_is_compatible_with_engines_and_the_users_own_pass() -> None:
    """Neither an engine nor the graph of the user's own pass has the gradients, so the model runs again."""
    model, x = make_tiny_vit().float(), make_images(1).float()
    (expected,) = camtool.explain(model, x, 1, method="conservative:gradcam")
    assert not find_method("conservative:gradcam").can_be_compiled
    with camtool.observe(model) as cam:
        model(x)
    (recorded,) = cam.explain(1, method="conservative:gradcam")
    np.testing.assert_allclose(recorded.raw, expected.raw, rtol=1e-4)
