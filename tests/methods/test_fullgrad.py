"""FullGrad: its terms sum to the score of many kinds of networks, and the map is made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from camtool.evidence.evidence import Evidence, gather_evidence
from camtool.evidence.forward_pass import run_forward_pass
from camtool.methods import METHODS
from camtool.methods.families.input_gradient import compute_full_gradients
from camtool.targets import ClassScore, Target


def ask(net: nn.Module, x: Tensor, targets: list[Target], images: list[int] | None = None) -> Evidence:
    return gather_evidence(run_forward_pass(net, x, []), targets, images)[0]


def rows(term: Tensor) -> Tensor:
    return term.flatten(1).sum(1)


def unsettled(net: nn.Module) -> nn.Module:
    """With norms that have seen data, as a trained net's have."""
    for module in net.modules():
        if getattr(module, "running_mean", None) is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(getattr(module, "weight", None), nn.Parameter) and module.weight.ndim == 1:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return net.double()


class Residual(nn.Module):
    """A block whose norm's output is written to by the ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.norm(self.conv(x)))


class Functional(nn.Module):
    """The same without modules that could be found."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.bias = nn.Parameter(torch.randn(4, 4, 3, 3)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.conv2d(x, self.kernel, bias=self.bias, padding=1)
        y = functional.batch_norm(y, self.bias.detach(), self.bias.detach().exp(), bias=self.bias)
        return functional.relu(y, inplace=True)


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(input=x, weight=self.weight - self.weight.mean(), bias=self.bias)


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4, eps=1e-15), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x.movedim(1, -1))).movedim(-1, 1)


def twice() -> nn.Module:
    block = Residual()
    return nn.Sequential(block, block)


MIDDLES = {
    "nothing": nn.Identity,
    "residual": Residual,
    "shared": twice,
    "functional": Functional,
    "a subclass": lambda: Standardized(4, 4, 1),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 2, stride=2),
    "leaky": lambda: nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.LeakyReLU(), nn.MaxPool2d(2)),
    "channels last": ChannelsLast,
    "group norm": lambda: nn.GroupNorm(2, 4, eps=1e-15),
    "layer norm of all": lambda: nn.LayerNorm((4, 4, 4), eps=1e-15),
    "instance norm": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "instance norm by input": lambda: Scaled(nn.InstanceNorm2d(4, eps=1e-15)),
}


class Scaled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + 2 * self.inner(x)


def net_with(middle: str) -> nn.Module:
    return unsettled(
        nn.Sequential(
            *(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), MIDDLES[middle]()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5)),
        )
    )


@pytest.mark.parametrize("middle", MIDDLES)
def test_terms_sum_to_the_score(middle: str) -> None:
    evidence = ask(
        net_with(middle), torch.randn(3, 3, 8, 8).double(), [ClassScore(i) for i in (1, 4, 0, 2)], [0, 1, 2, 0]
    )
    from_pixels, from_biases = compute_full_gradients(evidence)
    assert_close(rows(from_pixels) + sum(map(rows, from_biases)), evidence.scores, rtol=1e-8, atol=1e-8)
    assert not torch.allclose(rows(from_pixels), evidence.scores, rtol=0.1)  # which is why there is FullGrad


def test_layer_counts_once_per_call_and_only_with_a_bias() -> None:
    count = {
        name: len(compute_full_gradients(ask(net_with(name), torch.randn(1, 3, 8, 8).double(), [ClassScore(0)]))[1])
        for name in MIDDLES
    }
    assert count["nothing"] == 3  # the batch norm and two linear layers; the first convolution has no bias
    assert count["residual"] == count["functional"] == 5
    assert count["shared"] == 7


def test_fullgrad_of_a_smooth_network_gives_a_map() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 5)).double()
    evidence = ask(net, torch.randn(2, 3, 8, 8).double(), [ClassScore(1)] * 2)
    from_pixels, from_biases = compute_full_gradients(evidence)
    assert not torch.allclose(rows(from_pixels) + sum(map(rows, from_biases)), evidence.scores)
    assert METHODS["fullgrad"](evidence).shape == (2, 8, 8)


def test_map_equals_numbers_by_hand() -> None:
    """``f = relu(x + 1)`` at one place, and ``2 relu(x - 1)`` at the other."""
    net = nn.Sequential(nn.Conv1d(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1))
    net[0].weight.data, net[0].bias.data = torch.ones(2, 1, 1), torch.tensor([1.0, -1.0])
    net[3].weight.data, net[3].bias.data = torch.tensor([[1.0, 0.0, 0.0, 2.0]]), torch.tensor([7.0])
    evidence = ask(net, torch.tensor([[[3.0, 4.0]]]), [ClassScore(1)])
    from_pixels, (from_conv, from_linear) = compute_full_gradients(evidence)
    assert evidence.scores.tolist() == [17]  # 3 + 1 + 2 (4 - 1) + 7
    assert from_pixels.tolist() == [[[3, 8]]]
    assert from_conv.tolist() == [[[1, 0], [0, -2]]]
    assert from_linear.tolist() == [[7]]
    # ψ of the pixels [0, 1]; of the biases [0.5, 0] and [0, 1]; the linear layer has no positions.
    assert METHODS["fullgrad"](evidence).tolist() == [[0.5, 2]]


