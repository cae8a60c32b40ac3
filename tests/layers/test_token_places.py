"""Cells are the tokens that move with the picture, wherever class tokens, registers and joint tokens lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import LayerError
from camtool.layers.layouts import Layer, Layout, place_at_changed
from camtool.layers.selection import find_layers
from tests.layers.nets import RegisterNet

SIDE, PATCH, SPOT = 5, 16, (3, 1)
"""Cells along each axis, pixels of each, and the row and the column of the bright one."""


def build_image() -> Tensor:
    image = torch.full((1, 3, SIDE * PATCH, SIDE * PATCH), 0.2)
    row, column = (PATCH * cell for cell in SPOT)
    image[..., row : row + PATCH, column : column + PATCH] = 1
    return image


class ScanBlock(nn.Module):
    """A block that adds sums over all tokens up to each one, and from it on, as a state-space model scans them."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.proj = nn.Dropout(0.1), nn.Linear(8, 8, bias=False)
        nn.init.eye_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        both = x.cumsum(1) + x.flip(1).cumsum(1).flip(1)
        return x + self.proj(both / x.shape[1])  # type: ignore[no-any-return]


class ScanNet(nn.Module):
    """A network that reads the brightness of patches from learned tokens among them.

    Args:
        others: Where the learned tokens lie.
        reads_each: Whether each of them gives a score; else their mean gives three.
    """

    def __init__(self, others: Sequence[int], *, reads_each: bool = False) -> None:
        super().__init__()
        tokens = SIDE**2 + len(others)
        self.places, self.reads_each = [i for i in range(tokens) if i not in others], reads_each
        self.others, self.b = [*others], nn.Sequential(ScanBlock(), ScanBlock(), ScanBlock())
        self.patches, self.learned = nn.Conv2d(3, 8, PATCH, PATCH), nn.Parameter(torch.randn(1, len(others), 8))
        self.order = sorted(range(tokens), key=[*self.places, *self.others].__getitem__)
        self.head = nn.Linear(8, 1 if reads_each else 3)
        with torch.no_grad():
            self.patches.weight[0] = 1 / (3 * PATCH**2)
            self.head.weight.zero_()[:, 0] = 1

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).mT
        tokens = torch.cat([patches, self.learned.expand(len(x), -1, -1)], 1)[:, self.order]
        read = self.b(tokens)[:, self.others]
        scores: Tensor = self.head(read).squeeze(-1) if self.reads_each else self.head(read.mean(1))
        return scores


NETS: dict[str, tuple[Callable[[], ScanNet], list[int]]] = {
    "vision mamba, class token in the middle": (
        lambda: ScanNet([12]),
        [*range(12), *range(13, 26)],
    ),
    "mamba with registers": (
        lambda: ScanNet([4, 10, 16, 22]),
        [*range(4), *range(5, 10), *range(11, 16), *range(17, 22), *range(23, 29)],
    ),
    "joints before": (lambda: ScanNet(range(17), reads_each=True), [*range(17, 42)]),
    "joints behind": (lambda: ScanNet(range(25, 42), reads_each=True), [*range(25)]),
    "joints between": (lambda: ScanNet(range(1, 34, 2), reads_each=True), [*range(0, 34, 2), *range(34, 42)]),
}


@pytest.mark.parametrize("name", NETS)
def test_the_map_is_the_grid_without_other_tokens(name: str) -> None:
    torch.manual_seed(0)
    build, cells = NETS[name]
    model, image = build().eval(), build_image()
    for asked in (None, ["b.1"]):
        (layer,) = find_layers(model, image, asked)
        assert layer.name.startswith("b.")
        assert ([*layer.layout.cells], layer.layout.grid) == (cells, (SIDE, SIDE))
        for method in ("gradcam", "hirescam", "ablationcam", "eigencam"):
            (result,) = camtool.explain(model, image, 2, layer=asked, method=method)
            raw = np.abs(result.raw) if method == "eigencam" else result.raw
            assert np.unravel_index(raw.argmax(), raw.shape) == SPOT, (asked, method)
            assert not any(warning.code == "shallow-layer" for warning in result.warnings)


def test_the_places_hold_for_images_of_another_size() -> None:
    """The number of registers is known from the first size; where they lie is found again."""
    torch.manual_seed(0)
    model = RegisterNet(4, 24).eval()
    (layer,) = find_layers(model, torch.rand(1, 3, 64, 64), ["norm"])
    (larger,) = find_layers(model, torch.rand(1, 3, 80, 80), ["norm"], like=layer.layout)
    assert [*larger.layout.cells] == [*range(1, 25), *range(29, 105)]


@pytest.mark.parametrize(
    "method", ["layercam", "scorecam", "ablationcam", "rollout", "chefer", "agcam", "vitreciprocam"]
)
def test_other_tokens_between_the_cells_change_no_map(method: str) -> None:
    """Attention without positions and the mean of all tokens do not depend on the order of the tokens."""
    torch.manual_seed(0)
    first, between = (RegisterNet(1, before, patch=16, cells=16) for before in (0, 7))
    image = torch.rand(1, 3, 64, 64)
    between.load_state_dict(first.state_dict())
    maps = [camtool.explain(model.eval(), image, 1, method=method)[0].raw for model in (first, between)]
    np.testing.assert_allclose(maps[1], maps[0], rtol=1e-3, atol=1e-3 * np.abs(maps[0]).max())


