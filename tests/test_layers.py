"""Which layer is looked at, how its output is read as a grid, and what is remembered of the answer."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict

import pytest
import torch
import torchvision.models as zoo
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer

import camtool
from camtool.errors import LayerError
from camtool.hooks import observe
from camtool.layers import Layer, Layout, resolve, survey

FIRST, LAST, TOKENS = "channels first", "channels last", "tokens"


class Apply(nn.Module):
    """A function as a module, so that what it returns can be looked at by name."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class OnTheWay(nn.Module):
    """A patch embedding; what ``shape`` makes of it, as the layer ``shaped``; then a head of ``read`` and a linear."""

    def __init__(self, shape, read, *, width: int = 8, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.shaped = Apply(shape)
        self.read = read
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.read(self.shaped(self.patches(x))))


def tokens(prefix: int):
    """``(N, C, h, w)`` → ``(N, prefix + h·w, C)``; the prefix tokens hold the mean, so a head may read any of them."""

    def shape(maps: Tensor) -> Tensor:
        flat = maps.flatten(2).transpose(1, 2)
        return torch.cat([flat.mean(1, keepdim=True).expand(-1, prefix, -1), flat], 1)

    return shape


def small_cnn(*, head: nn.Module | None = None) -> nn.Sequential:
    layers = [nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head or nn.Linear(6, 5))


def small_vit() -> nn.Module:
    vit = zoo.VisionTransformer(64, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=5)
    nn.init.normal_(vit.heads.head.weight)  # torchvision leaves it all zeros
    return vit


