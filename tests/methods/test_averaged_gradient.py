"""Second derivatives, contributions, noise, paths from black and sizes: methods that need several passes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hvp
from torch.testing import assert_close

import camtool
from camtool.errors import LayerError, MethodError, TargetError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.layers.layouts import Layer, Layout
from camtool.methods import METHODS
from camtool.targets import ClassScore, Custom, Negated, Probability, Region, Target, Value
from tests.helpers.nets import Apply
from tests.methods.test_all_methods import (
    CLASSES,
    IMAGES,
    KINDS,
    C,
    Net,
    case_of,
    close_to_peak,
    conv,
    deep_net,
    look,
    pooled_net,
)
from tests.oracles import ORACLES
from tests.oracles.averaged_gradient import integrated_gradcam, smooth_gradcam_plus_plus

ALL = [
    *("gradcam-elementwise", "zoomcam", "shapleycam", "liftcam"),
    *("smoothgradcam++", "integratedgradcam", "cameras"),
]

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def bent_net(kind: str = "rectified") -> tuple[Net, Layer]:
    """A tail that bends at each position before it takes the mean, and so takes pictures of any size."""
    end, mean, layout = KINDS[kind]
    tail = nn.Sequential(nn.Tanh(), Apply(mean), nn.Linear(C, CLASSES))
    return Net(nn.Sequential(conv(), end()), tail).double(), Layer("trunk", layout)


def net_for(name: str, axes: int = 2) -> tuple[Net, Layer]:
    """A net that the method can serve, for pictures of 18 pixels along each axis."""
    trunk = nn.Sequential(CONVOLUTIONS[axes](3, 64, 3, stride=2, padding=1), nn.ReLU())
    bend = nn.Identity() if name == "liftcam" else nn.Tanh()
    tail = nn.Sequential(bend, Apply(lambda a: a.flatten(2).mean(2)), nn.Linear(64, CLASSES))
    return Net(trunk, tail).double(), Layer("trunk", Layout("channels first", (9,) * axes))


def seen_directly(score: Any, x: Tensor, *wanted: Target, images: list[int] | None = None, **known: Any) -> Evidence:
    """The picture itself is the activations, and the logits are what ``score`` makes of it."""
    net = nn.Sequential(nn.Identity(), Apply(score))
    forward_pass = run_forward_pass(
        net, x, [Layer("0", Layout("channels first", tuple(x.shape[2:])))], PassSettings(**known)
    )
    return gather_evidence(forward_pass, list(wanted) or [Value()] * len(x), images)[0]


def doubles(maps: list[Any]) -> Tensor:
    return torch.tensor(maps, dtype=torch.float64)


def sum_of_squares(a: Tensor) -> Tensor:
    return a.square().flatten(1).sum(1, keepdim=True)


# ------------------------------------------------------------------------------------------------------ curvature


@pytest.mark.parametrize("size", [(6,), (2, 3), (1, 2, 3)])
def test_hessian_product_of_a_sum_of_squares_is_twice_the_direction(size: tuple[int, ...]) -> None:
    x, direction = torch.randn(2, 3, *size), torch.randn(2, 3, *size)
    assert_close(seen_directly(sum_of_squares, x).hessian_vector_product(direction), 2 * direction)


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_product_equals_torch_in_any_layout(kind: str) -> None:
    net, layer = deep_net(kind)
    x = torch.randn(3, *IMAGES, dtype=torch.float64)
    evidence = look(net.double(), layer, x, [ClassScore(n) for n in (4, 1, 0)])
    direction = torch.randn_like(evidence.activations)
    ours = evidence.hessian_vector_product(direction)
    for n, index in enumerate((4, 1, 0)):
        own = net.trunk(x[n : n + 1]).detach()
        along = layer.layout.from_grid(direction[n : n + 1], torch.zeros_like(own))
        theirs = hvp(lambda a, index=index: net.tail(a)[0, index], own, along)[1]
        close_to_peak(ours[n], layer.layout.to_grid(theirs)[0], 1e-10)


def test_hessian_products_of_rows_of_one_image_equal_single_rows() -> None:
    net, layer = deep_net()
    x, images = torch.randn(2, *IMAGES), [1, 0, 1, 1]
    wanted: list[Target] = [ClassScore(2), Probability(1), ClassScore(5), Probability(0)]
    (evidence,) = gather_evidence(run_forward_pass(net, x, [layer], PassSettings(placement="stretch")), wanted, images)
    direction = torch.randn_like(evidence.activations)
    ours = evidence.hessian_vector_product(direction)
    for row, image in enumerate(images):
        alone = look(net, layer, x[image : image + 1], wanted[row])
        close_to_peak(ours[row], alone.hessian_vector_product(direction[row : row + 1])[0], 1e-5)


def test_earlier_layer_does_not_change_the_hessian_product_of_a_later_one() -> None:
    net, layer = deep_net()
    x = torch.randn(1, *IMAGES)
    first = Layer("trunk.0", layer.layout)
    _, later = gather_evidence(run_forward_pass(net, x, [first, layer]), [Probability(1)])
    direction = torch.randn_like(later.activations)
    close_to_peak(
        later.hessian_vector_product(direction),
        look(net, layer, x, Probability(1)).hessian_vector_product(direction),
        1e-6,
    )


def test_hessian_product_is_zero_for_a_piecewise_linear_tail_only() -> None:
    net, layer = deep_net()
    net.tail[2] = nn.ReLU()
    x = torch.randn(2, *IMAGES)
    straight, curved = look(net, layer, x, ClassScore(0)), look(net, layer, x, Probability(0))
    assert not straight.hessian_vector_product(straight.activations).any()
    assert curved.hessian_vector_product(curved.activations).any()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    pooled = look(pooled_net()[0].requires_grad_(False), layer, x, ClassScore(0))
    assert not pooled.hessian_vector_product(pooled.activations).any()
    assert all(parameter.grad is None for parameter in net.parameters())


class Once(torch.autograd.Function):
    """Square whose gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * NoSlope.apply(ctx.saved_tensors[0])


class NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("derivative is not implemented")


def test_missing_second_derivative_raises_an_error() -> None:
    evidence = seen_directly(lambda a: Once.apply(a).flatten(1).sum(1, keepdim=True), torch.randn(1, 2, 2, 3))
    with pytest.raises(
        MethodError, match=r"no second .* layer '0' \(.*derivative is not .* method='gradcam'"
    ) as raised:
        METHODS["shapleycam"](evidence)
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_hessian_product_needs_a_gradient() -> None:
    evidence = seen_directly(lambda a: a.detach().flatten(1), torch.randn(1, 2, 2, 3))
    with pytest.raises(LayerError, match="does not depend on the layers"):
        evidence.hessian_vector_product(evidence.activations)


# ----------------------------------------------------------------------------------------------------- shapleycam


def test_shapleycam_of_a_sum_of_squares_equals_numbers_by_hand() -> None:
    """``g = 2 A`` and ``H A = 2 A``, so that the weights are the means of ``2 A - A``: 2 and 1."""
    x = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]])
    assert METHODS["shapleycam"](seen_directly(sum_of_squares, x)).tolist() == [[[2 + 2, 6 + 0]]]


def test_shapleycam_of_a_quadratic_score_gives_shapley_values() -> None:
    """By its definition: what a channel adds, averaged over all orders in which the channels may come."""
    bend, slope = torch.randn(3, 3).double(), torch.randn(3).double()

    def score(a: Tensor) -> Tensor:
        means = a.flatten(2).mean(2)
        return ((means @ bend) * means).sum(1, keepdim=True) + (means @ slope)[:, None] + 1

    x = torch.randn(1, 3, 1, 1, dtype=torch.float64).expand(1, 3, 2, 2).contiguous()
    values = torch.zeros(3, dtype=torch.float64)
    orders = list(permutations(range(3)))
    for order in orders:
        so_far = torch.zeros_like(x)
        for k in order:
            before = score(so_far)
            so_far[:, k] = x[:, k]
            values[k] += (score(so_far) - before)[0, 0] / len(orders)
    weights = METHODS["shapleycam"].weight_function(seen_directly(score, x))  # type: ignore[misc]
    assert_close((weights * x).sum((0, 2, 3)), values)
    assert_close(values.sum(), (score(x) - score(torch.zeros_like(x)))[0, 0])