def test_attention_to_cells_around_a_register() -> None:
    torch.manual_seed(0)
    model, image = RegisterNet(1, 24).eval(), torch.rand(1, 3, 64, 64)
    maps = camtool.attention(model, image)
    assert [*maps.layout.cells] == model.cells
    raw = maps.map(query=25).raw
    np.testing.assert_array_equal(raw.ravel(), maps.matrices.mean(0)[25][model.cells])
    assert maps.queries.describe([25]) == "inner token 25"
    assert maps.queries.describe([26]) == "image token (3, 0)"
    assert maps.map(query=(4, 28)).label.startswith("image token (3, 0)")  # behind the register
    assert maps.map().label.startswith("mean of 64 image tokens")
    with pytest.raises(camtool.TargetError, match="its 2 other tokens have no known meaning"):
        maps.map(query="class")


def test_a_single_token_between_the_cells_is_the_class_token() -> None:
    class Middle(RegisterNet):
        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x).flatten(2).mT
            tokens = torch.cat([tokens[:, :9], self.token.expand(len(x), -1, -1), tokens[:, 9:]], 1)
            return self.head(self.norm(self.block(tokens))[:, 9])  # type: ignore[no-any-return]

    maps = camtool.attention(Middle(0, 9).eval(), torch.rand(1, 3, 64, 64))
    assert maps.queries.class_token == 9
    assert maps.map().label.startswith("class token")


def test_an_exported_model_has_the_map_without_other_tokens(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, image = RegisterNet(1, 7, patch=16, cells=16).eval(), torch.rand(1, 3, 64, 64)
    file = camtool.export(model, tmp_path / "model.onnx", "hirescam", size=(64, 64), dynamic_batch=False)
    inputs = {"images": image.numpy(), "target_class": np.array([1])}
    _, maps = runtime.InferenceSession(str(file)).run(None, inputs)
    (result,) = camtool.explain(model, image, 1, method="hirescam")
    np.testing.assert_allclose(maps[0], result.raw, atol=1e-6)


def test_the_table_names_tokens_between_the_cells() -> None:
    assert str(Layout.from_positions((2, 2), [1, 2, 4, 5], 8)) == "tokens, 2 x 2 around 1 after 1 before 2"
    table = str(camtool.candidate_layers(RegisterNet(3, 24).eval(), torch.rand(1, 3, 64, 64)))
    assert "1 prefix token, 3 inner tokens" in table


def test_a_layout_is_placed_only_at_as_many_tokens_as_it_has_cells() -> None:
    layout, pair = Layout("tokens", (2, 2), prefix=2), torch.zeros(2, 6, 3)
    pair[1, [0, 2, 3, 5], 1] = torch.tensor([1.0, 0.5, 2.0, 0.1])
    assert place_at_changed(layout, pair) == Layout.from_positions((2, 2), [0, 2, 3, 5], 6)
    pair[1, 4] = 1
    assert place_at_changed(layout, pair) is None
    pair[1, [4, 5]] = 1e-6
    assert place_at_changed(layout, pair) is None


def test_tokens_are_written_where_they_are_read() -> None:
    layout, like = Layout.from_positions((2, 2), [0, 1, 3, 4], 6), torch.arange(6.0)[None, :, None]
    written = layout.from_grid(-torch.ones(2, 1, 2, 2), like)
    assert written[..., 0].tolist() == [[-1, -1, 2, -1, -1, 5]] * 2
    assert layout.others == [2, 5]


def test_learned_queries_beside_the_patches_stay_refused() -> None:
    """Of 42 tokens, 17 read the image before any layer shows them: nothing tells which are cells."""

    class Mixed(ScanNet):
        def forward(self, x: Tensor) -> Tensor:
            mean = self.patches(x).mean((2, 3))[:, None]
            tokens = torch.cat([self.patches(x).flatten(2).mT, self.learned + mean], 1)
            return self.head(self.b(tokens)[:, 25:]).squeeze(-1)  # type: ignore[no-any-return]

    model = Mixed(range(25, 42), reads_each=True).eval()
    assert find_layers(model, build_image()) == [Layer("patches", Layout("channels first", (SIDE, SIDE)))]
    with pytest.raises(LayerError, match="no grid over the 80 x 80 input"):
        find_layers(model, build_image(), ["b.1"])


def test_a_default_of_the_patch_embedding_says_so() -> None:
    torch.manual_seed(0)
    model, image = RegisterNet(1, 24, starts_as_mean=True).eval(), torch.rand(1, 3, 64, 64)
    (result,) = camtool.explain(model, image, 1)
    (warning,) = [warning for warning in result.warnings if warning.code == "shallow-layer"]
    assert result.layer == "patches"
    assert "later layers up to 'norm' return tokens whose places are uncertain" in warning
    for options in ({"layer": "patches"}, {"method": "occlusion"}):
        (result,) = camtool.explain(model, image, 1, **options)
        assert not any(warning.code == "shallow-layer" for warning in result.warnings)
