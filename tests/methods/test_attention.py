"""Methods from attention against their oracles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.methods import METHODS
from camtool.targets import ClassScore, Contrast, Custom, Probability, Target
from tests.helpers.vision_transformers import (
    ATTENTION_FUNCTIONS,
    ATTENTION_METHODS,
    GRID,
    HUGGING_FACE_MODELS,
    IMAGES,
    POOLINGS,
    SMALL_TIMM,
    TinyViT,
    build_oracle,
    build_timm,
    close_to_peak,
    gather_rows,
    make_images,
    make_tiny_vit,
    randomize_parameters,
)
from tests.oracles import ORACLES

# -------------------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_methods_equal_their_oracles(name: str, pooling: str) -> None:
    net, classes = make_tiny_vit(pooling=pooling), [4, 1, 0]
    x = make_images(3)
    expected = [ORACLES[name](build_oracle(net, x[n : n + 1], classes[n])) for n in range(3)]
    ours = METHODS[name](gather_rows(net, x, [ClassScore(index) for index in classes]))
    close_to_peak(ours, torch.tensor(expected, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            ("rollout", {"fusion": fusion, "discard": discard})
            for fusion in ("mean", "max", "min")
            for discard in (0, 0.6)
        ),
        *(("legrad", {"layers": layers}) for layers in (1, 2, 3)),
        ("vitreciprocam", {"gaussian": False}),
        ("vitreciprocam", {"score": "probability"}),
    ],
)
def test_options_equal_the_oracle(name: str, options: dict[str, Any]) -> None:
    net, x = make_tiny_vit(), make_images(1)
    ours = METHODS[name](gather_rows(net, x, [ClassScore(2)]), **options)
    close_to_peak(ours, torch.tensor([ORACLES[name](build_oracle(net, x, 2), **options)], dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_maps_do_not_depend_on_how_the_attention_is_written(name: str) -> None:
    x = make_images()
    expected = METHODS[name](gather_rows(make_tiny_vit(), x, [ClassScore(3)] * 2))
    for how in ATTENTION_FUNCTIONS:
        close_to_peak(METHODS[name](gather_rows(make_tiny_vit(how), x, [ClassScore(3)] * 2)), expected, 1e-9)


@pytest.mark.parametrize("target", [ClassScore(3), Contrast(2, (0, 5)), Probability(6), Custom(lambda y: y[2] ** 2)])
@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_each_row_equals_the_map_of_its_target_alone(name: str, target: Target) -> None:
    net, x, images = make_tiny_vit(), make_images(3), [2, 0, 2, 2]
    wanted: list[Target] = [ClassScore(1), target, target, ClassScore(6)]
    together = METHODS[name](gather_rows(net, x, wanted, images))
    alone = [METHODS[name](gather_rows(net, x[n : n + 1], [each])) for each, n in zip(wanted, images, strict=True)]
    close_to_peak(together, torch.cat(alone), 1e-9)


@pytest.mark.parametrize("name", ATTENTION_METHODS)
def test_maps_repeat_and_wrappers_accept_the_methods(name: str) -> None:
    net, x = make_tiny_vit(), make_images()
    first, again = (camtool.explain(net, x, 3, method=name)[0].raw for _ in range(2))
    assert (first == again).all()
    assert first.shape == GRID
    for wrapper in ("noise", "tta"):
        assert camtool.explain(net, x, 3, method=f"{wrapper}:{name}")[0].raw.shape == GRID


class LastTokens(nn.Module):
    """A transformer with its class token behind the patches."""

    def __init__(self, net: TinyViT) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.net.embed(x).roll(-self.net.prefix, 1)
        return self.net.answer(self.net.blocks(tokens).roll(self.net.prefix, 1))


@pytest.mark.parametrize("name", [*ATTENTION_METHODS, "maskclip", "clearclip", "clipsurgery"])
def test_a_class_token_may_be_the_last(name: str) -> None:
    net, x = make_tiny_vit(), make_images()
    first, last = (METHODS[name](gather_rows(each, x, [ClassScore(3)] * 2)) for each in (net, LastTokens(net)))
    close_to_peak(last, first, 1e-9)


def test_the_places_of_tokens_are_found_on_the_next_image_and_in_the_mode_of_the_forward_pass() -> None:
    net, x, modes = make_tiny_vit().float(), make_images().float(), list[bool]()
    net.patches.register_forward_hook(lambda *_: modes.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", torch.bfloat16):
        missing, present = (gather_rows(net, each, [ClassScore(3)] * 2) for each in (x * torch.nan, x))
    with pytest.raises(MethodError, match="no layer shows which of them are parts of the image"):
        METHODS["rollout"](missing)
    assert METHODS["rollout"](present).shape == (2, *GRID)
    assert all(modes)


def test_all_methods_but_rollout_depend_on_the_class() -> None:
    net, x = make_tiny_vit(), make_images(1)
    for name in ATTENTION_METHODS:
        one, other = METHODS[name](gather_rows(net, x, [ClassScore(1), ClassScore(5)], [0, 0]))
        assert torch.allclose(one, other) == (name == "rollout"), name


@pytest.mark.parametrize("name", ["agcam", "legrad", "gradeclip"])
def test_gradients_scale_with_the_score(name: str) -> None:
    net, x = make_tiny_vit(), make_images(1)
    one, ten = METHODS[name](gather_rows(net, x, [ClassScore(1), Custom(lambda y: 10 * y[1])], [0, 0]))
    close_to_peak(ten, 10 * one, 1e-9)


# A class token and two patches, one head. The values are the tokens' own first numbers, the head reads the class token.
HAND_MATRIX = [[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]


class ThreeTokens(nn.Module):
    """One layer with given logits, so that every number can be computed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Identity()  # shows which tokens are the image's

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([x.new_tensor([[[4.0]]]).expand(len(x), 1, 1), x.flatten(2).transpose(1, 2)], 1)
        tokens = self.embed(tokens)[:, None]
        weights = (tokens @ torch.ones_like(tokens).mT * 0 + x.new_tensor(HAND_MATRIX).log()).softmax(-1)
        out = tokens + weights @ tokens  # (N, 1, 3, 1)
        return torch.cat([out[:, 0, 0], -out[:, 0, 0]], 1)


