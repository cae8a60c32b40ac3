"""Models and helpers of the tests of the recorder."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from tests.helpers.nets import Apply


def net(*, inplace: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace), nn.Conv2d(4, 5, 3), nn.ReLU(inplace), nn.Flatten(), nn.Linear(80, 2)
    ).double()


def identity_layer(size: int) -> nn.Linear:
    """A linear layer that returns what it is given; unlike ``nn.Identity``, as another tensor."""
    layer = nn.Linear(size, size, bias=False)
    nn.init.eye_(layer.weight)
    return layer


def hooks_on(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def record_with_module_hooks(model: nn.Module, layer: str, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the gradients that a full backward hook of torch gets at the input and output of a module."""
    seen: list[tuple[Tensor | None, Tensor]] = []
    hook = model.get_submodule(layer).register_full_backward_hook(lambda _, gi, go: seen.append((gi[0], go[0])))
    model(inputs.clone().requires_grad_())[:, 1].sum().backward()
    hook.remove()
    return seen[0]


class Pair(NamedTuple):
    one: Tensor
    other: Any


class Structured(nn.Module):
    def forward(self, x: Tensor, /, *, mask: Tensor, factor: int) -> dict[str, Any]:
        return {"pair": Pair(factor * x, [x.long(), None]), "text": "as it is", "sum": (x * mask).sum()}


class Residual(nn.Module):
    """``2 x + 3 x`` by two branches, the second a module, or without one: the input itself."""

    def __init__(self, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = Apply(lambda x: 2 * x), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x) + self.shortcut(x)
