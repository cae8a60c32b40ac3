"""Selection of layers: the best one, layers by name, and remembered answers."""

from __future__ import annotations

import gc
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torchvision.models as zoo
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

import camtool
from camtool.errors import LayerError
from camtool.hooks.observation import run_with_hooks
from camtool.layers.layouts import Layer, Layout, follows_image
from camtool.layers.selection import find_layers
from camtool.layers.survey import find_candidates
from camtool.layers.survey_batches import nudge_bands
from tests.helpers.nets import Apply
from tests.layers.nets import (
    AttentionNet,
    ClassAttention,
    LatentNet,
    PatchNet,
    QueryNet,
    RegisterNet,
    build_small_cnn,
    build_small_vit,
    to_tokens,
)

FIRST, LAST, TOKENS = "channels first", "channels last", "tokens"


def responds_in_place(model: nn.Module, layer: Layer, size: tuple[int, ...]) -> bool:
    """Check that noise in each quadrant of the image changes the layer's map most in the same quadrant."""
    halves = [[slice(0, pixels // 2), slice(pixels // 2, None)] for pixels in size]
    images = torch.zeros(5, 3, *size)
    for i, image in enumerate(images[1:]):
        rows, columns = halves[0][i // 2], halves[1][i % 2]
        image[:, rows, columns] = torch.randn_like(image[:, rows, columns])
    maps = layer.layout.to_grid(run_with_hooks(model, [layer.name], images, grad=False).calls[layer.name][-1])
    change = (maps[1:] - maps[:1]).abs().mean(1)  # (4, h, w)
    h, w = (cells // 2 for cells in layer.layout.grid)  # the middle of an odd grid belongs to no quadrant
    quadrants = [change[:, :h, :w], change[:, :h, -w:], change[:, -h:, :w], change[:, -h:, -w:]]
    return torch.stack([part.mean((1, 2)) for part in quadrants], 1).argmax(1).tolist() == [0, 1, 2, 3]


# -------------------------------------------------------------------------------------------------- grids and layouts


@pytest.mark.parametrize("size", [(64, 64), (224, 320), (320, 224)], ids=str)
@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
def test_tokens_are_read_with_prefix_and_image_proportions(size: tuple[int, int], prefix: int) -> None:
    model = PatchNet(to_tokens(prefix), lambda x: x.mean(1), patch=16)
    (layer,) = find_layers(model, torch.randn(1, 3, *size))
    assert layer == Layer("shaped", Layout(TOKENS, (size[0] // 16, size[1] // 16), prefix))
    assert responds_in_place(model, layer, size)


@pytest.mark.parametrize("last", [False, True], ids=[FIRST, LAST])
@pytest.mark.parametrize("names", [None, ["shaped"]], ids=["best", "by name"])
@pytest.mark.parametrize("images", [1, 3])
def test_the_changed_corner_decides_between_two_layouts(last: bool, names: list[str] | None, images: int) -> None:
    model = PatchNet(
        (lambda x: x.movedim(1, -1).contiguous()) if last else (lambda x: x + 1),
        lambda x: x.mean((1, 2) if last else (2, 3)),
    )
    batch = torch.randn(images, 3, 64, 64)
    assert model.shaped(model.patches(batch)).shape == (images, 8, 8, 8)
    (layer,) = find_layers(model, batch, names)
    assert layer == Layer("shaped", Layout(LAST if last else FIRST, (8, 8)))


@pytest.mark.parametrize(
    ("model", "shape", "grid"),
    [
        (nn.Sequential(nn.Conv3d(1, 4, 3, stride=4, padding=1), nn.AdaptiveAvgPool3d(1)), (16, 24, 32), (4, 6, 8)),
        (nn.Sequential(nn.Conv1d(1, 4, 3, stride=4, padding=1), nn.AdaptiveAvgPool1d(1)), (64,), (16,)),
    ],
    ids=["volume", "signal"],
)
def test_volumes_and_signals_have_grids(model: nn.Module, shape: tuple[int, ...], grid: tuple[int, ...]) -> None:
    model.append(nn.Flatten()).append(nn.Linear(4, 3))
    assert find_layers(model, torch.randn(2, 1, *shape)) == [Layer("0", Layout(FIRST, grid))]


@pytest.mark.parametrize("color", [0.0, 0.5, 1.0])
def test_an_image_of_one_color_suffices(color: float) -> None:
    (layer,) = find_layers(build_small_cnn(), torch.full((1, 3, 64, 64), color))
    assert layer.name == "0"


def build_dark_image(*, bright: bool) -> Tensor:
    """Return a dark image, with a bright square in the lower right quadrant if asked."""
    image = torch.full((1, 3, 64, 64), 0.05)
    if bright:
        image[..., 48:56, 48:56] = 1
    return image


@pytest.mark.parametrize("sign", [1, -1], ids=["bright", "dark"])
@pytest.mark.parametrize("bright", [True, False], ids=["with a square", "of one color"])
def test_a_relu_that_ignores_the_changed_corner_is_found(sign: int, bright: bool) -> None:
    """It responds to bright patches only, or to dark ones, and the corner that is changed has none."""
    model = nn.Sequential(
        OrderedDict(c=nn.Conv2d(3, 4, 4, 4), r=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
    ).append(nn.Linear(4, 2))
    nn.init.constant_(model.c.weight, sign * 0.05)
    nn.init.constant_(model.c.bias, -1.5)
    nn.init.constant_(model.get_submodule("4").weight, 1.0)
    assert find_layers(model, sign * build_dark_image(bright=bright)) == [Layer("r", Layout(FIRST, (16, 16)))]


@pytest.mark.parametrize("last", [False, True], ids=[FIRST, LAST])
def test_the_layout_of_a_relu_is_found_on_a_dark_image(last: bool) -> None:
    model = PatchNet(
        (lambda x: x.relu().movedim(1, -1).contiguous()) if last else torch.relu,
        lambda x: x.mean((1, 2) if last else (2, 3)),
    )
    nn.init.constant_(model.patches.weight, 1 / 192)
    nn.init.constant_(model.patches.bias, -0.5)
    assert find_layers(model, build_dark_image(bright=True)) == [
        Layer("shaped", Layout(LAST if last else FIRST, (8, 8)))
    ]


def test_patches_normalized_one_by_one_depend_on_an_image_of_one_color() -> None:
    model = PatchNet(lambda x: nn.functional.layer_norm(x, x.shape[2:]), lambda x: x.mean((2, 3)))
    normalized = nn.Sequential(nn.PixelUnshuffle(8), Apply(lambda x: x.movedim(1, -1)), nn.LayerNorm(192))
    model.patches = nn.Sequential(normalized, Apply(lambda x: x.movedim(-1, 1)), nn.Conv2d(192, 8, 1))
    model.shaped = Apply(torch.tanh)
    assert find_layers(model, torch.full((1, 3, 64, 64), 0.5)) == [Layer("shaped", Layout(FIRST, (8, 8)))]


@pytest.mark.parametrize("patch", [16, 8, 4])
def test_attention_weights_and_position_biases_are_not_chosen(patch: int) -> None:
    model, side = AttentionNet(patch), 64 // patch
    assert find_layers(model, torch.randn(2, 3, 64, 64)) == [Layer("norm", Layout(TOKENS, (side, side), 1))]


def test_a_grid_of_one_position_is_not_chosen() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.ReLU(), nn.Conv2d(4, 6, 8), nn.Flatten(), nn.Linear(6, 5))
    assert find_layers(model, torch.randn(1, 3, 64, 64))[0].name == "1"


# ---------------------------------------------------------------------------------------------------- the best one

CNNS = [
    ("resnet18", 128, "layer4"),
    ("mobilenet_v2", 128, "features"),
    ("squeezenet1_1", 128, "features"),  # not the classifier's score maps
    ("alexnet", 128, "features"),
    ("densenet121", 128, "features"),
    ("vgg11", 224, "features"),  # not the pooling after it, which has as many positions
    ("vgg11", 256, "features"),  # nor if it has fewer
    ("vgg16_bn", 128, "features"),
    ("googlenet", 128, "inception5b"),
    ("inception_v3", 192, "Mixed_7c"),
    ("shufflenet_v2_x0_5", 224, "conv5"),
    ("mnasnet0_5", 128, "layers"),
    ("efficientnet_b0", 128, "features"),
    ("efficientnet_v2_s", 128, "features"),
    ("regnet_y_400mf", 128, "trunk_output"),
    ("mobilenet_v3_small", 128, "features"),
    ("resnext50_32x4d", 128, "layer4"),
    ("convnext_tiny", 128, "features"),
]


def build_from_torchvision(name: str) -> nn.Module:
    """Return a model of torchvision with random weights."""
    return zoo.get_model(name, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))


@pytest.mark.parametrize(("name", "size", "layer"), CNNS)
def test_the_best_layer_of_a_cnn_is_its_last_feature_map(name: str, size: int, layer: str) -> None:
    model = build_from_torchvision(name)
    (found,) = find_layers(model, torch.randn(1, 3, size, size))
    assert (found.name, found.layout.kind) == (layer, FIRST)
    assert responds_in_place(model, found, (size, size))


@pytest.mark.parametrize(
    ("make", "size", "layer"),
    [
        (build_small_vit, 64, Layer("encoder.layers.encoder_layer_1.ln_1", Layout(TOKENS, (4, 4), 1))),
        (
            lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=5),
            64,
            Layer("norm", Layout(LAST, (8, 8))),
        ),
        (
            lambda: zoo.vit_b_16(num_classes=5, image_size=112),
            112,
            Layer("encoder.layers.encoder_layer_11.ln_1", Layout(TOKENS, (7, 7), 1)),
        ),
        (zoo.swin_t, 224, Layer("norm", Layout(LAST, (7, 7)))),
        (zoo.swin_v2_t, 128, Layer("norm", Layout(LAST, (4, 4)))),
    ],
    ids=["small vit", "small swin", "vit_b_16", "swin_t", "swin_v2_t"],
)
def test_the_best_layer_of_a_transformer(make: Callable[[], nn.Module], size: int, layer: Layer) -> None:
    model = make()
    if isinstance(model, zoo.VisionTransformer):
        nn.init.normal_(model.heads.head.weight)
    assert find_layers(model, torch.randn(1, 3, size, size)) == [layer]
    assert responds_in_place(model, layer, (size, size))


@pytest.mark.parametrize("size", [(128, 224), (224, 128)], ids=str)
def test_images_need_not_be_square(size: tuple[int, int]) -> None:
    model = zoo.resnet18()
    (layer,) = find_layers(model, torch.randn(1, 3, *size))
    assert layer == Layer("layer4", Layout(FIRST, (size[0] // 32, size[1] // 32)))
    assert responds_in_place(model, layer, size)


def test_the_error_hints_at_an_untrained_head_of_zeros() -> None:
    vit = build_small_vit()
    nn.init.zeros_(vit.heads.head.weight)
    with pytest.raises(LayerError, match=r"no gradient reaches it\)\. Is the model's head still all zeros"):
        find_layers(vit, torch.randn(1, 3, 64, 64))


def test_the_error_says_that_no_output_is_a_grid() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    with pytest.raises(LayerError, match="no output is a grid over the 8 x 8 input"):
        find_layers(model, torch.randn(1, 3, 8, 8))


def test_a_table_is_no_image() -> None:
    with pytest.raises(LayerError, match=r"inputs must hold a batch of images .* got shape \(4, 7\)"):
        find_layers(nn.Linear(7, 2), torch.randn(4, 7))


def test_a_model_without_head_is_explained_at_its_last_features() -> None:
    model = zoo.resnet18()
    model.fc = nn.Identity()
    assert find_layers(model, torch.randn(1, 3, 64, 64))[0].name == "layer4"


# --------------------------------------------------------------------------------------------------- layers by name


def test_named_layers_are_returned_in_the_given_order() -> None:
    found = find_layers(zoo.resnet18(), torch.randn(1, 3, 64, 64), ["layer3", "layer1.0.conv2"])
    assert found == [Layer("layer3", Layout(FIRST, (4, 4))), Layer("layer1.0.conv2", Layout(FIRST, (16, 16)))]


def test_a_shared_module_is_found_by_its_second_name() -> None:
    model = build_small_cnn()
    model.alias = model[0][2]
    model.forward = lambda x: nn.Sequential.forward(model[:4], x)
    assert find_layers(model, torch.randn(1, 3, 64, 64), ["alias"]) == [Layer("alias", Layout(FIRST, (8, 8)))]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layr4", r"has no layer 'layr4'\. Did you mean 'layer4'"),
        ("stage9", r"has no layer 'stage9'\. To list its layers, use camtool\.candidate_layers.*camtool layers MODEL"),
        ("unused", "layer 'unused' did not run in this forward"),
        (
            "fc",
            r"layer 'fc' returned \(1, 1000\), which is no grid over the 64 x 64 input\. .* that return one: .*layer4",
        ),
        ("avgpool", r"layer 'avgpool' returned \(1, 512, 1, 1\), which is no grid"),
    ],
)
def test_the_error_on_an_unusable_layer_names_usable_ones(name: str, message: str) -> None:
    model = zoo.resnet18()
    model.unused = nn.Conv2d(3, 3, 1)
    with pytest.raises(LayerError, match=message):
        find_layers(model, torch.randn(1, 3, 64, 64), [name])


# ------------------------------------------------------------------------------------------------------- memory


def count_forward_passes(model: nn.Module) -> list[int]:
    """Return a list to which each forward pass of the model appends its batch size."""
    forwards: list[int] = []
    model.register_forward_hook(lambda *args: forwards.append(len(args[-1])))
    return forwards


@pytest.mark.parametrize("names", [None, ["0.2"]], ids=["best", "by name"])
def test_layers_are_remembered_for_each_input_shape(names: list[str] | None) -> None:
    model = build_small_cnn()
    forwards = count_forward_passes(model)
    first = find_layers(model, torch.randn(2, 3, 64, 64), names)
    asked = len(forwards)
    assert 1 <= asked <= 2
    assert find_layers(model, torch.randn(5, 3, 64, 64), names) == first  # the number of images does not matter
    assert len(forwards) == asked
    assert find_layers(model, torch.randn(2, 3, 64, 96), names)[0].layout.grid == (8, 12)
    assert asked < len(forwards) <= 2 * asked


def test_layers_are_searched_again_after_a_module_was_replaced() -> None:
    model, batch = build_small_cnn(), torch.randn(1, 3, 64, 64)
    assert find_layers(model, batch) == [Layer("0", Layout(FIRST, (8, 8)))]
    model[0] = nn.Conv2d(3, 6, 16, stride=16)
    assert find_layers(model, batch) == [Layer("0", Layout(FIRST, (4, 4)))]


@pytest.mark.parametrize("names", [None, ["0.2"]], ids=["best", "by name"])
def test_remembered_layers_do_not_keep_a_model_alive(names: list[str] | None) -> None:
    model = build_small_cnn()
    find_layers(model, torch.randn(1, 3, 64, 64), names)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


# ----------------------------------------------------------------------------------- inside of attention


class MapAttention(nn.Module):
    """Attention pooling of maps ``(N, C, h, w)``, which it flattens to tokens itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = ClassAttention(width, together=False)

    def forward(self, maps: Tensor) -> Tensor:
        return self.attention(to_tokens(1)(maps))


def test_maps_are_chosen_and_not_the_tokens_that_attention_pooling_makes() -> None:
    body = nn.Sequential(nn.Conv2d(3, 8, 16, stride=16), nn.ReLU())
    model = nn.Sequential(body, MapAttention(8), nn.Flatten(), nn.Linear(8, 5))
    assert find_layers(model, torch.randn(1, 3, 64, 64)) == [Layer("0", Layout(FIRST, (4, 4)))]


def test_a_projection_outside_of_attention_may_be_chosen() -> None:
    model = PatchNet(to_tokens(0), lambda x: x.mean(1))
    model.shaped = nn.Sequential(model.shaped, nn.Linear(8, 8))
    assert find_layers(model, torch.randn(1, 3, 64, 64)) == [Layer("shaped", Layout(TOKENS, (8, 8)))]


@pytest.mark.parametrize("size", [112, 128, 144])  # 50, 65 and 82 tokens; a head has 64 channels
def test_queries_with_as_many_channels_as_tokens_are_not_chosen(size: int) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=size).eval()
    (layer,) = find_layers(model, torch.randn(1, 3, size, size))
    assert layer == Layer("blocks.11.norm1", Layout(TOKENS, (size // 16, size // 16), 1))


def test_the_error_names_the_last_outputs_if_none_is_a_grid() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, (64, 1)), nn.Flatten(), nn.Linear(256, 5))
    with pytest.raises(LayerError, match=r"a grid over the 64 x 64 input \(last outputs: 0 \(1, 4, 1, 64\)\)"):
        find_layers(model, torch.randn(1, 3, 64, 64))


# ------------------------------------------------------------------------------------------- scores and gradients


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_gradient_mode_of_the_caller_does_not_matter(mode: Callable[[], AbstractContextManager[None]]) -> None:
    model = AttentionNet()
    with mode():
        (layer,) = find_layers(model, torch.randn(1, 3, 64, 64))
    assert layer.name == "norm"


class ModelOutput(OrderedDict):
    """A dictionary, as models of Hugging Face return it."""


class EmbeddingNet(nn.Module):
    """A model that returns all tokens and an embedding of its class token."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = AttentionNet(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> ModelOutput:
        tokens = self.body.norm(self.body.embedded(self.body.patches(x)))
        mixed = self.norm(tokens + (tokens @ tokens.mT).softmax(-1) @ tokens)
        return ModelOutput(last_hidden_state=mixed, pooler_output=self.body.head(mixed[:, 0]))


def test_the_score_of_an_embedding_model_comes_from_its_embedding() -> None:
    assert find_layers(EmbeddingNet(), torch.randn(1, 3, 64, 64)) == [Layer("body.norm", Layout(TOKENS, (4, 4), 1))]


def test_latents_that_could_form_a_grid_are_not_chosen() -> None:
    model = LatentNet(20)  # four, and 4 x 4
    (layer,) = find_layers(model, torch.randn(1, 3, 64, 64))
    assert layer == Layer("norm", Layout(TOKENS, (16, 16)))
    assert {c.name: c.verdict for c in find_candidates(model, torch.randn(1, 3, 64, 64))}["read"] == (
        "it holds tokens that are the model's own, not the image's"
    )


@pytest.mark.parametrize("pools", [False, True], ids=["queries", "pooled"])
@pytest.mark.parametrize(("queries", "patch"), [(64, 8), (16, 8), (32, 16), (67, 8), (9, 8), (4, 16)])
def test_learned_queries_are_no_grid(queries: int, patch: int, pools: bool) -> None:
    """By their number they are the patches, fewer of them, or a grid after a prefix."""
    torch.manual_seed(0)
    model, img = QueryNet(queries, patch, pools=pools).eval(), torch.randn(1, 3, 80, 80)
    (layer,) = find_layers(model, img)
    assert layer == Layer("norm", Layout(TOKENS, (80 // patch, 80 // patch)))
    for name in ("mix", "mix.linear1", *([] if pools else ["read"])):
        with pytest.raises(LayerError, match=r"learned queries|no grid over|not in the order"):
            find_layers(model, img, [name])


@pytest.mark.parametrize(
    ("queries", "patch", "pools", "seeds"),
    [
        (9, 40, True, [80, 145]),
        (9, 40, False, [110]),
        (16, 40, True, [63]),
        (4, 16, True, [134]),
        (4, 16, False, [44, 46]),
    ],
)
def test_a_few_tokens_have_no_place_by_chance(queries: int, patch: int, pools: bool, seeds: list[int]) -> None:
    """Of 150 nets each, these came nearest to places."""
    for seed in [*seeds, *range(4)]:
        torch.manual_seed(seed)
        model, img = QueryNet(queries, patch, pools=pools).eval(), torch.rand(1, 3, 80, 80)
        (tokens,) = run_with_hooks(model, ["mix"], nudge_bands(img), grad=False).calls["mix"]
        assert not follows_image(Layout(TOKENS, (math.isqrt(queries),) * 2).to_grid(tokens)), seed


@pytest.mark.parametrize("side", [2, 3, 4, 8])
def test_cells_behind_several_blocks_of_attention_have_places(side: int) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        model = nn.Sequential(nn.Conv2d(3, 16, 64 // side, 64 // side), Apply(to_tokens(0)), blocks).eval()
        (tokens,) = run_with_hooks(model, ["2"], nudge_bands(torch.rand(1, 3, 64, 64)), grad=False).calls["2"]
        assert follows_image(Layout(TOKENS, (side, side)).to_grid(tokens)), seed


def build_torchvision_vit() -> nn.Module:
    vit = VisionTransformer(96, 16, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)  # torchvision leaves it all zeros
    return vit.eval()


def build_timm_vit() -> nn.Module:
    timm = pytest.importorskip("timm")
    return timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=5, global_pool="avg", depth=4).eval()


def build_hugging_face_vit() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=96, **sizes)).eval()


class AddedQueries(QueryNet):
    """A resampler whose queries, as many as the patches, form a stream to which what they read is added."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        queries = self.queries.expand(len(x), -1, -1)
        logits: Tensor = self.head(self.mix(queries + self.read(queries, tokens, tokens)[0]).mean(1))
        return logits


class TurnedStream(QueryNet):
    """A network whose attention returns its tokens in the opposite order of the patches they are added to."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(self.mix(tokens + self.read(tokens.flip(1), tokens, tokens)[0].flip(1)).mean(1))
        return logits


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (build_torchvision_vit, "encoder.layers.encoder_layer_1.self_attention"),
        (build_timm_vit, "blocks.2.attn"),
        (build_timm_vit, "blocks.2.attn.proj"),
        (build_hugging_face_vit, "vit.layers.1.attention"),
    ],
    ids=["torchvision", "timm", "projection", "hugging face"],
)
def test_an_attention_output_has_the_places_of_the_tokens_it_is_added_to(
    build: Callable[[], nn.Module], name: str
) -> None:
    torch.manual_seed(0)
    model, img = build(), torch.rand(1, 3, 96, 96)
    assert find_layers(model, img, [name]) == [Layer(name, Layout(TOKENS, (6, 6), prefix=1))]
    kept: list[Tensor] = []

    def keep(_: nn.Module, _inputs: object, output: Tensor | tuple[Tensor, ...]) -> None:
        kept.append(output if isinstance(output, Tensor) else output[0])
        kept[-1].retain_grad()

    with dict(model.named_modules())[name].register_forward_hook(keep):
        output = model(img)
    getattr(output, "logits", output)[0, 1].backward()
    assert kept[0].grad is not None
    expected = (kept[0] * kept[0].grad)[0, 1:].sum(1).reshape(6, 6).relu()  # HiResCAM, without the class token
    (result,) = camtool.explain(model, img, 1, layer=name, method="hirescam")
    torch.testing.assert_close(torch.from_numpy(result.raw), expected.detach(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("network", [QueryNet, AddedQueries, TurnedStream])
def test_queries_and_turned_tokens_get_no_places_from_what_is_behind_them(network: type[QueryNet]) -> None:
    torch.manual_seed(0)
    with pytest.raises(LayerError, match=r"no places on the image|not in the order of the image"):
        find_layers(network(64, 8).eval(), torch.rand(1, 3, 64, 64), ["read"])


@pytest.mark.parametrize("before", [0, 24, 32, 36, 64])
@pytest.mark.parametrize("registers", [1, 4, 8])
def test_registers_anywhere_shift_no_cell(registers: int, before: int) -> None:
    torch.manual_seed(0)
    model, img = RegisterNet(registers, before).eval(), torch.randn(1, 3, 64, 64)
    (layer,) = find_layers(model, img)
    assert layer.name == "norm"
    assert [layer] == find_layers(model, img, ["norm"])
    places = torch.arange(65 + registers).float()[None, :, None]
    assert layer.layout.to_grid(places).flatten().tolist() == model.cells


class EmbeddedPlaces(nn.Module):
    """A transformer whose position embeddings, of batch size 1, are the first output with as many tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 16, 8, stride=8), nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Embedding(65, 16)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x).flatten(2).mT], 1)
        return self.head(self.blocks(tokens + self.places(torch.arange(65)[None])).mean(1))


def test_position_embeddings_do_not_hide_where_the_cells_are() -> None:
    torch.manual_seed(0)
    (layer,) = find_layers(EmbeddedPlaces().eval(), torch.randn(1, 3, 64, 64), ["blocks"])
    assert layer.layout == Layout(TOKENS, (8, 8), prefix=1)


class PaddedTransformer(nn.Module):
    """A transformer that masks its last three tokens, for which torch uses nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, stride=8)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        is_padding = torch.arange(tokens.shape[1]).expand(tokens.shape[:2]) >= tokens.shape[1] - 3
        return self.head(self.blocks(tokens, src_key_padding_mask=is_padding).mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_with_nested_tensors_is_explained() -> None:
    [explanation] = camtool.explain(PaddedTransformer().eval(), torch.randn(1, 3, 64, 64))
    assert (explanation.layer, explanation.raw.shape) == ("blocks", (8, 8))


class SeveralHeads(nn.Module):
    """Returns scores from deep features, scores from early features, and a constant score that is the highest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.early, self.deep = nn.Conv2d(3, 4, 3, 2), nn.Conv2d(4, 4, 3, 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        early = self.early(images)
        scores = self.deep(early).relu().mean((2, 3))
        constant = torch.full_like(scores[:, :1], 50)
        return torch.cat([scores, constant], 1), early.relu().mean((2, 3))


@pytest.mark.parametrize(
    ("target", "layer"),
    [
        (lambda output: output[0][1], "deep"),
        (lambda output: output[1][1], "early"),
        (camtool.targets.Custom(lambda output: output[1].sum()), "early"),
        ([lambda output: (output[1] * 2).sum(), 0], "early"),
        (1, "deep"),
        (camtool.targets.ClassScore(1), "deep"),
    ],
)
def test_the_layer_is_one_that_the_explained_score_depends_on(target: object, layer: str) -> None:
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    results = camtool.explain(SeveralHeads().eval(), image, [target] if isinstance(target, list) else target)
    found = results[0][0] if isinstance(target, list) else results[0]
    assert found.layer == layer
    assert found.raw.any()


def test_a_function_is_surveyed_once_for_each_value_in_it() -> None:
    model, image = SeveralHeads().eval(), torch.rand(1, 3, 16, 16)
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    model.register_forward_pre_hook(count)
    numbers = []
    for index in (0, 0, 1, 1):
        camtool.explain(model, image, lambda output, index=index: output[1][index])
        numbers.append(passes)
        passes = 0
    assert numbers[1] == numbers[3] == 1 < min(numbers[0], numbers[2])