class Shifted(nn.Module):
    """Network that adds a result of parameters alone to the features, like the position bias of a Swin."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.grid = inner, nn.Parameter(torch.randn(3, 3, 2))
        self.made_by = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.made_by(self.grid[None]).mean((1, 2))[..., None, None]


@pytest.mark.parametrize("rows", [1, 2])
def test_results_of_parameters_alone_do_not_count(rows: int) -> None:
    """Made once for all pictures it would pass, beside a single one, for that picture's own."""
    net = nn.Sequential(Shifted(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).double()
    evidence = ask(net, torch.randn(rows, 3, 8, 8).double(), [ClassScore(1)] * rows)
    assert [term.shape[1:] for term in compute_full_gradients(evidence)[1]] == [(4, 6, 6), (5,)]


def test_single_image_equals_batch_beside_a_net_of_parameters() -> None:
    net = nn.Sequential(Shifted(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).double()
    x = torch.randn(3, 3, 8, 8).double()
    together = METHODS["fullgrad"](ask(net, x, [ClassScore(1)] * 3))
    alone = [METHODS["fullgrad"](ask(net, x[n : n + 1], [ClassScore(1)])) for n in range(3)]
    assert_close(together, torch.cat(alone))


class OneByOne(nn.Module):
    """Layers that are given a single picture, and a single vector, without an axis for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(144, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.linear(self.conv(one).relu().flatten()) for one in x])


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_layers_without_a_batch_axis_do_not_count(rows: int) -> None:
    evidence = ask(OneByOne(), torch.randn(rows, 3, 8, 8), [ClassScore(1)] * rows)
    assert METHODS["fullgrad"](evidence).isfinite().all()


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_channels_can_be_last(last: bool) -> None:
    """A 1 x 1 convolution is a linear layer on channels that come last, and is drawn at the same places."""
    conv, linear = nn.Conv2d(3, 4, 1), nn.Linear(3, 4)
    linear.weight.data, linear.bias.data = conv.weight.data.flatten(1), conv.bias.data
    head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return head(linear(x.movedim(1, -1)).movedim(-1, 1) if last else conv(x))

    x = torch.randn(2, 3, 4, 4)
    ours = METHODS["fullgrad"](ask(Net(), x, [ClassScore(0)] * 2))
    assert_close(ours, METHODS["fullgrad"](ask(nn.Sequential(conv, head), x, [ClassScore(0)] * 2)))


@pytest.mark.parametrize(
    ("conv", "norm", "size"),
    [
        (nn.Conv1d, nn.BatchNorm1d, (9,)),
        (nn.Conv2d, nn.BatchNorm2d, (7, 9)),
        (nn.Conv3d, nn.BatchNorm3d, (5, 7, 4)),
    ],
)
def test_fullgrad_accepts_any_rank_and_number_of_rows(conv: Any, norm: Any, size: tuple[int, ...]) -> None:
    net = unsettled(
        nn.Sequential(conv(2, 4, 3, 2, 1), norm(4), nn.ReLU(), nn.Flatten(), nn.AdaptiveAvgPool1d(8), nn.Linear(8, 5))
    )
    x = torch.randn(3, 2, *size).double()
    asked = [(0, 1), (2, 4), (0, 3), (1, 1)]
    together = METHODS["fullgrad"](ask(net, x, [ClassScore(c) for _, c in asked], [n for n, _ in asked]))
    alone = [METHODS["fullgrad"](ask(net, x[n : n + 1], [ClassScore(c)])) for n, c in asked]
    assert together.shape == (4, *size)
    assert_close(together, torch.cat(alone))


class EarlyExit(nn.Module):
    """A network whose second layer runs on the bright images alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        features, (bright,) = self.first(x).relu(), (x.mean((1, 2, 3)) > 0.5).nonzero(as_tuple=True)
        if len(bright):
            features = features.index_put((bright,), self.second(features[bright]).relu())
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


@pytest.mark.parametrize("brightness", [[0.2, 0.8, 0.3], [0.8, 0.2, 0.9]])
def test_a_layer_may_run_on_some_images_alone(brightness: list[float]) -> None:
    net = EarlyExit().double()
    x = torch.rand(3, 3, 8, 8).double() * 0.1 + torch.tensor(brightness).double()[:, None, None, None]
    alone = [METHODS["fullgrad"](ask(net, image[None], [ClassScore(1)])) for image in x]
    assert_close(METHODS["fullgrad"](ask(net, x, [ClassScore(1)] * 3)), torch.cat(alone))


def test_bias_counts_if_pixels_do_not() -> None:
    """The score of a black picture is all bias; a method of gradients times pixels is empty there."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    evidence = ask(net, torch.zeros(1, 3, 8, 8), [ClassScore(0)])
    assert not METHODS["inputxgradient"](evidence).any()
    assert METHODS["fullgrad"](evidence).any()


def test_constant_layer_is_not_scaled_up() -> None:
    """Every bias and gradient is the same up to rounding, so only the pixels say anything."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.rand(1, 1, 7, 7)
    from_pixels, _ = compute_full_gradients(ask(net, x, [ClassScore(1)]))
    expected = (x / x.amax())[:, 0]
    low = expected.amin()
    assert_close(METHODS["fullgrad"](ask(net, x, [ClassScore(1)])), (expected - low) / (1 - low))
    assert_close(from_pixels, x * net[0].weight.detach() / 49)


def test_norm_over_all_axes_has_its_channels_first() -> None:
    net = nn.Sequential(nn.LayerNorm((2, 3, 5)), nn.Flatten(), nn.Linear(30, 5))
    _, (from_norm, _) = compute_full_gradients(ask(net, torch.randn(2, 2, 3, 5), [ClassScore(0)] * 2))
    assert from_norm.shape == (2, 2, 3, 5)