def test_shapleycam_equals_gradcam_only_for_piecewise_linear_scores() -> None:
    net, layer = deep_net()
    net.tail[2] = nn.ReLU()
    x = torch.randn(2, *IMAGES)
    rest = Custom(lambda output: output[3] + output.log_softmax(0)[3])
    logit = look(net, layer, x, ClassScore(3))
    close_to_peak(METHODS["shapleycam"](logit), METHODS["gradcam"](logit), 1e-6)
    for target in (Probability(3), rest):
        evidence = look(net, layer, x, target)
        ours, theirs = METHODS["shapleycam"](evidence), METHODS["gradcam"](evidence)
        assert (ours - theirs).abs().amax() > 1e-3 * theirs.abs().amax()


# -------------------------------------------------------------------------------------------------------- liftcam


@pytest.mark.parametrize("kind", KINDS)
def test_liftcam_equals_its_oracle_for_weights_per_position(kind: str) -> None:
    net, layer = deep_net(kind)
    net.tail[2] = nn.Identity()
    x = torch.randn(2, *IMAGES, dtype=torch.float64)
    expected = [ORACLES["liftcam"](case_of(net.double(), layer, x[n : n + 1], 3)) for n in range(2)]
    close_to_peak(METHODS["liftcam"](look(net, layer, x, ClassScore(3))), doubles(expected), 1e-10)


def test_liftcam_equals_numbers_by_hand_and_sums_to_the_score_without_the_bias() -> None:
    def score(a: Tensor) -> Tensor:
        return (2 * a[:, 0] - a[:, 1]).flatten(1).sum(1, keepdim=True) + 5

    x = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]]])
    evidence = seen_directly(score, x)
    weights = METHODS["liftcam"].weight_function(evidence)  # type: ignore[misc]
    assert weights.flatten().tolist() == [8, -2]
    assert weights.sum() == evidence.scores - 5
    assert METHODS["liftcam"](evidence).tolist() == [[[8 - 4, 24]]]


def test_liftcam_accepts_relus_without_biases() -> None:
    net, layer = deep_net()
    net.tail[1].bias = None
    net.tail[2] = nn.ReLU()
    evidence = look(net, layer, torch.randn(2, *IMAGES), ClassScore(3))
    weights = METHODS["liftcam"].weight_function(evidence)  # type: ignore[misc]
    assert_close(weights.flatten(1).sum(1), evidence.scores - net.tail[3].bias[3].detach())


# ----------------------------------------------------------------------------------- gradient times activation


def test_elementwise_keeps_the_positive_part_of_each_channel() -> None:
    x = torch.tensor([[[[1.0, -3.0]], [[2.0, 1.0]]]])
    weights = torch.tensor([[[1.0, -1.0]], [[-1.0, 1.0]]])
    evidence = seen_directly(lambda a: (a * weights).flatten(1).sum(1, keepdim=True), x)
    assert METHODS["gradcam-elementwise"](evidence).tolist() == [[[1, 3 + 1]]]
    assert METHODS["hirescam"](evidence).tolist() == [[[0, 3 + 1]]]


def test_zoomcam_equals_hirescam_at_one_layer_and_the_maximum_at_several() -> None:
    net, layer = deep_net()
    net.trunk = nn.Sequential(net.trunk, nn.Sequential(nn.Conv2d(C, C, 3, padding=1), nn.ReLU()))
    x = torch.randn(1, *IMAGES)
    evidence = look(net, layer, x, ClassScore(3))
    assert torch.equal(METHODS["zoomcam"](evidence), METHODS["hirescam"](evidence))
    alone = [camtool.explain(net, x, 3, method="zoomcam", layer=f"trunk.{n}")[0].raw for n in (0, 1)]
    (both,) = camtool.explain(net, x, 3, method="zoomcam", layer=["trunk.0", "trunk.1"], merge="max")
    first, second = (torch.from_numpy(each / each.max()) for each in alone)
    assert_close(torch.from_numpy(both.raw), torch.maximum(first, second))


