"""All methods: their oracles, numbers by hand, and the properties that all share."""

from __future__ import annotations

import copy
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import PassSettings, run_forward_pass
from camtool.evidence.linear_head import get_linear_head
from camtool.geometry.cell_centers import AxisCenters, CellCenters, Placement
from camtool.layers.layouts import Layer, Layout
from camtool.methods import METHODS, check_options, find_method, method
from camtool.methods.merges import MERGES
from camtool.targets import ClassScore, Contrast, Probability, Target, Value
from tests.helpers.method_lists import FOR_CLASSIFIERS
from tests.helpers.nets import Apply, Attend
from tests.helpers.vision_transformers import ATTENTION_METHODS, make_tiny_vit
from tests.oracles import ORACLES, Case
from tests.oracles.base import Maps

FROM_GRADIENTS = [name for name, each in METHODS.items() if each.needs == {"gradients"}]
"""The methods that look at activations and gradients, and at nothing else."""

PARTICULAR = {
    "cam": "a pooled linear head",
    "liftcam": "an oracle that knows the layers of a nonlinear tail",
    "cameras": "a model that takes pictures of any size",
    "drise": "a detector",
}
"""The methods that the net with a deep tail cannot serve, and why; their own files test them on others."""

OF_ATTENTION = ATTENTION_METHODS
"""The methods that need a model with attention; here it stands in the trunk. Their own file tests the rest."""

OF_PATCHES = [name for name, each in METHODS.items() if "one head on all tokens" in each.needs]
"""The methods that need the last block of a transformer; ``test_single_patches.py`` tests the rest."""

OF_ACTIVATIONS = FOR_CLASSIFIERS

ON_ANY_HEAD = [name for name in OF_ACTIVATIONS if name not in PARTICULAR]

WITHOUT_SIDES = ["eigengradcam", "segeigencam"]
"""Patterns of gradient times activation, which cannot tell what speaks for a class from what speaks against it."""

SIGNED = ["signed-gradcam"]
"""Negative values speak against the class."""

STEADY = {"opticam": 1}
"""Classes other than the first, for methods that are unsteady there: Adam steps to and fro across a kink, where another
place becomes the mask's highest or lowest, and each step makes more of the rounding."""

OF_PROBABILITIES = ["groupcam", "polycam"]
"""Methods whose map is rightly empty where a probability falls although the score rises."""

FEWER = {"rise": {"samples": 40}}
"""Options for methods whose oracles would take minutes with the usual ones; the oracles take them too."""

C, GRID, CLASSES = 5, (3, 4), 7
IMAGES = (3, 6, 8)  # C, H, W; every trunk below has stride 2


# ----------------------------------------------------------------------------------------------------- tiny nets


class Net(nn.Module):
    """Network of a trunk, whose output is the layer, and a tail that a test can run alone."""

    def __init__(self, trunk: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.trunk, self.tail = trunk, tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.trunk(x))


class Tokens(nn.Module):
    """``(N, C, h, w)`` as ``(N, 1 + h·w, C)``, a class token first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, C))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first.expand(len(x), 1, C), x.flatten(2).transpose(1, 2)], dim=1)


def conv() -> nn.Conv2d:
    return nn.Conv2d(3, C, 3, stride=2, padding=1)


KINDS = {  # how the trunk ends, the positions' mean, the layout
    "rectified": (nn.ReLU, lambda a: a.mean((2, 3)), Layout("channels first", GRID)),
    "signed": (nn.Identity, lambda a: a.mean((2, 3)), Layout("channels first", GRID)),
    "channels last": (
        lambda: Apply(lambda a: a.movedim(1, -1)),
        lambda a: a.mean((1, 2)),
        Layout("channels last", GRID),
    ),
    "tokens": (Tokens, lambda a: a[:, 1:].mean(1), Layout("tokens", GRID, prefix=1)),
}


def pooled_net(kind: str = "rectified") -> tuple[Net, Layer]:
    end, mean, layout = KINDS[kind]
    return Net(nn.Sequential(conv(), end()), nn.Sequential(Apply(mean), nn.Linear(C, CLASSES))), Layer("trunk", layout)


def suited(name: str) -> tuple[nn.Module, Layer]:
    """A pooled net that the method works on."""
    if name in OF_PATCHES:
        return make_tiny_vit().float(), Layer("blocks.1", Layout("tokens", GRID, prefix=1))
    net, layer = pooled_net()
    if name in OF_ATTENTION:
        net.trunk = nn.Sequential(conv(), Attend(C), nn.ReLU())
        net.trunk[1].qkv.weight.data.mul_(3)  # so that the attention is not all but uniform
    return net, layer


def deep_net(kind: str = "rectified") -> tuple[Net, Layer]:
    """Return a net whose nonlinear tail depends on the position, so every position has its own gradient."""
    end, _, layout = KINDS[kind]
    trunk = nn.Sequential(conv(), end())
    size = trunk(torch.zeros(1, *IMAGES)).numel()
    tail = nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    return Net(trunk, tail), Layer("trunk", layout)


def look(
    net: nn.Module, layer: Layer, x: Tensor, target: Target | list[Target], placement: Placement = "stretch"
) -> Evidence:
    """Return evidence; masks are stretched over the image, as in the papers."""
    targets = target if isinstance(target, list) else [target] * len(x)
    (evidence,) = gather_evidence(run_forward_pass(net, x, [layer], PassSettings(placement=placement)), targets)
    return evidence


def close_to_peak(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Check that maps are equal up to this fraction of the largest magnitude."""
    assert theirs.abs().amax() > 0, "an empty map proves nothing"
    assert_close(ours, theirs.to(ours), rtol=0, atol=tolerance * float(theirs.abs().amax()))