@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [
        ("rollout", 0, [0.5 / 2, 0.3 / 2]),
        ("chefer", 0, [0.5 * 10, 0.0]),  # the gradients are the values, 10 and -20
        ("chefer", 1, [0.0, 0.3 * 20]),
        ("agcam", 0, [10 / 3, 0.0]),  # sigmoid(log a) = a / (1 + a)
        ("agcam", 1, [0.0, 20 * 0.3 / 1.3]),
        ("legrad", 1, [0.0, 20 / 3]),  # the mean over three queries
    ],
)
def test_maps_of_three_tokens_by_hand(name: str, index: int, expected: list[float]) -> None:
    x = torch.tensor([[[[10.0, -20.0]]]])
    evidence = gather_rows(ThreeTokens(), x, [ClassScore(index)])
    assert_close(METHODS[name](evidence), torch.tensor([[expected]]))


def test_legrad_names_how_many_layers_there_are() -> None:
    with pytest.raises(MethodError, match=r"layers must be at most 3: the model has 3 blocks with self-attention"):
        camtool.explain(make_tiny_vit(), make_images(1), 1, method="legrad", layers=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fusion": "mena"}, r"fusion must be one of 'mean', 'max', 'min', got 'mena'\. Did you mean 'mean'"),
        ({"discard": 1.0}, r"discard must be a finite number at least 0 and below 1, got 1\.0"),
        ({"discard": -0.1}, "discard must be"),
    ],
)
def test_options_out_of_range_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        camtool.explain(make_tiny_vit(), make_images(1), 1, method="rollout", **options)


# ------------------------------------------------------------------------------------------- do maps find the object


@pytest.mark.parametrize("name", HUGGING_FACE_MODELS)
@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_maps_have_the_grid_of_the_patches_on_real_architectures(method: str, name: str) -> None:
    net, x = randomize_parameters(HUGGING_FACE_MODELS[name]()), torch.randn(2, 3, 48, 48)
    results = camtool.explain(net, x, [1, 2], method=method)
    for result in results:
        assert result.raw.shape == (3, 3)
        assert torch.from_numpy(result.raw).isfinite().all()
    assert not (results[0].raw == results[1].raw).all()


@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_images_may_be_rectangular(method: str) -> None:
    net = randomize_parameters(build_timm("vit_tiny_patch16_224", **SMALL_TIMM | {"img_size": (48, 80)}))
    (result,) = camtool.explain(net, torch.randn(1, 3, 48, 80), 0, method=method)
    assert result.raw.shape == (3, 5)


def make_lit_images(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images of 3 x 4 noisy patches, in which each of three colors lights up one patch, or none.

    Returns:
        The images, a mask of the colors in each ``(count, 3)``, and the patch of each color, lit or not.
    """
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(count, *IMAGES, generator=generator)
    places = torch.rand(count, 12, generator=generator).argsort(1)[:, :3]
    is_there = torch.rand(count, 3, generator=generator) < 0.5
    for image, color in is_there.nonzero().tolist():
        row, column = divmod(int(places[image, color]), GRID[1])
        x[image, color, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += 2
    return x, is_there, places


@pytest.fixture(scope="module")
def trained_vit() -> TinyViT:
    """A transformer of one block that is trained to recognize the colors."""
    torch.manual_seed(0)
    net = TinyViT(depth=1)
    net.norm = nn.Identity()  # a norm leaves a high score almost no gradient
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for step in range(300):
        x, is_there, _ = make_lit_images(64, step)
        loss = functional.binary_cross_entropy_with_logits(net(x)[:, :3], is_there.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    return net.eval()


@pytest.mark.parametrize("method", ATTENTION_METHODS)
def test_maps_peak_on_the_patch_that_decides(trained_vit: TinyViT, method: str) -> None:
    """Each color is found among up to two others; rollout, which depends on no class, may find any of them."""
    x, is_there, places = make_lit_images(100, 1000)
    rows = is_there.nonzero().tolist()
    wanted: list[Target] = [ClassScore(color) for _, color in rows]
    images = [image for image, _ in rows]
    peaks = METHODS[method](gather_rows(trained_vit, x, wanted, images)).flatten(1).argmax(1).tolist()
    found = [
        peak in (places[image][is_there[image]] if method == "rollout" else places[image, color])
        for (image, color), peak in zip(rows, peaks, strict=True)
    ]
    assert sum(found) / len(found) > 0.9