# ------------------------------------------------------------------------------------------------ smoothgradcam++


class Listener(nn.Module):
    """Keeps the pictures that it was given, and hands them on."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.heard.append(x)
        return x


def test_smooth_gradcam_plus_plus_without_noise_equals_gradcam_plus_plus() -> None:
    net, layer = bent_net()
    evidence = look(net, layer, torch.randn(2, *IMAGES).double(), ClassScore(3))
    ours = METHODS["smoothgradcam++"](evidence, noise=0, samples=3)
    close_to_peak(ours, METHODS["gradcam++"](evidence), 1e-12)


def test_noise_is_relative_to_each_images_range_and_the_same_for_all() -> None:
    net = nn.Sequential(Listener(), nn.Identity(), Apply(sum_of_squares))
    x = torch.rand(2, 1, 64, 64) * torch.tensor([1.0, 10.0]).reshape(2, 1, 1, 1) + 100
    evidence = look(net, Layer("1", Layout("channels first", (64, 64))), x, Value())
    net[0].heard.clear()
    METHODS["smoothgradcam++"](evidence, samples=3, noise=0.2)
    drawn = torch.stack([heard for heard in net[0].heard if len(heard) == 2]) - x
    spans = x.flatten(1).amax(1) - x.flatten(1).amin(1)
    assert_close(drawn.std((0, 2, 3, 4)), 0.2 * spans, rtol=0.02, atol=0)
    assert_close(drawn[:, 0] / spans[0], drawn[:, 1] / spans[1], rtol=0, atol=1e-4)
    assert not torch.equal(drawn[0], drawn[1])


def test_seed_reproduces_the_map_without_the_global_generator() -> None:
    net, layer = bent_net()
    evidence = look(net, layer, torch.randn(1, *IMAGES).double(), ClassScore(3))
    state = torch.get_rng_state()
    one, again, other = (METHODS["smoothgradcam++"](evidence, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_smooth_gradcam_plus_plus_equals_its_oracle_with_options() -> None:
    net, layer = bent_net("tokens")
    x = torch.randn(1, *IMAGES).double()
    expected = smooth_gradcam_plus_plus(case_of(net, layer, x, 3), samples=3, noise=0.5, seed=7)
    ours = METHODS["smoothgradcam++"](look(net, layer, x, ClassScore(3)), samples=3, noise=0.5, seed=7)
    close_to_peak(ours, doubles([expected]), 1e-10)


def test_powers_of_tiny_gradients_do_not_vanish() -> None:
    net, layer = bent_net()
    x = torch.randn(1, *IMAGES)
    net.tail[2].weight.data *= 1e-25
    exact = METHODS["smoothgradcam++"](look(net, layer, x.double(), ClassScore(3)))
    close_to_peak(METHODS["smoothgradcam++"](look(net.float(), layer, x, ClassScore(3))), exact, 1e-4)


# ---------------------------------------------------------------------------------------------- integratedgradcam


def test_integrated_gradcam_of_a_sum_of_squares_equals_numbers_by_hand() -> None:
    """``A(t) = t x``, its gradient ``2 t x`` has the mean ``2 t``: the map is ``2 t² x``, and ``t`` is ½ and 1."""
    x = torch.tensor([[[[3.0, -1.0]]]])
    ours = METHODS["integratedgradcam"](seen_directly(sum_of_squares, x), steps=2)
    assert_close(ours, torch.tensor([[[2 * 3 * (0.25 + 1) / 2, 0]]]))


def test_path_begins_at_black_if_it_is_known() -> None:
    """``A(t) = t (x + 1) - 1`` with the gradient's mean ``4 t - 2``: at ``t = 1`` the map is ``2 (x + 1)``."""
    x = torch.tensor([[[[3.0, -1.0]]]])
    evidence = seen_directly(sum_of_squares, x, black=torch.tensor([-1.0]))
    assert_close(METHODS["integratedgradcam"](evidence, steps=1), torch.tensor([[[2.0 * 4, 0]]]))
    net, layer = bent_net("channels last")
    x = torch.randn(1, *IMAGES).double()
    (seen,) = gather_evidence(run_forward_pass(net, x, [layer], PassSettings(torch.full((3,), -2.0))), [ClassScore(3)])
    expected = integrated_gradcam(case_of(net, layer, x, 3), steps=4, black=-2.0)
    close_to_peak(METHODS["integratedgradcam"](seen, steps=4), doubles([expected]), 1e-10)