# ------------------------------------------------------------------------------------------------------- oracles


def test_every_method_has_an_oracle() -> None:
    missing = {name: METHODS[name].function.__module__.rpartition(".")[2] for name in METHODS.keys() - ORACLES.keys()}
    assert not missing, "; ".join(
        f"write a slow, literal oracle for {name!r}: add @oracle({name!r}) to tests/oracles/{family}.py"
        for name, family in missing.items()
    )
    assert not ORACLES.keys() - METHODS.keys()


def case_of(net: Net, layer: Layer, x: Tensor, index: int, first: float = 0.5) -> Case:
    """Return the case of one image ``(1, C, H, W)`` for an oracle: numbers, and functions of numbers."""

    def at(picture: Tensor, of: int = index) -> tuple[Tensor, Tensor]:
        seen = net.trunk(picture).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(net.tail(seen)[0, of], seen)
        return layer.layout.to_grid(seen.detach())[0], layer.layout.to_grid(gradient)[0]

    def tail(activations: Maps) -> list[float]:
        variant = layer.layout.from_grid(as_batch(activations), net.trunk(x))
        return net.tail(variant)[0].tolist()

    def compute_input_gradient(picture: Maps) -> Maps:
        seen = as_batch(picture).requires_grad_()
        return torch.autograd.grad(net(seen)[0, index], seen)[0][0].tolist()

    A, g = at(x)
    return Case(
        A=A.tolist(),
        g=g.tolist(),
        w=net.tail[-1].weight[index].tolist(),
        x=x[0].tolist(),
        index=index,
        tail=tail,
        model=lambda picture: net(as_batch(picture))[0].tolist(),
        observe=lambda picture: tuple(each.tolist() for each in at(as_batch(picture))),  # type: ignore[arg-type]
        class_gradient=lambda other: at(x, other)[1].tolist(),
        input_gradient=compute_input_gradient,
        first=first,
    )


def as_batch(maps: Maps) -> Tensor:
    return torch.tensor([maps], dtype=torch.float64)


SAMPLE = ["gradcam", "layercam", "scorecam"]
"""Methods that are tried in all layouts: a layer's layout is undone before a method sees anything of it."""

NETS = [*product(OF_ACTIVATIONS, [pooled_net]), *product(ON_ANY_HEAD, [deep_net])]