def follows_the_picture(model: nn.Module, layer: Layer, shape: tuple[int, ...]) -> bool:
    """Whether noise in each quadrant of the picture moves the layer's map most in that same quadrant."""
    halves = [[slice(0, size // 2), slice(size // 2, None)] for size in shape]
    pictures = torch.zeros(5, 3, *shape)
    for i, picture in enumerate(pictures[1:]):
        rows, columns = halves[0][i // 2], halves[1][i % 2]
        picture[:, rows, columns] = torch.randn_like(picture[:, rows, columns])
    maps = layer.layout.to_grid(observe(model, [layer.name], pictures, grad=False).calls[layer.name][-1])
    moved = (maps[1:] - maps[:1]).abs().mean(1)  # (4, h, w)
    h, w = (cells // 2 for cells in layer.layout.grid)  # an odd grid's middle belongs to no quadrant
    quadrants = [moved[:, :h, :w], moved[:, :h, -w:], moved[:, -h:, :w], moved[:, -h:, -w:]]
    return torch.stack([part.mean((1, 2)) for part in quadrants], 1).argmax(1).tolist() == [0, 1, 2, 3]


# -------------------------------------------------------------------------------------------------- reading shapes


@pytest.mark.parametrize("size", [(64, 64), (224, 320), (320, 224)], ids=str)
@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
def test_tokens_are_read_with_their_prefix_and_the_pictures_proportions(size: tuple[int, int], prefix: int) -> None:
    model = OnTheWay(tokens(prefix), lambda x: x.mean(1), patch=16)
    (layer,) = resolve(model, torch.randn(1, 3, *size))
    assert layer == Layer("shaped", Layout(TOKENS, (size[0] // 16, size[1] // 16), prefix))
    assert follows_the_picture(model, layer, size)


@pytest.mark.parametrize("last", [False, True], ids=[FIRST, LAST])
@pytest.mark.parametrize("names", [None, ["shaped"]], ids=["best", "by name"])
@pytest.mark.parametrize("images", [1, 3])
def test_an_ambiguous_shape_is_settled_by_the_changed_corner(last: bool, names: list[str] | None, images: int) -> None:
    model = OnTheWay(
        (lambda x: x.movedim(1, -1).contiguous()) if last else (lambda x: x + 1),
        lambda x: x.mean((1, 2) if last else (2, 3)),
    )
    batch = torch.randn(images, 3, 64, 64)
    assert model.shaped(model.patches(batch)).shape == (images, 8, 8, 8)
    (layer,) = resolve(model, batch, names)
    assert layer == Layer("shaped", Layout(LAST if last else FIRST, (8, 8)))


@pytest.mark.parametrize(
    ("model", "shape", "grid"),
    [
        (nn.Sequential(nn.Conv3d(1, 4, 3, stride=4, padding=1), nn.AdaptiveAvgPool3d(1)), (16, 24, 32), (4, 6, 8)),
        (nn.Sequential(nn.Conv1d(1, 4, 3, stride=4, padding=1), nn.AdaptiveAvgPool1d(1)), (64,), (16,)),
    ],
    ids=["volume", "signal"],
)
def test_volumes_and_signals_have_grids_too(model: nn.Module, shape: tuple[int, ...], grid: tuple[int, ...]) -> None:
    model.append(nn.Flatten()).append(nn.Linear(4, 3))
    assert resolve(model, torch.randn(2, 1, *shape)) == [Layer("0", Layout(FIRST, grid))]


@pytest.mark.parametrize("colour", [0.0, 0.5, 1.0])
def test_a_picture_of_one_colour_will_do(colour: float) -> None:
    (layer,) = resolve(small_cnn(), torch.full((1, 3, 64, 64), colour))
    assert layer.name == "0"


def dark_picture(*, bright: bool) -> Tensor:
    picture = torch.full((1, 3, 64, 64), 0.05)
    if bright:
        picture[..., 48:56, 48:56] = 1
    return picture


@pytest.mark.parametrize("sign", [1, -1], ids=["bright", "dark"])
@pytest.mark.parametrize("bright", [True, False], ids=["with a square", "of one colour"])
def test_what_a_rectified_layer_is_silent_about_does_not_hide_it(sign: int, bright: bool) -> None:
    """It fires at bright patches alone, or at dark ones, and the corner that is changed has none."""
    model = nn.Sequential(
        OrderedDict(c=nn.Conv2d(3, 4, 4, 4), r=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten())
    ).append(nn.Linear(4, 2))
    nn.init.constant_(model.c.weight, sign * 0.05)
    nn.init.constant_(model.c.bias, -1.5)
    nn.init.constant_(model.get_submodule("4").weight, 1.0)
    assert resolve(model, sign * dark_picture(bright=bright)) == [Layer("r", Layout(FIRST, (16, 16)))]


@pytest.mark.parametrize("last", [False, True], ids=[FIRST, LAST])
def test_the_reading_of_a_rectified_layer_is_settled_by_what_it_is_not_silent_about(last: bool) -> None:
    model = OnTheWay(
        (lambda x: x.relu().movedim(1, -1).contiguous()) if last else torch.relu,
        lambda x: x.mean((1, 2) if last else (2, 3)),
    )
    nn.init.constant_(model.patches.weight, 1 / 192)
    nn.init.constant_(model.patches.bias, -0.5)
    assert resolve(model, dark_picture(bright=True)) == [Layer("shaped", Layout(LAST if last else FIRST, (8, 8)))]


def test_patches_that_are_normalised_one_by_one_depend_on_a_picture_of_one_colour() -> None:
    model = OnTheWay(lambda x: nn.functional.layer_norm(x, x.shape[2:]), lambda x: x.mean((2, 3)))
    normalised = nn.Sequential(nn.PixelUnshuffle(8), Apply(lambda x: x.movedim(1, -1)), nn.LayerNorm(192))
    model.patches = nn.Sequential(normalised, Apply(lambda x: x.movedim(-1, 1)), nn.Conv2d(192, 8, 1))
    model.shaped = Apply(torch.tanh)
    assert resolve(model, torch.full((1, 3, 64, 64), 0.5)) == [Layer("shaped", Layout(FIRST, (8, 8)))]


class Attending(nn.Module):
    """One transformer block that classifies from its class token; its attention matrix and bias are modules."""

    def __init__(self, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, patch, stride=patch)
        self.embedded = Apply(tokens(1))
        self.norm = nn.LayerNorm(8)
        self.bias = Apply(lambda tokens: torch.randn(1, 2, tokens, tokens))  # a relative position bias: no pictures
        self.attention = Apply(lambda logits: logits.softmax(-1))  # (N, heads, T, T)
        self.mixed = Apply(lambda pair: (pair[0] @ pair[1]).mean(1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.embedded(self.patches(x)))
        keys = x.unflatten(2, (2, 4)).transpose(1, 2)  # (N, 2, T, 4)
        weights = self.attention(keys @ keys.mT + self.bias(x.shape[1]))
        return self.head(self.mixed((weights, x[:, None]))[:, 0])


@pytest.mark.parametrize("patch", [16, 8, 4])
def test_an_attention_matrix_or_a_position_bias_is_not_taken_for_a_grid(patch: int) -> None:
    model, side = Attending(patch), 64 // patch
    assert resolve(model, torch.randn(2, 3, 64, 64)) == [Layer("norm", Layout(TOKENS, (side, side), 1))]


def test_a_grid_of_one_position_is_not_taken() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.ReLU(), nn.Conv2d(4, 6, 8), nn.Flatten(), nn.Linear(6, 5))
    assert resolve(model, torch.randn(1, 3, 64, 64))[0].name == "1"


# ---------------------------------------------------------------------------------------------------- the best one

CNNS = [
    ("resnet18", 128, "layer4"),
    ("mobilenet_v2", 128, "features"),
    ("squeezenet1_1", 128, "features"),  # not the classifier's class maps
    ("alexnet", 128, "features"),
    *(
        pytest.param(name, size, layer, marks=pytest.mark.slow)
        for name, size, layer in [
            ("densenet121", 128, "features"),
            ("vgg11", 224, "features"),  # not the pooling behind it, though it has as many positions
            ("vgg11", 320, "features"),  # nor where it has fewer
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
    ),
]


def from_the_zoo(name: str) -> nn.Module:
    return zoo.get_model(name, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))


@pytest.mark.parametrize(("name", "size", "layer"), CNNS)
def test_the_best_layer_of_a_cnn_is_its_last_feature_map(name: str, size: int, layer: str) -> None:
    model = from_the_zoo(name)
    (found,) = resolve(model, torch.randn(1, 3, size, size))
    assert (found.name, found.layout.kind) == (layer, FIRST)
    assert follows_the_picture(model, found, (size, size))


@pytest.mark.parametrize(
    ("make", "size", "layer"),
    [
        (small_vit, 64, Layer("encoder.layers.encoder_layer_1.ln_1", Layout(TOKENS, (4, 4), 1))),
        (
            lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=5),
            64,
            Layer("norm", Layout(LAST, (8, 8))),
        ),
        pytest.param(
            lambda: zoo.vit_b_16(num_classes=5),
            224,
            Layer("encoder.layers.encoder_layer_11.ln_1", Layout(TOKENS, (14, 14), 1)),
            marks=pytest.mark.slow,
        ),
        pytest.param(zoo.swin_t, 224, Layer("norm", Layout(LAST, (7, 7))), marks=pytest.mark.slow),
        pytest.param(zoo.swin_v2_t, 128, Layer("norm", Layout(LAST, (4, 4))), marks=pytest.mark.slow),
    ],
    ids=["small vit", "small swin", "vit_b_16", "swin_t", "swin_v2_t"],
)
def test_the_best_layer_of_a_transformer(make, size: int, layer: Layer) -> None:
    model = make()
    if isinstance(model, zoo.VisionTransformer):
        nn.init.normal_(model.heads.head.weight)
    assert resolve(model, torch.randn(1, 3, size, size)) == [layer]
    assert follows_the_picture(model, layer, (size, size))


@pytest.mark.parametrize("size", [(128, 224), (224, 128)], ids=str)
def test_pictures_need_not_be_square(size: tuple[int, int]) -> None:
    model = zoo.resnet18()
    (layer,) = resolve(model, torch.randn(1, 3, *size))
    assert layer == Layer("layer4", Layout(FIRST, (size[0] // 32, size[1] // 32)))
    assert follows_the_picture(model, layer, size)


def test_an_untrained_head_of_zeros_is_hinted_at() -> None:
    vit = small_vit()
    nn.init.zeros_(vit.heads.head.weight)
    with pytest.raises(LayerError, match=r"no gradient reaches it\)\. Is the model's head still all zeros"):
        resolve(vit, torch.randn(1, 3, 64, 64))


def test_where_nothing_is_a_grid_the_error_says_so() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    with pytest.raises(LayerError, match="none returned a grid over the 8 x 8 input"):
        resolve(model, torch.randn(1, 3, 8, 8))


def test_a_table_is_no_picture() -> None:
    with pytest.raises(LayerError, match=r"inputs must hold a batch of pictures .* got shape \(4, 7\)"):
        resolve(nn.Linear(7, 2), torch.randn(4, 7))


# --------------------------------------------------------------------------------------------------- layers by name


def test_layers_are_had_by_name_in_the_order_asked_for() -> None:
    found = resolve(zoo.resnet18(), torch.randn(1, 3, 64, 64), ["layer3", "layer1.0.conv2"])
    assert found == [Layer("layer3", Layout(FIRST, (4, 4))), Layer("layer1.0.conv2", Layout(FIRST, (16, 16)))]


def test_a_module_may_be_asked_for_by_its_second_name() -> None:
    model = small_cnn()
    model.alias = model[0][2]
    model.forward = lambda x: nn.Sequential.forward(model[:4], x)
    assert resolve(model, torch.randn(1, 3, 64, 64), ["alias"]) == [Layer("alias", Layout(FIRST, (8, 8)))]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layr4", r"has no layer 'layr4'\. Did you mean 'layer4'"),
        ("stage9", r"has no layer 'stage9'\. Its layers are listed by camtool\.candidate_layers.*camtool layers MODEL"),
        ("unused", "layer 'unused' did not run in this forward"),
        ("fc", r"layer 'fc' returned \(1, 1000\), which is no grid over the 64 x 64 input\. .* that are: .*layer4"),
        ("avgpool", r"layer 'avgpool' returned \(1, 512, 1, 1\), which is no grid"),
    ],
)
def test_a_layer_that_cannot_serve_is_refused_with_the_near_ones(name: str, message: str) -> None:
    model = zoo.resnet18()
    model.unused = nn.Conv2d(3, 3, 1)
    with pytest.raises(LayerError, match=message):
        resolve(model, torch.randn(1, 3, 64, 64), [name])


# ------------------------------------------------------------------------------------------------------- memory


def counted(model: nn.Module) -> list[int]:
    """A list that grows by the batch size with each forward of the model."""
    forwards: list[int] = []
    model.register_forward_hook(lambda *args: forwards.append(len(args[-1])))
    return forwards


@pytest.mark.parametrize("names", [None, ["0.2"]], ids=["best", "by name"])
def test_the_answer_is_remembered_per_shape_of_input(names: list[str] | None) -> None:
    model = small_cnn()
    forwards = counted(model)
    first = resolve(model, torch.randn(2, 3, 64, 64), names)
    asked = len(forwards)
    assert 1 <= asked <= 2
    assert resolve(model, torch.randn(5, 3, 64, 64), names) == first  # the number of images does not matter
    assert len(forwards) == asked
    assert resolve(model, torch.randn(2, 3, 64, 96), names)[0].layout.grid == (8, 12)
    assert asked < len(forwards) <= 2 * asked


def test_a_replaced_module_is_looked_at_anew() -> None:
    model, batch = small_cnn(), torch.randn(1, 3, 64, 64)
    assert resolve(model, batch) == [Layer("0", Layout(FIRST, (8, 8)))]
    model[0] = nn.Conv2d(3, 6, 16, stride=16)
    assert resolve(model, batch) == [Layer("0", Layout(FIRST, (4, 4)))]


@pytest.mark.parametrize("names", [None, ["0.2"]], ids=["best", "by name"])
def test_nothing_keeps_a_model_alive(names: list[str] | None) -> None:
    model = small_cnn()
    resolve(model, torch.randn(1, 3, 64, 64), names)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------------------------------------------------- surveying


def verdicts(model: nn.Module, size: int = 64) -> dict[str, str]:
    return {candidate.name: candidate.verdict for candidate in survey(model, torch.randn(1, 3, size, size))}


def test_a_survey_lists_the_grids_from_shallow_to_deep_and_marks_the_chosen() -> None:
    candidates = survey(small_cnn(), torch.randn(1, 3, 64, 64))
    assert [(c.name, c.kind, c.shape, c.chosen) for c in candidates] == [
        ("0.0", "Conv2d", (1, 4, 16, 16), False),
        ("0.1", "ReLU", (1, 4, 16, 16), False),
        ("0.2", "Conv2d", (1, 6, 8, 8), False),
        ("0", "Sequential", (1, 6, 8, 8), True),  # it hands on what its last ReLU returned
    ]
    assert all("not the deepest" in candidate.verdict for candidate in candidates[:-1])
    assert candidates[-1].verdict.startswith("the deepest")


@pytest.mark.parametrize(
    ("make", "layer", "verdict"),
    [
        (small_vit, "encoder", "no gradient"),  # the class is read from the class token alone
        (Attending, "attention", "hardly any of its positions"),
        (Attending, "bias", "does not depend on the picture"),
        (lambda: zoo.squeezenet1_1(num_classes=5), "classifier.1", "classes' own score maps"),
    ],
    ids=["behind the last attention", "attention matrix", "position bias", "class maps"],
)
def test_a_survey_says_what_speaks_against_a_layer(make, layer: str, verdict: str) -> None:
    assert verdict in {c.name: c.verdict for c in survey(make(), torch.randn(1, 3, 64, 64))}[layer]


def test_features_that_are_what_a_model_without_a_head_returns_are_looked_at() -> None:
    model = zoo.resnet18()
    model.fc = nn.Identity()
    assert resolve(model, torch.randn(1, 3, 64, 64))[0].name == "layer4"


def test_of_a_very_deep_model_only_the_end_is_looked_into() -> None:
    model = nn.Sequential(*(nn.Conv2d(3, 3, 1) for _ in range(40)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for convolution in model[:40]:
        nn.init.dirac_(convolution.weight)  # forty random ones would let nothing of the picture through
    candidates = survey(model.append(nn.Linear(3, 2)), torch.randn(1, 3, 8, 8))
    assert ["shallow" in candidate.verdict for candidate in candidates] == [True] * 8 + [False] * 32
    assert candidates[-1].chosen


# ----------------------------------------------------------------------------------- inside of the last attention


class Reading(nn.Module):
    """Reads a class token off normed tokens: the first position asks all of them."""

    def __init__(self, width: int, *, together: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width) if together else None
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1) if self.qkv else (self.query(x), self.key(x), self.value(x))
        return self.out(nn.functional.scaled_dot_product_attention(q[:, :1], k, v))


class ClassToken(nn.Module):
    """A patch embedding, a norm, and an attention from which the class token alone is read."""

    def __init__(self, attention: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.patches, self.embedded = nn.Conv2d(3, width, 16, stride=16), Apply(tokens(1))
        self.norm, self.attention, self.head = nn.LayerNorm(width), attention, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(self.norm(self.embedded(self.patches(x))))[:, 0])


@pytest.mark.parametrize("together", [True, False], ids=["one projection", "three projections"])
def test_what_is_shared_out_among_queries_keys_and_values_is_looked_at_not_one_of_them(together: bool) -> None:
    found = survey(ClassToken(Reading(8, together=together)), torch.randn(1, 3, 64, 64))
    assert next(candidate.name for candidate in found if candidate.chosen) == "norm"
    verdicts = {c.name: c.verdict for c in found if c.name.startswith("attention.")}
    shared = dict.fromkeys(["attention.key", "attention.value"], "a projection of norm")
    asking = {"attention.query": "no gradient reaches it"}  # but at the class token
    assert verdicts == ({"attention.qkv": "a projection of norm"} if together else asking | shared)


class PoolingMaps(nn.Module):
    """Makes tokens of maps itself, behind their mean, and reads the class off that."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reading = Reading(width, together=False)

    def forward(self, maps: Tensor) -> Tensor:
        return self.reading(tokens(1)(maps))


def test_maps_are_looked_at_and_not_the_tokens_that_an_attention_makes_of_them() -> None:
    body = nn.Sequential(nn.Conv2d(3, 8, 16, stride=16), nn.ReLU())
    model = nn.Sequential(body, PoolingMaps(8), nn.Flatten(), nn.Linear(8, 5))
    assert resolve(model, torch.randn(1, 3, 64, 64)) == [Layer("0", Layout(FIRST, (4, 4)))]


def test_a_projection_that_is_pooled_by_its_own_is_a_layer_like_any_other() -> None:
    model = OnTheWay(tokens(0), lambda x: x.mean(1))
    model.shaped = nn.Sequential(model.shaped, nn.Linear(8, 8))
    assert resolve(model, torch.randn(1, 3, 64, 64)) == [Layer("shaped", Layout(TOKENS, (8, 8)))]


@pytest.mark.slow
@pytest.mark.parametrize("size", [112, 128, 144])  # with a class token 50, 65 and 82 tokens; a head has 64 channels
def test_queries_of_as_many_channels_as_tokens_are_not_taken_for_a_grid(size: int) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=size).eval()
    (layer,) = resolve(model, torch.randn(1, 3, size, size))
    assert layer == Layer("blocks.11.norm1", Layout(TOKENS, (size // 16, size // 16), 1))


def test_candidates_tell_their_stride_and_whether_the_gradient_reaches_them() -> None:
    found = {c.name: c for c in survey(small_vit(), torch.randn(1, 3, 64, 64))}
    assert {candidate.stride for candidate in found.values()} == {(16.0, 16.0)}
    assert (found["encoder.layers.encoder_layer_1.ln_1"].reached, found["encoder"].reached) == (True, False)


def test_the_outputs_that_came_nearest_to_a_grid_are_named_where_none_is_one() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, (64, 1)), nn.Flatten(), nn.Linear(256, 5))
    with pytest.raises(
        LayerError, match=r"a grid over the 64 x 64 input \(the last that came near: 0 \(1, 4, 1, 64\)\)"
    ):
        resolve(model, torch.randn(1, 3, 64, 64))


# ------------------------------------------------------------------------------------------- what a score must reach


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_mode_in_which_a_person_works_changes_nothing(mode) -> None:
    model = Attending()
    with mode():
        (layer,) = resolve(model, torch.randn(1, 3, 64, 64))
    assert layer.name == "norm"


class Answers(OrderedDict):
    """A dictionary, as models return that name what they say."""


class Tower(nn.Module):
    """It returns all its tokens, but embeds the picture by its class token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = Attending(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Answers:
        tokens = self.body.norm(self.body.embedded(self.body.patches(x)))
        mixed = self.norm(tokens + (tokens @ tokens.mT).softmax(-1) @ tokens)
        return Answers(last_hidden_state=mixed, pooler_output=self.body.head(mixed[:, 0]))


def test_of_a_tower_the_embedding_is_asked_and_not_the_tokens() -> None:
    assert resolve(Tower(), torch.randn(1, 3, 64, 64)) == [Layer("body.norm", Layout(TOKENS, (4, 4), 1))]


class Latents(nn.Module):
    """Latents of its own, expanded to the batch, read the picture's tokens once; behind that there are only latents."""

    def __init__(self, latents: int) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.latents = nn.Parameter(torch.randn(1, latents, 8))
        self.start = Apply(lambda x: self.latents.expand(len(x), -1, -1))
        self.read, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        latents = self.start(x)
        return self.head(self.read(latents + (latents @ tokens.mT).softmax(-1) @ tokens).mean(1))


def test_latents_of_the_models_own_are_no_grid_though_they_could_be_read_as_one() -> None:
    model = Latents(20)  # four, and 4 x 4
    (layer,) = resolve(model, torch.randn(1, 3, 64, 64))
    assert layer == Layer("norm", Layout(TOKENS, (16, 16)))
    assert {c.name: c.verdict for c in survey(model, torch.randn(1, 3, 64, 64))}["read"] == (
        "it holds tokens that are the model's own, not the picture's"
    )


class Padded(nn.Module):
    """A transformer that is told to leave out its last three tokens, for which torch makes nested tensors."""

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
def test_a_transformer_that_works_on_nested_tensors_is_explained() -> None:
    [explanation] = camtool.explain(Padded().eval(), torch.randn(1, 3, 64, 64))
    assert (explanation.layer, explanation.raw.shape) == ("blocks", (8, 8))