def test_saturated_score_does_not_hide_features() -> None:
    x = torch.tensor([[[[3.0, 0.0]], [[0.0, 2.0]]]])
    evidence = seen_directly(lambda a: 1 - (1 - a.flatten(1).sum(1, keepdim=True)).relu(), x)
    assert not METHODS["gradcam"](evidence).any()
    assert METHODS["integratedgradcam"](evidence).all()


def test_more_steps_approximate_the_integral_better() -> None:
    net, layer = bent_net()
    evidence = look(net, layer, torch.randn(2, *IMAGES).double(), ClassScore(3))
    fine, some, few = (METHODS["integratedgradcam"](evidence, steps=steps) for steps in (320, 40, 5))
    assert (fine - some).abs().amax() < 0.2 * (fine - few).abs().amax()


# -------------------------------------------------------------------------------------------------------- cameras


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["shapleycam", "smoothgradcam++", "integratedgradcam", "cameras"])
def test_methods_equal_their_oracles_for_nonlinear_positions(name: str, kind: str) -> None:
    net, layer = bent_net(kind)
    x, classes = torch.randn(4, *IMAGES, dtype=torch.float64), [4, 1, 0, 6]
    expected = [ORACLES[name](case_of(net, layer, x[n : n + 1], classes[n])) for n in range(4)]
    ours = METHODS[name](look(net, layer, x, [ClassScore(index) for index in classes]))
    close_to_peak(ours, doubles(expected), 1e-10)


def test_cameras_at_one_scale_and_full_size_equals_hirescam() -> None:
    evidence = seen_directly(sum_of_squares, torch.randn(2, 3, 4, 5))
    close_to_peak(METHODS["cameras"](evidence, scales=(1,)), METHODS["hirescam"](evidence), 1e-6)


def test_cameras_has_the_images_size_and_uses_whole_cells() -> None:
    listener = Listener()
    net, layer = bent_net()
    net.trunk.insert(0, listener)
    evidence = look(net, layer, torch.randn(2, *IMAGES).double(), ClassScore(1))
    evidence.find_centers()  # runs the model, if its graph shows where cells look
    listener.heard.clear()
    assert METHODS["cameras"](evidence, scales=(1, 1.4, 3, 0.5)).shape == (2, *IMAGES[1:])
    sizes = {tuple(heard.shape[2:]) for heard in listener.heard}
    assert sizes == {(4 * 2, 6 * 2), (9 * 2, 12 * 2), (2 * 2, 2 * 2)}


def test_cameras_in_chunks_of_channels_gives_the_same_map(monkeypatch: pytest.MonkeyPatch) -> None:
    net, layer = bent_net()
    evidence = look(net, layer, torch.randn(2, *IMAGES).double(), ClassScore(1))
    whole = METHODS["cameras"](evidence)
    monkeypatch.setattr("camtool.methods.families.averaged_gradient.compute_chunk_size", lambda numbers, like: 2)
    close_to_peak(METHODS["cameras"](evidence), whole, 1e-12)


def test_cameras_rejects_a_model_of_one_input_size() -> None:
    net, layer = deep_net()
    evidence = look(net, layer, torch.randn(1, *IMAGES), ClassScore(1))
    with pytest.raises(
        MethodError, match=r"images of 8 x 12 \(scales=1\.5\), .* scales=\(1,\) or method='hirescam'"
    ) as e:
        METHODS["cameras"](evidence)
    assert isinstance(e.value.__cause__, RuntimeError)
    assert METHODS["cameras"](evidence, scales=(1,)).any()