@pytest.mark.parametrize(
    ("name", "make", "kind", "seed"),
    [
        (name, make, kind, seed)
        for name, make in NETS
        for kind, seed in product(KINDS, range(3))
        if name in SAMPLE or (seed == 0 and kind in ("rectified", "signed"))
    ],
)
def test_method_equals_its_oracle(name: str, make: Any, kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    net, layer = make(kind)
    net.double()
    x, classes = torch.randn(4, *IMAGES, dtype=torch.float64), [4, 1, 0, 6]

    options = FEWER.get(name, {})
    if name.startswith("guided-") and kind != "rectified":
        pytest.skip("there is no ReLU to guide")
    expected = [ORACLES[name](case_of(net, layer, x[n : n + 1], classes[n]), **options) for n in range(4)]

    ours = METHODS[name](look(net, layer, x, [ClassScore(index) for index in classes]), **options)
    assert ours.dtype == torch.float64
    close_to_peak(ours, torch.tensor(expected, dtype=torch.float64), 1e-10)


PLACED = ["scorecam", "sscam", "iscam", "polycam", "groupcam", "opticam", "cameras", "guided-gradcam", "fullgrad"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLACED)
def test_masks_lie_at_the_centers_of_cells(name: str, kind: str) -> None:
    """The convolution looks at 2 j - 1 to 2 j + 1: its first cell has its center at 0.5 pixels, a quarter of a cell."""
    torch.manual_seed(1)
    net, layer = pooled_net(kind)
    net.double()
    x, options = torch.randn(2, *IMAGES, dtype=torch.float64), FEWER.get(name, {})
    if name.startswith("guided-") and kind != "rectified":
        pytest.skip("there is no ReLU to guide")
    evidence = look(net, layer, x, ClassScore(3), "centers")
    placed = {"masks": "centers"} if "masks" in METHODS[name].options else {}  # by default stretched, as in the papers
    expected = [ORACLES[name](case_of(net, layer, x[n : n + 1], 3, first=0.25), **options) for n in range(2)]
    close_to_peak(METHODS[name](evidence, **options, **placed), torch.tensor(expected, dtype=torch.float64), 1e-10)
    assert evidence.find_centers() == CellCenters((6, 8), (AxisCenters(0.5, 2, 3),) * 2)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "masks" in method.options])
def test_masks_are_stretched_by_default(name: str) -> None:
    torch.manual_seed(1)
    net, layer = pooled_net()
    x, options = torch.randn(12, *IMAGES), FEWER.get(name, {})
    ways = ("stretch", {}), ("centers", {}), ("centers", {"masks": "centers"})
    papers, default, placed = (
        METHODS[name](look(net, layer, x, ClassScore(3), placement), **options, **masks) for placement, masks in ways
    )
    if name != "groupcam":  # its map is the sum of its masks, which lies at the centers in any case
        assert_close(default, papers)
    assert not torch.allclose(placed, default)


# ------------------------------------------------------------------------------------------------------- by hand


def net_of_ones(tail: nn.Module, weight: list[list[float]]) -> Net:
    """Two channels, the sum and the difference of the input's, rectified; then ``tail``, and a linear layer."""
    trunk = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.ReLU())
    linear = nn.Linear(len(weight[0]), 1, bias=False)
    trunk[0].weight.data = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).reshape(2, 2, 1, 1)
    linear.weight.data = torch.tensor(weight)
    return Net(trunk, nn.Sequential(tail, nn.Flatten(), linear))


HAND_IMAGE = torch.tensor([[[[2.0, 3.0], [1.0, 0.0]], [[1.0, 1.0], [-1.0, 2.0]]]])
HAND_ACTIVATIONS = [[[3.0, 4.0], [0.0, 2.0]], [[1.0, 2.0], [2.0, 0.0]]]
HAND_GRADIENTS = [[[1.0, -1.0], [1.0, 1.0]], [[-1.0, 1.0], [-1.0, -1.0]]]

BY_HAND = {
    "cam": [[2, 2], [-2, 2]],  # A_0 - A_1
    "gradcam": [[1, 1], [0, 1]],  # A_0 / 2 - A_1 / 2
    "gradcam++": [[74 / 77, 106 / 77], [22 / 77, 42 / 77]],  # 3 A_0 / (2 + 9) + 1 A_1 / (2 + 5)
    "xgradcam": [[6 / 45, 2 / 45], [0, 10 / 45]],  # 1 A_0 / 9 - 1 A_1 / 5
    "hirescam": [[2, 0], [0, 2]],  # g_0 A_0 + g_1 A_1
    "layercam": [[3, 2], [0, 2]],  # the same, of the positive g alone
}


@pytest.mark.parametrize("name", BY_HAND)
def test_maps_of_a_net_of_ones_equal_numbers_by_hand(name: str) -> None:
    if name == "cam":
        net = net_of_ones(nn.AdaptiveAvgPool2d(1), [[1.0, -1.0]])
    else:
        net = net_of_ones(nn.Identity(), [torch.tensor(HAND_GRADIENTS).flatten().tolist()])
    evidence = look(net, Layer("trunk", Layout("channels first", (2, 2))), HAND_IMAGE, Value(0))
    assert evidence.activations.tolist() == [HAND_ACTIVATIONS]
    assert_close(METHODS[name](evidence), torch.tensor([BY_HAND[name]], dtype=torch.float32))


# ------------------------------------------------------------------------------------------ on pooled linear heads


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [ClassScore(3), Contrast(2, (0, 5), weight=0.6), Value(1), Probability(6)], ids=str)
def test_methods_coincide_before_a_pooled_linear_head(kind: str, target: Target) -> None:
    net, layer = pooled_net(kind)
    evidence = look(net.double(), layer, torch.randn(3, *IMAGES, dtype=torch.float64), target)
    cam, positions = METHODS["cam"](evidence).relu(), GRID[0] * GRID[1]
    for name in ("gradcam", "hirescam", "xgradcam"):
        close_to_peak(METHODS[name](evidence) * positions, cam, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("target", "bias"),
    [
        (ClassScore(3), lambda b: b[3]),
        (Value(1), lambda b: b[1]),
        (Contrast(2, (0, 5), weight=0.6), lambda b: b[2] - 0.6 * (b[0] + b[5]) / 2),
    ],
    ids=["a class", "a value", "a contrast"],
)
def test_mean_of_cam_plus_bias_equals_the_score(kind: str, target: Target, bias: Any) -> None:
    net, layer = pooled_net(kind)
    evidence = look(net.double(), layer, torch.randn(3, *IMAGES, dtype=torch.float64), target)
    assert_close(
        METHODS["cam"](evidence).mean((1, 2)) + bias(net.tail[-1].bias.detach()), evidence.scores, rtol=1e-10, atol=0
    )


def test_cam_pools_the_positive_part_if_the_model_does() -> None:
    """As in DenseNet, whose ReLU behind the last layer is a function, and in place."""
    net = Net(
        nn.Sequential(conv(), nn.BatchNorm2d(C)),
        nn.Sequential(nn.ReLU(inplace=True), Apply(pool), nn.Linear(C, CLASSES)),
    )
    evidence = look(net, Layer("trunk", Layout("channels first", GRID)), torch.randn(2, *IMAGES), ClassScore(0))
    assert evidence.activations.amin() < 0
    assert torch.equal(get_linear_head(evidence).maps, evidence.activations.relu())
    assert_close(METHODS["cam"](evidence).mean((1, 2)) + net.tail[-1].bias[0].detach(), evidence.scores)


def test_cam_accepts_a_1x1_convolution_as_head() -> None:
    net = Net(conv(), nn.Sequential(nn.Conv2d(C, CLASSES, 1), Apply(pool)))
    evidence = look(net, Layer("trunk", Layout("channels first", GRID)), torch.randn(2, *IMAGES), ClassScore(2))
    assert_close(
        METHODS["cam"](evidence), net.tail[0](evidence.activations)[:, 2].detach() - net.tail[0].bias[2].detach()
    )


def test_cam_chooses_the_layer_that_reproduces_the_output() -> None:
    net, layer = pooled_net()
    net.trunk[1].auxiliary = nn.Linear(C, CLASSES)  # does not run, and stands before the head
    evidence = look(net, layer, torch.randn(2, *IMAGES), ClassScore(0))
    assert torch.equal(get_linear_head(evidence).weight, net.tail[-1].weight)


def pool(maps: Tensor) -> Tensor:
    return adaptive_avg_pool2d(maps, 1).flatten(1)


def generalized_mean(maps: Tensor) -> Tensor:
    return maps.clamp_min(1e-6).pow(3).mean((2, 3)).pow(1 / 3)