@pytest.mark.parametrize("about", [lambda region: region, Negated])
def test_cameras_rejects_regional_targets(about: Any) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1))
    (evidence,) = gather_evidence(
        run_forward_pass(net, torch.randn(1, 3, 6, 6), [Layer("0", Layout("channels first", (6, 6)))]),
        [about(Region(0, torch.ones(6, 6)))],
    )
    with pytest.raises(MethodError, match=r"cameras resizes the image, but target \w+ refers to a fixed region of it"):
        METHODS["cameras"](evidence)


@pytest.mark.parametrize("error", [TargetError, torch.OutOfMemoryError])
def test_cameras_passes_on_errors_that_are_not_about_the_size(error: type[Exception]) -> None:
    def score(a: Tensor) -> Tensor:
        if a.shape[2] != 6:
            raise error("its own words")
        return a.mean((2, 3))

    with pytest.raises(error, match=r"^its own words$"):
        METHODS["cameras"](seen_directly(score, torch.randn(1, 2, 6, 6)))


# ------------------------------------------------------------------------------------------- what holds for them all


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("smoothgradcam++", {"samples": 0}, r"samples must be a whole number of 1 or more, got 0"),
        ("smoothgradcam++", {"noise": -0.1}, r"noise must be a finite number at least 0, got -0\.1"),
        ("smoothgradcam++", {"noise": float("nan")}, r"noise must be a finite number at least 0, got nan"),
        ("integratedgradcam", {"steps": 0}, r"steps must be a whole number of 1 or more, got 0"),
        ("cameras", {"scales": ()}, r"scales must be a list of numbers, .* got \(\)"),
        ("cameras", {"scales": 2}, r"scales must be a list of numbers, .* got 2"),
        ("cameras", {"scales": (1, 0)}, r"each of scales must be a finite number above 0, got 0"),
    ],
)
def test_options_out_of_range_are_rejected(name: str, options: dict[str, Any], says: str) -> None:
    net, layer = bent_net()
    evidence = look(net, layer, torch.randn(1, *IMAGES).double(), ClassScore(0))
    with pytest.raises(MethodError, match=says):
        METHODS[name](evidence, **options)


@pytest.mark.parametrize("name", ALL)
def test_rows_equal_single_rows_and_a_batch_equals_single_images(name: str) -> None:
    net, layer = net_for(name)
    x, images = torch.randn(2, 3, 18, 18, dtype=torch.float64), [1, 0, 1]
    wanted: list[Target] = [ClassScore(n) for n in (2, 5, 4)]
    (evidence,) = gather_evidence(run_forward_pass(net, x, [layer], PassSettings(placement="stretch")), wanted, images)
    ours = METHODS[name](evidence)
    for row, image in enumerate(images):
        alone = METHODS[name](look(net, layer, x[image : image + 1], wanted[row]))
        assert_close(ours[row], alone[0], rtol=1e-10, atol=1e-10 * float(ours.amax()))
    assert ours.flatten(1).any(1).sum() > 1, "empty maps prove nothing"


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name", ALL)
def test_methods_accept_any_number_of_axes(name: str, axes: int) -> None:
    net, layer = net_for(name, axes)
    x = torch.randn(2, 3, *(18,) * axes, dtype=torch.float64)
    ours = METHODS[name](look(net, layer, x, ClassScore(3)))
    assert ours.shape == (2, *(18 if name == "cameras" else 9,) * axes)
    assert ours.isfinite().all()
    assert (ours >= 0).all()
    assert ours.any()


@pytest.mark.parametrize("name", ALL)
def test_model_and_inputs_are_not_changed(name: str) -> None:
    net, layer = net_for(name)
    x = torch.randn(2, 3, 18, 18, dtype=torch.float64)
    before = x.clone()
    evidence = look(net.train(), layer, x, ClassScore(3))
    METHODS[name](evidence)
    assert torch.equal(x, before)
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e10])
def test_maps_are_finite_for_images_of_any_scale(name: str, scale: float) -> None:
    net, layer = net_for(name)
    ours = METHODS[name](look(net.float(), layer, scale * torch.randn(2, 3, 18, 18), ClassScore(3)))
    assert ours.isfinite().all()