OTHER_HEADS = {
    "VGG": lambda: nn.Sequential(nn.Flatten(), nn.Linear(C * GRID[0] * GRID[1], 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "VGG of one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(C * GRID[0] * GRID[1], CLASSES)),
    "SqueezeNet": lambda: nn.Sequential(nn.Conv2d(C, CLASSES, 1), nn.ReLU(), Apply(pool)),
    "ConvNeXt": lambda: nn.Sequential(Apply(pool), nn.LayerNorm(C), nn.Linear(C, CLASSES)),
    "maximum": lambda: nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(C, CLASSES)),
    "generalised mean": lambda: nn.Sequential(Apply(generalized_mean), nn.Linear(C, CLASSES)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", OTHER_HEADS)
def test_cam_rejects_other_heads_and_suggests_methods(head: str, dtype: torch.dtype) -> None:
    net = Net(nn.Sequential(conv(), nn.ReLU()), OTHER_HEADS[head]()).to(dtype)
    with pytest.raises(MethodError, match=r"global average pooling .* Use method='gradcam' or 'layercam'"):
        camtool.explain(net, torch.randn(4, *IMAGES).to(dtype), 0, method="cam", layer="trunk")


# ---------------------------------------------------------------------------------- what holds for all the methods


def at(name: str, layer: str | list[str]) -> dict[str, Any]:
    """Return the ``layer`` argument for methods that use it."""
    return {} if METHODS[name].ignores_layer else {"layer": layer}


def raw(net: nn.Module, x: Tensor, name: str, **settings: Any) -> Tensor:
    """Return the raw maps ``(N, h, w)`` of one class from the public function."""
    settings = settings | FEWER.get(name, {}) | at(name, "trunk")
    results = camtool.explain(net, x, STEADY.get(name, 0), method=name, **settings)
    return torch.stack([torch.from_numpy(result.raw) for result in results])


@pytest.mark.parametrize("name", OF_ACTIVATIONS + OF_ATTENTION)
def test_batch_equals_single_images(name: str) -> None:
    net, x = suited(name)[0], torch.randn(5, *IMAGES)
    together = raw(net, x, name)
    close_to_peak(together, torch.cat([raw(net, image[None], name) for image in x]), 1e-5)
    for size in (1, 2, 4):
        close_to_peak(raw(net, x, name, batch_size=size), together, 1e-5)


@pytest.mark.parametrize("name", [*OF_ACTIVATIONS, *OF_ATTENTION, *OF_PATCHES])
def test_default_device_of_torch_makes_no_difference(name: str) -> None:
    net, x, options = suited(name)[0], torch.randn(2, *IMAGES), FEWER.get(name, {})
    expected, fresh = camtool.explain(net, x, 3, method=name, **options), copy.deepcopy(net)
    # As after torch.set_default_device("cuda"), but tensors on this device have no values.
    with torch.device("meta"):
        results = camtool.explain(fresh, x, 3, method=name, **options)
    for ours, theirs in zip(results, expected, strict=True):
        assert np.array_equal(ours.raw, theirs.raw)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_layers_may_lie_on_another_device_than_the_input() -> None:
    net, x = pooled_net()[0], torch.randn(2, *IMAGES)
    names = [name for name in OF_ACTIVATIONS if name != "random"]
    expected = camtool.explain(net, x, 3, method=names, samples=4)
    trunk, tail = copy.deepcopy(net.trunk), copy.deepcopy(net.tail).cuda()
    split = Net(nn.Sequential(trunk[0], Apply(lambda a: a.cuda()), trunk[1]), tail)
    for ours, theirs in zip(camtool.explain(split, x, 3, method=names, samples=4), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert np.abs(one.raw - other.raw).max() <= 1e-2 * np.abs(other.raw).max(), one.method
    assert len(camtool.explain(split, x, 3, layer=["trunk.0", "trunk.2"])) == len(x)
    assert camtool.Explainer(split).draw_overlays(x, [3, 3]).device == x.device
    assert camtool.evaluate(split, x, ["gradcam"], metrics=["single-deletion"]).rows


@pytest.mark.parametrize("name", OF_ACTIVATIONS + OF_ATTENTION)
def test_half_and_double_precision_equal_float32_up_to_rounding(name: str) -> None:
    net, x = suited(name)[0], torch.randn(2, *IMAGES)
    reference = raw(net, x, name)
    # The map of occlusion is a small difference of two scores, each of which is rounded.
    half = 0.2 if name == "occlusion" else 0.05
    with torch.autocast("cpu", torch.bfloat16):
        close_to_peak(raw(net, x, name), reference, half)
    close_to_peak(raw(net.double(), x.double(), name), reference, 1e-5)
    close_to_peak(raw(net.bfloat16(), x.bfloat16(), name), reference, half)


@pytest.mark.parametrize(("scale", "says"), [(0.0, "constant"), (1e30, ""), (1e38, "")])
@pytest.mark.parametrize("name", OF_ACTIVATIONS)
def test_heatmap_is_finite_and_an_empty_one_has_a_warning(name: str, scale: float, says: str) -> None:
    net, _ = pooled_net()
    net.trunk[0].bias.data.zero_()
    settings = FEWER.get(name, {}) | at(name, "trunk")
    for result in camtool.explain(net, scale * torch.rand(2, *IMAGES), 3, method=name, **settings):
        assert torch.from_numpy(result.heatmap).isfinite().all()
        assert 0 <= result.heatmap.min() <= result.heatmap.max() <= 1
        warned = [warning for warning in result.warnings if warning.startswith("The map")]
        assert bool(warned) == (not result.heatmap.any())
        assert says in "".join(warned)


@pytest.mark.parametrize("name", [name for name in OF_ACTIVATIONS if name != "rise"])  # whose masks change it
def test_uniform_image_gives_an_empty_heatmap_and_a_warning(name: str) -> None:
    trunk = nn.Sequential(nn.Conv2d(3, C, 1), nn.ReLU())
    net = Net(trunk, nn.Sequential(Apply(pool), nn.Linear(C, CLASSES)))
    (result,) = camtool.explain(net, torch.full((1, *IMAGES), 0.7), 3, method=name, **at(name, "trunk"))
    assert not result.heatmap.any()
    assert any("constant" in warning for warning in result.warnings)


class Corner(nn.Module):
    """A classifier of one class whose score is 1, or a little more if the first pixel is not black."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([1 + self.step * (x[:, 0, 0, 0] != 0), torch.zeros(len(x))], 1)


@pytest.mark.parametrize(("step", "is_shown"), [(2**-23, False), (2**-13, True)])  # one and 1024 steps of float32
def test_occlusion_does_not_show_the_rounding_of_scores(step: float, is_shown: bool) -> None:
    (result,) = camtool.explain(Corner(step), torch.ones(1, *IMAGES), 0, method="occlusion", kind="image")
    assert result.heatmap.any() == is_shown
    assert (result.heatmap[0, 0] == 1) == is_shown
    assert any("constant" in warning for warning in result.warnings) == (not is_shown)


@pytest.mark.parametrize("name", OF_ACTIVATIONS + OF_ATTENTION)
def test_method_does_not_change_the_evidence(name: str) -> None:
    net, layer = suited(name)
    evidence = look(net, layer, torch.randn(2, *IMAGES), ClassScore(0))
    A, g = evidence.activations.clone(), evidence.gradients.clone()
    METHODS[name](evidence)
    assert torch.equal(evidence.activations, A)
    assert torch.equal(evidence.gradients, g)


@pytest.mark.parametrize(
    ("name", "merge"), [*product(OF_ACTIVATIONS + OF_ATTENTION, [*MERGES][:1]), *product(SAMPLE, [*MERGES][1:])]
)
def test_two_layers_make_one_map_with_any_merge(name: str, merge: str) -> None:
    net, x = suited(name)[0], torch.randn(2, *IMAGES)
    layers = ["trunk.0", "trunk.1"]
    settings = FEWER.get(name, {}) | at(name, layers)
    together = camtool.explain(net, x, STEADY.get(name, 0), method=name, merge=merge, **settings)
    alone = raw(net, x, name)
    for result in together:
        assert result.raw.shape == alone.shape[1:]
        assert np.isfinite(result.raw).all()
        assert result.layer == ("" if METHODS[name].ignores_layer else " + ".join(layers))


SPACES = {1: (nn.Conv1d, (16,)), 2: (nn.Conv2d, (8, 12)), 3: (nn.Conv3d, (4, 6, 8))}


@pytest.mark.parametrize("axes", SPACES)
@pytest.mark.parametrize("name", OF_ACTIVATIONS)
def test_methods_accept_signals_images_and_volumes(name: str, axes: int) -> None:
    """From the model to the raw map; each is what it is for that image alone."""
    convolution, size = SPACES[axes]
    torch.manual_seed(1)
    net = Net(
        nn.Sequential(convolution(3, C, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(Apply(lambda a: a.flatten(2).mean(2)), nn.Linear(C, CLASSES)),
    ).double()
    net.tail[1].weight.data.abs_()  # so that every channel speaks for every class, and no map is rightly empty
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    layer = Layer("trunk", Layout("channels first", tuple(side // 2 for side in size)))
    options = FEWER.get(name, {}) | ({"score": "target"} if name in OF_PROBABILITIES else {})
    target = ClassScore(STEADY.get(name, 0))
    together = METHODS[name](look(net, layer, x, target), **options)
    assert together.ndim == 1 + axes
    assert together.isfinite().all()
    for n in range(2):
        close_to_peak(METHODS[name](look(net, layer, x[n : n + 1], target), **options), together[n : n + 1], 1e-7)


# --------------------------------------------------------------------------------------- any two tensors will do


def fake(A: Tensor, g: Tensor) -> SimpleNamespace:
    return SimpleNamespace(activations=A, gradients=g)


@pytest.mark.parametrize("name", FROM_GRADIENTS)
@pytest.mark.parametrize("grid", [(24,), (4, 6), (2, 3, 4)])
def test_rank_of_the_grid_does_not_change_values(name: str, grid: tuple[int, ...]) -> None:
    A, g = torch.rand(2, C, 24), torch.randn(2, C, 24)
    options = {"smoothing": 0} if name == "odam" else {}  # which positions are neighbors it does matter for
    ours = METHODS[name](fake(A.unflatten(2, grid), g.unflatten(2, grid)), **options)
    assert ours.shape == (2, *grid)
    close_to_peak(ours.flatten(1), METHODS[name](fake(A, g), **options), 1e-6)


def test_odam_smooths_gradients_over_adjacent_positions() -> None:
    """One position has a gradient; on activations of one, the map is the Gaussian about it, along each axis."""
    for grid, place in (((5,), (2,)), ((5, 5), (2, 1)), ((3, 5, 5), (1, 2, 3))):
        g = torch.zeros(1, 1, *grid)
        g[(0, 0, *place)] = 2
        ours = METHODS["odam"](fake(torch.ones(1, 1, *grid), g), smoothing=0.5)[0]
        assert_close(ours[place], 2 / (1 + 2 * torch.tensor(-2.0).exp()) ** len(grid), rtol=1e-2, atol=0)
        beside = (place[0] + 1, *place[1:])
        assert_close(ours[beside] / ours[place], torch.tensor(-2.0).exp(), rtol=0.15, atol=0)
        assert torch.equal(METHODS["odam"](fake(torch.ones(1, 1, *grid), g), smoothing=0)[0], g[0, 0])
    with pytest.raises(MethodError, match="smoothing must be a finite number at least 0, got -1"):
        METHODS["odam"](fake(torch.ones(1, 1, 5), torch.ones(1, 1, 5)), smoothing=-1)


@pytest.mark.parametrize("name", FROM_GRADIENTS)
@pytest.mark.parametrize("scale_A", [0.0, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("scale_g", [0.0, 1e-30, 1.0])
def test_maps_are_finite_and_not_negative(name: str, scale_A: float, scale_g: float) -> None:
    ours = METHODS[name](fake(scale_A * torch.randn(2, C, *GRID), scale_g * torch.randn(2, C, *GRID)))
    assert ours.isfinite().all()
    assert name in SIGNED or (ours >= 0).all()


@pytest.mark.parametrize("name", FROM_GRADIENTS)
def test_order_of_channels_and_zero_channels_have_no_effect(name: str) -> None:
    A, g = torch.rand(1, C, *GRID), torch.randn(1, C, *GRID)
    expected = METHODS[name](fake(A, g))
    order = torch.randperm(C)
    close_to_peak(METHODS[name](fake(A[:, order], g[:, order])), expected, 1e-6)
    silent = torch.zeros(1, 2, *GRID)
    close_to_peak(METHODS[name](fake(torch.cat([A, silent], 1), torch.cat([g, silent + 1], 1))), expected, 1e-6)
    close_to_peak(METHODS[name](fake(torch.cat([A, silent + 1], 1), torch.cat([g, silent], 1))), expected, 1e-6)


@pytest.mark.parametrize("name", [name for name in FROM_GRADIENTS if name not in WITHOUT_SIDES + SIGNED])
def test_negative_evidence_everywhere_gives_an_empty_map(name: str) -> None:
    assert not METHODS[name](fake(torch.rand(1, C, *GRID), -torch.rand(1, C, *GRID))).any()


def test_gradcam_plus_plus_does_not_underflow_like_the_literal_equation() -> None:
    A, g = torch.rand(1, C, *GRID), torch.randn(1, C, *GRID) * 1e-25
    literal = (g**2 / (2 * g**2 + g**3 * A.sum((2, 3), keepdim=True))).nan_to_num(0)
    assert not literal.any()
    none: Any = NotImplemented
    case = Case(A[0].double().tolist(), g[0].double().tolist(), [], [], 0, none, none, none, none, none)
    expected = ORACLES["gradcam++"](case)
    close_to_peak(METHODS["gradcam++"](fake(A, g)), torch.tensor([expected]), 1e-6)


def test_gradcam_plus_plus_with_noise_and_without_counts_negative_activations_by_their_size() -> None:
    """By ``2 + g Σ A`` the weights would be infinite in the first two maps, and -1 in the third one: upside down."""
    A = torch.tensor([[[-1.0, -1.0], [1.0, 3.0]], [[0.0, -2.0], [1.0, 3.0]], [[1.0, -5.0], [1.0, 0.0]]])
    # The weights are 2 / (2 + 2) and 2 / (2 + 4), twice; in the third map 2 / (2 + 6) and 2 / (2 + 1).
    expected = torch.tensor([[-1 / 2 + 1 / 3, -1 / 2 + 1], [0 + 1 / 3, -1 + 1], [1 / 4 + 2 / 3, -5 / 4]]).relu()
    evidence = fake(A, torch.ones_like(A))
    assert_close(METHODS["gradcam++"](evidence), expected)
    evidence.inputs, evidence.for_inputs = torch.rand(2, *IMAGES), lambda noisy: evidence
    assert_close(METHODS["smoothgradcam++"](evidence), expected)


def test_xgradcam_ignores_a_channel_that_sums_to_rounding_noise() -> None:
    g = torch.randn(1, 1, 2, 5)
    balanced = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]).repeat(2, 1) * torch.tensor([[1.0], [-1.0]])
    assert not METHODS["xgradcam"](fake(balanced[None, None], g)).any()


# ------------------------------------------------------------------------------------------------------ the registry


@pytest.mark.parametrize("name", METHODS)
def test_method_has_a_summary_and_a_source(name: str) -> None:
    found = METHODS[name]
    assert found.name == name
    assert found.summary.endswith(".")
    assert found.paper.startswith(("arXiv ", "10.")) or found.paper == "camtool"
    assert found.needs


def test_method_name_is_unique() -> None:
    before = dict(METHODS)
    with pytest.raises(MethodError, match=r"'gradcam' is registered already, by camtool\.methods\.families\.gradient"):
        method("gradcam", paper="arXiv 0000.00000")(lambda evidence: evidence.activations)
    assert before == METHODS


def test_registered_method_is_found_and_stays_a_plain_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(evidence: Evidence, *, power: float = 1.0) -> Tensor:
        """The mean activation."""
        return evidence.activations.mean(1) ** power

    monkeypatch.setitem(METHODS, "mine", None)
    METHODS.pop("mine")
    assert method("mine", paper="10.0/0", needs=("attention", "gradients"))(mine) is mine
    assert find_method("mine").needs == {"attention", "gradients"}
    assert (find_method("mine").summary, find_method("mine").options) == ("The mean activation.", {"power": 1.0})
    net, x = pooled_net()[0], torch.rand(2, *IMAGES)
    close_to_peak(raw(net, x, "mine", power=2.0), raw(net, x, "mine") ** 2, 1e-6)


@pytest.mark.parametrize("needs", ["attention, gradients", ["gradients", "tokens"]])
def test_unknown_need_is_rejected_with_the_known_ones(needs: Any) -> None:
    with pytest.raises(MethodError, match=r"'mine' has needs=.*; give one of 'text', .* or a tuple of several"):
        method("mine", needs=needs)(lambda evidence: evidence.activations)


def test_unknown_method_is_rejected_with_similar_names() -> None:
    with pytest.raises(MethodError, match=r"'gradcan' is unknown\. Did you mean 'gradcam'.* Known methods: .*\bcam\b"):
        camtool.explain(pooled_net()[0], torch.rand(1, *IMAGES), method="gradcan")


def test_unknown_option_is_rejected_with_known_options() -> None:
    def mine(evidence: Evidence, *, power: float = 1.0) -> Tensor:
        return evidence.activations.mean(1) ** power

    with pytest.raises(MethodError, match=r"method 'gradcam' has no option 'power'; known options: none\."):
        camtool.explain(pooled_net()[0], torch.rand(1, *IMAGES), method="gradcam", power=2)
    with pytest.raises(MethodError, match=r"'gradcam', 'mine' has no option 'powr'.* power\. Did you mean 'power'\?"):
        check_options([find_method("gradcam"), find_method(mine)], {"power": 1, "powr": 2})


def test_users_function_is_a_method_with_its_own_name() -> None:
    def energy(evidence: Evidence) -> Tensor:
        return evidence.activations.square().sum(1)

    net, x = pooled_net()[0], torch.rand(1, *IMAGES)
    (result,) = camtool.explain(net, x, 3, method=energy, layer="trunk")
    assert result.method == "energy"
    assert_close(torch.from_numpy(result.raw), net.trunk(x)[0].square().sum(0).detach())


@pytest.mark.parametrize(
    ("wrong", "came"),
    [
        (lambda evidence: evidence.activations, r"\(2, 5, 3, 4\)"),
        (lambda evidence: evidence.activations[0, 0], r"\(3, 4\)"),
        (lambda evidence: evidence.scores, r"\(2,\)"),
        (lambda evidence: evidence.activations.mean(1).numpy(), "ndarray"),
        (lambda evidence: None, "NoneType"),
    ],
)
def test_function_that_returns_no_maps_is_rejected(wrong: Any, came: str) -> None:
    with pytest.raises(MethodError, match=rf"returned {came}; it must return maps \(2, 3, 4\)"):
        camtool.explain(pooled_net()[0], torch.rand(2, *IMAGES), 3, method=wrong, layer="trunk")
