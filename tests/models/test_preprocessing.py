"""Preprocessing by numbers, from a file beside the weights, and by the user's own function."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import transforms
from torchvision.transforms.functional import _compute_resized_output_size

import camtool
from camtool import ForwardError, ImageError, ModelError
from camtool.app.web_page.building import _check_transform
from camtool.geometry.measured_transforms import probe_geometry
from camtool.geometry.plain_transforms import Renormalized, find_plain_transform
from camtool.geometry.torchvision_transforms import read_geometry
from camtool.geometry.transform_output import find_statistics
from camtool.models import Preprocessing, StatedPreprocessing, scale_statistics
from camtool.models.preprocessing import check_fits_model
from camtool.models.sources.hugging_face import _list_sides
from camtool.models.sources.source import check_sides
from camtool.models.sources.torchvision import build_default_transform
from camtool.models.user_code import load_transform

PHOTO = Image.fromarray(np.random.default_rng(5).integers(0, 256, (40, 60, 3), np.uint8))
MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.25, 0.2)
WHITE = Image.new("RGB", (8, 8), (255, 128, 0))


def net(channels: int = 3, *, side: int | None = None) -> nn.Module:
    body = [nn.Conv2d(channels, 4, 3, 2, 1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)]
    if side:
        head = [nn.Flatten(), nn.Linear(4 * (side // 2) ** 2, 5)]
    return nn.Sequential(*body, *head).eval()


def small() -> nn.Module:
    return net(side=32)


def with_transform() -> tuple[nn.Module, Preprocessing]:
    return net(), Preprocessing((24, 24), MEAN, STD)


# ------------------------------------------------------------------------------------------------------- by numbers


@pytest.mark.parametrize("side", [8, 31, 40])
def test_a_square_size_is_resized_and_cropped_as_by_torchvision(side: int) -> None:
    ours = Preprocessing((side, side), MEAN, STD)
    theirs = transforms.Compose(
        [transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )
    torch.testing.assert_close(ours(PHOTO), theirs(PHOTO))
    assert find_statistics(ours) == ([*MEAN], [*STD])


@pytest.mark.parametrize("side", [1, 24, 28, 31, 224])
def test_photos_of_any_size_are_scaled_as_by_torchvision(side: int) -> None:
    ours = Preprocessing((side, side))
    sizes = [(height, width) for height in range(1, 400, 7) for width in range(1, 400, 11)]
    expected = [tuple(_compute_resized_output_size(size, [side])) for size in sizes]
    assert [ours.compute_scaled_size(*size) for size in sizes] == expected


@pytest.mark.parametrize("size", [(16, 48), (50, 20), (17, 17)])
def test_a_scaled_photo_covers_the_size_or_fits_into_it(size: tuple[int, int]) -> None:
    for height, width in ((1, 400), (400, 1), (33, 64), (97, 31), (50, 50), size):
        covers = Preprocessing(size).compute_scaled_size(height, width)
        fits = Preprocessing(size, fit="pad").compute_scaled_size(height, width)
        # One side is that of the size, the other one is not shorter, or not longer.
        assert min(have - want for have, want in zip(covers, size, strict=True)) == 0
        assert max(have - want for have, want in zip(fits, size, strict=True)) == 0
        assert min(fits) >= 1


@pytest.mark.parametrize("side", [16, 23, 28, 65])
def test_a_page_takes_a_model_with_stated_preprocessing(side: int) -> None:
    stated = camtool.preprocessing(side, mean=MEAN, std=STD)
    _check_transform(camtool.Loaded(net(), stated))
    plain = find_plain_transform(stated)
    assert plain is not None
    for height, width in ((211, 333), (480, 97), (31, 31)):
        photo = Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8))
        torch.testing.assert_close(plain(photo), stated(photo))


@pytest.mark.parametrize(
    ("channels", "mean", "std", "expected"),
    [
        ("rgb", MEAN, STD, [(1 - 0.1) / 0.5, (128 / 255 - 0.2) / 0.25, (0 - 0.3) / 0.2]),
        ("bgr", MEAN, STD, [(0 - 0.1) / 0.5, (128 / 255 - 0.2) / 0.25, (1 - 0.3) / 0.2]),
        ("gray", (0.5,), (0.5,), [(151 / 255 - 0.5) / 0.5]),  # 0.299 * 255 + 0.587 * 128 = 151.4
    ],
)
def test_channels_are_ordered_before_they_are_normalized(channels, mean, std, expected) -> None:
    made = Preprocessing((8, 8), mean, std, channels)(WHITE)
    assert made[:, 3, 3].tolist() == pytest.approx(expected, abs=1e-6)
    renormalized = Renormalized(Preprocessing((8, 8)), mean, std, channels)(WHITE)
    assert renormalized[:, 3, 3].tolist() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("size", [(16, 16), (16, 48), (50, 20), (40, 60), (17, 17)])
@pytest.mark.parametrize("photo", [(40, 60), (64, 33)])
def test_the_geometry_is_read_as_it_is_measured(size: tuple[int, int], photo: tuple[int, int], fit: Any) -> None:
    if fit == "pad":  # few pixels between the bars cannot be measured
        size = (3 * size[0], 3 * size[1])
    transform = Preprocessing(size, MEAN, STD, fit=fit)
    read, probed = read_geometry(transform, photo), probe_geometry(transform, photo)
    assert read.size == probed.size == size
    assert read.box == pytest.approx(probed.box, abs=0.6)
    assert read_geometry(Renormalized(transform, MEAN, STD), photo) == read


class Brightness(nn.Module):
    """A network whose class 0 likes bright places; its layer has a cell for each 4 x 4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 1, 4, 4, bias=False), nn.ReLU())
        nn.init.constant_(self.body[0].weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        score = self.body(x).mean((1, 2, 3))
        return torch.stack([score, -score], 1)


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("size", [(64, 64), (48, 80)])
@pytest.mark.parametrize("spot", [(4, 20), (100, 20), (180, 44)])
@pytest.mark.parametrize("is_high", [False, True])
def test_a_spot_at_the_edge_is_where_it_is(
    fit: Any, size: tuple[int, int], spot: tuple[int, int], is_high: bool
) -> None:
    """The photo is 64 x 192 pixels, or 192 x 64; a crop shows its middle alone."""
    photo = np.zeros((64, 192, 3), np.uint8)
    left, top = spot
    photo[top : top + 12, left : left + 12] = 255
    if is_high:
        photo, left, top = photo.transpose(1, 0, 2), top, left
    prepare = camtool.preprocessing(size, mean=0, std=1, fit=fit)
    result = camtool.explain(Brightness().eval(), Image.fromarray(photo), 0, transform=prepare)
    height, width = photo.shape[:2]
    if fit == "crop" and spot[0] != 100:
        assert result.heatmap.max() == 0
        assert not result.seen.all()
        return
    assert result.seen.all() == (fit != "crop")
    rows, columns = np.mgrid[:height, :width] + 0.5
    # A cell is at most 4 pixels of an input to which the photo is reduced by 3 or 4.
    assert (result.heatmap * columns).sum() / result.heatmap.sum() == pytest.approx(left + 6, abs=5)
    assert (result.heatmap * rows).sum() / result.heatmap.sum() == pytest.approx(top + 6, abs=5)


def test_bars_are_black_and_the_photo_keeps_its_proportions() -> None:
    made = Preprocessing((16, 16), (0.0,) * 3, (1.0,) * 3, fit="pad")(Image.new("RGB", (40, 20), "white"))
    assert made[:, 4:12].min() == 1
    assert made[:, :4].max() == made[:, 12:].max() == 0
    assert Preprocessing((8, 8), fit="pad")(Image.new("RGB", (1000, 1))).shape == (3, 8, 8)
    stretched = Preprocessing((16, 16), MEAN, STD, fit="stretch")(PHOTO)
    usual = transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    torch.testing.assert_close(stretched, usual(PHOTO))


def test_a_fit_changes_the_preprocessing_of_the_model() -> None:
    base = build_default_transform()
    made = StatedPreprocessing(fit="pad").build(base)
    assert isinstance(made, Preprocessing)
    assert (made.size, made.fit, made.notes) == ((224, 224), "pad", ())
    assert find_statistics(made) == find_statistics(base)
    loaded = StatedPreprocessing(fit="stretch").complete(camtool.Loaded(*with_transform()))
    assert (loaded.transform.size, loaded.transform.fit, loaded.transform.mean) == ((24, 24), "stretch", MEAN)
    any_size = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    with pytest.raises(ModelError, match="several sizes; give the size too"):
        StatedPreprocessing(fit="pad").build(any_size)


def test_a_stretched_photo_is_described_in_numbers_and_a_padded_one_is_not() -> None:
    plain = find_plain_transform(camtool.preprocessing(24, mean=0.5, std=0.5, fit="stretch"))
    assert plain is not None
    assert (plain.resized, plain.crop, plain.shorter_side) == ((24, 24), (24, 24), None)
    padded = camtool.preprocessing(24, mean=0.5, std=0.5, fit="pad")
    assert find_plain_transform(padded) is None
    with pytest.raises(camtool.CamtoolError, match="fit='pad'"):
        _check_transform(camtool.Loaded(net(), padded))
    with pytest.raises(camtool.CamtoolError, match="until they cover a size that is not square"):
        _check_transform(camtool.Loaded(net(), camtool.preprocessing((24, 48), mean=0.5, std=0.5)))


@pytest.mark.parametrize(
    ("channels", "options", "advice"),
    [
        (3, {"size": 96}, "transform=camtool.preprocessing(size=96)"),
        (1, {"size": 96}, 'transform=camtool.preprocessing(size=96, channels="gray")'),
        (3, {"mean": 0.5, "std": 0.5}, "transform=camtool.preprocessing(size=..., mean=0.5, std=0.5)"),
        (1, {"fit": "pad", "size": (64, 96)}, "(size=(64, 96), fit='pad', channels=\"gray\")"),
    ],
)
def test_what_belongs_to_the_preprocessing_is_no_option(channels: int, options: Any, advice: str) -> None:
    for call in (
        lambda: camtool.explain(net(channels), PHOTO, **options),
        lambda: camtool.Explainer(net(channels), **options),
    ):
        with pytest.raises(camtool.MethodError, match=re.escape(advice)):
            call()


@pytest.mark.parametrize(
    "model", [net(1), nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 3)).eval()]
)
@pytest.mark.parametrize("img", [torch.rand(1, 3, 28, 28), torch.rand(3, 28, 28)])
def test_a_gray_model_with_an_image_of_colors_names_the_transform(model: nn.Module, img: Tensor) -> None:
    with pytest.raises(ForwardError, match=re.escape('transform=camtool.preprocessing(size=28, channels="gray")')):
        camtool.explain(model, img)


def test_a_model_of_colors_with_a_gray_image_names_the_transform() -> None:
    with pytest.raises(ForwardError, match=re.escape('transform=camtool.preprocessing(size=(28, 36), channels="rgb")')):
        camtool.explain(net(3), torch.rand(1, 1, 28, 36))


def test_a_photo_of_the_size_stays_as_it_is() -> None:
    made = Preprocessing((40, 60), (0.0,) * 3, (1.0,) * 3)(PHOTO)
    np.testing.assert_array_equal((made * 255).round().byte().permute(1, 2, 0), np.asarray(PHOTO))


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        ([0.5], [0.25], ([0.5], [0.25])),
        ([0.0], [1.0], ([0.0], [1.0])),
        ([127.5], [63.75], ([0.5], [0.25])),
        ([0.0], [255.0], ([0.0], [1.0])),
        ([102.0], [1.0], ([0.4], [1 / 255])),
    ],
)
def test_numbers_greater_than_one_are_on_the_scale_of_bytes(mean, std, expected) -> None:
    assert scale_statistics(mean, std) == (pytest.approx(expected[0]), pytest.approx(expected[1]))


@pytest.mark.parametrize(("mean", "std"), [([123.7], [0.23]), ([0.48], [58.4]), ([0.5, 123.0], [0.2, 58.0])])
def test_numbers_on_two_scales_are_refused(mean, std) -> None:
    with pytest.raises(ModelError, match="are on different scales; give both"):
        scale_statistics(mean, std)


@pytest.mark.parametrize(
    ("mean", "std", "message"), [([float("nan")], [1], "mean must"), ([0], [0], "std must"), ([0], [-1], "std must")]
)
def test_impossible_numbers_are_refused(mean, std, message) -> None:
    with pytest.raises(ModelError, match=message):
        scale_statistics(mean, std)


def test_what_is_not_stated_is_that_of_the_model_or_is_warned_of() -> None:
    base = build_default_transform(64)
    resized = StatedPreprocessing(size=(32, 48)).build(base)
    assert isinstance(resized, Preprocessing)
    assert (resized.size, resized.mean, resized.notes) == ((32, 48), (0.485, 0.456, 0.406), ())
    flipped = StatedPreprocessing(channels="bgr").build(base)
    torch.testing.assert_close(flipped(PHOTO), base(PHOTO).flip(0))
    changed = StatedPreprocessing(mean=[0.5], std=[0.5]).build(base)
    torch.testing.assert_close(changed(PHOTO), (base(PHOTO) * STATISTICS[1] + STATISTICS[0] - 0.5) / 0.5)
    for stated, assumed in (({"size": (32, 32)}, "mean and std"), ({"mean": [0.5], "std": [0.5]}, "size")):
        built = StatedPreprocessing(**stated).build(None)
        assert [note.code for note in built.notes] == ["assumed-transform"]
        assert f"No {assumed} of the model's input" in built.notes[0]
    complete = StatedPreprocessing(size=(32, 32), mean=[0.5], std=[0.5], channels="gray").build(None)
    assert (complete.notes, complete(PHOTO).shape) == ((), (1, 32, 32))


STATISTICS = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]


def test_a_preprocessing_of_unknown_normalization_is_not_changed() -> None:
    with pytest.raises(ModelError, match=r"whose normalization is unknown.*--transform"):
        StatedPreprocessing(mean=[0.5], std=[0.5]).build(lambda photo: transforms.ToTensor()(photo))


def test_what_was_assumed_is_a_warning_of_the_explanation() -> None:
    explained = camtool.explain(net(), PHOTO, transform=StatedPreprocessing(size=(32, 32)).build(None))
    assert [warning.code for warning in explained.warnings if warning.code == "assumed-transform"]
    stated = StatedPreprocessing(size=(32, 32), mean=[0.5], std=[0.5]).build(None)
    assert "assumed-transform" not in [each.code for each in camtool.explain(net(), PHOTO, transform=stated).warnings]


@pytest.mark.parametrize(
    ("model", "transform", "message"),
    [
        (net(1), Preprocessing((32, 32)), "inputs of 3 channels, but the model's first convolution takes 1"),
        (small(), Preprocessing((48, 48)), r"inputs of 3 x 48 x 48 .*on which the model fails: .*--size"),
    ],
)
def test_a_preprocessing_that_does_not_fit_the_model_is_refused(model, transform, message) -> None:
    with pytest.raises(ModelError, match=f"^here makes {message}"):
        check_fits_model(model, transform, "here")
    check_fits_model(small(), Preprocessing((32, 32)), "here")


# --------------------------------------------------------------------------------------------------- beside weights

HUGGING_FACE = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "do_normalize": True,
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.5, 0.25, 0.2],
}
TIMM = {
    "architecture": "resnet18",
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.25, 0.2],
        "crop_pct": 1.0,
        "crop_mode": "squash",
        "interpolation": "bilinear",
    },
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "model.safetensors"
    path.parent.mkdir()
    save_file(small().state_dict(), path)
    return path


SMALL = f"{__name__}:small"


@pytest.mark.parametrize(("name", "content"), [("preprocessor_config.json", HUGGING_FACE), ("config.json", TIMM)])
def test_a_file_beside_the_weights_decides_the_preprocessing(weights: Path, name: str, content) -> None:
    (weights.parent / name).write_text(json.dumps(content))
    loaded = camtool.load(SMALL, weights)
    assert loaded.transform_file == weights.parent / name
    made = loaded.transform(PHOTO)
    expected = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )(PHOTO)
    torch.testing.assert_close(made, expected, atol=0.05, rtol=0)
    assert read_geometry(loaded.transform, (40, 60)).sees_all
    stated = camtool.load(SMALL, weights, transform=Preprocessing((32, 32)))
    assert (stated.transform, stated.transform_file) == (Preprocessing((32, 32)), None)


def test_without_such_a_file_nothing_changes(weights: Path) -> None:
    (weights.parent / "config.json").write_text('{"model_type": "vit"}')
    loaded = camtool.load(SMALL, weights)
    assert (loaded.transform, loaded.transform_file) == (None, None)


def test_the_preprocessing_of_a_factory_counts_more_than_a_file(tmp_path: Path) -> None:
    save_file(net().state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    loaded = camtool.load(f"{__name__}:with_transform", tmp_path / "w.safetensors")
    assert loaded.transform == with_transform()[1]


def test_two_files_must_agree(weights: Path) -> None:
    (weights.parent / "preprocessor_config.json").write_text(json.dumps(HUGGING_FACE))
    (weights.parent / "config.json").write_text(json.dumps(TIMM))
    assert camtool.load(SMALL, weights).transform_file == weights.parent / "preprocessor_config.json"
    other = {**TIMM, "pretrained_cfg": {**TIMM["pretrained_cfg"], "mean": [0.5, 0.5, 0.5]}}
    (weights.parent / "config.json").write_text(json.dumps(other))
    with pytest.raises(ModelError, match=r"describe different preprocessing.*--transform"):
        camtool.load(SMALL, weights)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("preprocessor_config.json", "{", "cannot be read"),
        ("preprocessor_config.json", "[1]", "holds a JSON list"),
        ("preprocessor_config.json", '{"image_processor_type": "NoSuchThing"}', "cannot be read as an image processor"),
        ("config.json", "[" * 100_000, "cannot be read"),
        ("config.json", '{"pretrained_cfg": 3}', "must be an object"),
        ("config.json", '{"pretrained_cfg": {"input_size": "large"}}', "is not timm's"),
        ("config.json", '{"pretrained_cfg": {"input_size": true}}', "input_size is True, not a list"),
        ("config.json", '{"pretrained_cfg": {"mean": [true, 0, 0]}}', r"mean is \[True, 0, 0\], not a list"),
        (
            "config.json",
            '{"pretrained_cfg": {"input_size": [3, 30000, 30000]}}',
            "34286 pixels a side, and at most 4096",
        ),
        ("config.json", '{"pretrained_cfg": {"crop_pct": 0.001}}', "224000 pixels a side"),
        ("config.json", json.dumps(TIMM).replace("32", "48"), "on which the model fails"),
        *(
            ("preprocessor_config.json", json.dumps({**HUGGING_FACE, **sizes}), "30000 pixels a side, and at most 4096")
            for sizes in (
                {"size": {"height": 30000, "width": 1}},
                {"size": {"shortest_edge": 30000}},
                {"size": 30000},
                {"do_center_crop": True, "crop_size": {"height": 8, "width": 30000}},
                {"image_processor_type": "DetrImageProcessor", "size": {"max_height": 30000, "max_width": 30000}},
                {"image_processor_type": "Mask2FormerImageProcessor", "size_divisor": 30000},
                {"size": {"shortest_edge": 30000}, "merge_size": 2, "data_config": "none of timm's"},
                {"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 30000}, "merge_size": 2},
                {"image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 30000, "width": 30000}},
                {
                    "image_processor_type": "Qwen2VLImageProcessor",
                    "size": {"shortest_edge": 9 * 10**8, "longest_edge": 1},
                },
            )
        ),
        (
            "preprocessor_config.json",
            '{"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.01}',
            "22400 pixels a side",
        ),
        (
            "preprocessor_config.json",
            json.dumps({**HUGGING_FACE, "auto_map": {"AutoImageProcessor": "x.Y"}, "image_processor_type": "Y"}),
            "Python code of its own, which camtool does not run",
        ),
    ],
)
def test_a_file_that_is_damaged_or_does_not_fit_is_refused(weights: Path, name, content, message) -> None:
    (weights.parent / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        camtool.load(SMALL, weights)


@pytest.mark.filterwarnings("ignore")
def test_no_image_processor_of_transformers_asks_for_too_much_by_default() -> None:
    transformers = pytest.importorskip("transformers")
    names = [name for name in dir(transformers) if name.endswith(("ImageProcessor", "ImageProcessorPil"))]
    processors = []
    for name in names:
        with suppress(Exception):  # some need a library, or settings
            processors.append(getattr(transformers, name)())
    assert len(processors) > 100
    for processor in processors:
        check_sides(type(processor).__name__, _list_sides(processor))


def test_gray_settings_of_timm_make_one_channel(tmp_path: Path) -> None:
    save_file(net(1).state_dict(), tmp_path / "w.safetensors")
    settings = {"input_size": [1, 28, 28], "mean": [0.1307], "std": [0.3081], "crop_pct": 1.0}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": settings}))
    loaded = camtool.load(f"{__name__}:gray", tmp_path / "w.safetensors")
    assert loaded.transform(PHOTO).shape == (1, 28, 28)


def gray() -> nn.Module:
    return net(1)


# ------------------------------------------------------------------------------------------------- the user's own

CODE = """
from torchvision import transforms
def prepare(image):
    return transforms.ToTensor()(image.resize((16, 16)))
pipeline = transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])
def build(size=16):
    return transforms.Compose([transforms.Resize((size, size)), transforms.ToTensor()])
class Callable:
    def __call__(self, image):
        return prepare(image)
class NeedsMore:
    def __init__(self, size): ...
    def __call__(self, image): ...
def two(image, mask): ...
def nothing(): ...
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_transforms.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_transforms", raising=False)
    return "my_transforms"


@pytest.mark.parametrize("name", ["prepare", "pipeline", "build", "Callable"])
def test_a_transform_is_a_function_an_object_or_what_makes_one(module: str, name: str) -> None:
    before = [*sys.path]
    assert load_transform(f"{module}:{name}")(PHOTO).shape == (3, 16, 16)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prepar", "has no function 'prepar'. Did you mean 'prepare'"),
        ("NeedsMore", "gives the class NeedsMore, which needs arguments"),
        ("two", r"cannot be called with one PIL image; its arguments are \(image, mask\)"),
        ("nothing", "gives NoneType"),
        ("number", "has no function 'number'"),
    ],
)
def test_a_name_that_is_no_transform_is_refused(module: str, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"^transform 'my_transforms:{name}'.*{message}"):
        load_transform(f"{module}:{name}")


# ------------------------------------------------------------------------------------------- the size of a bare model


class Patches(nn.Module):
    """A vision transformer in small, with positions for 8 x 8 patches of 6 x 6 pixels and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 12, 6, 6), nn.Linear(12, 5)
        self.positions, self.token = nn.Parameter(torch.randn(1, 65, 12)), nn.Parameter(torch.randn(1, 1, 12))

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x).flatten(2).mT], 1) + self.positions
        return self.head(tokens.relu().mean(1))


class FixedRows(nn.Module):
    """A net whose rows are too many if the image is too large, instead of an error."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4 * 16 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu().view(-1, 4 * 16 * 16))


def lenet() -> nn.Module:
    body = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(400, 10)).eval()


def with_attribute(name: str, value: Any) -> nn.Module:
    model = net()
    setattr(model, name, value)
    return model


def with_features_of_a_recurrent_layer() -> nn.Module:
    model = net()
    model[-2].add_module("other", nn.LSTM(64, 4))
    return model


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lenet(), (1, 32, 32)),
        (net(side=28, channels=1), (1, 28, 28)),
        (net(side=50), (3, 50, 50)),
        (Patches().eval(), (3, 48, 48)),
        (FixedRows().eval(), (3, 32, 32)),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 5)).eval(), (1, 28, 28)),
        (with_attribute("image_size", 96), (3, 96, 96)),
        (with_attribute("input_size", (3, 40, 60)), (3, 40, 60)),
        (with_attribute("default_cfg", {"input_size": (3, 72, 72)}), (3, 72, 72)),
        (with_features_of_a_recurrent_layer(), (3, 224, 224)),
        (net(), (3, 224, 224)),
    ],
    ids=repr,
)
def test_the_size_and_the_channels_of_a_bare_model_are_read_from_it_and_told(model: nn.Module, shape: Any) -> None:
    method = "gradcam" if any(isinstance(each, nn.Conv2d) for each in model.modules()) else "inputxgradient"
    result = camtool.explain(model, PHOTO, 1, method=method)
    assert result.geometry is not None
    assert result.geometry.size == shape[1:]
    (told,) = [each for each in result.warnings if each.code == "assumed-transform"]
    assert f"a size of {shape[1]} x {shape[2]}" in told
    assert "camtool.preprocessing(size=" in told
    assert ("made-gray" in [each.code for each in result.warnings]) == (shape[0] == 1)


@pytest.mark.parametrize(
    "call",
    [
        camtool.explain,
        camtool.candidate_layers,
        camtool.attention,
        camtool.figures.feature_maps,
        lambda model, img: camtool.concepts(model, [img], 2),
        lambda model, img: camtool.evaluate(model, [img]),
        lambda model, img: camtool.recommend(model, [img]),
        lambda model, img: camtool.compare(model, [img], ["gradcam"]),
    ],
    ids=["explain", "candidate_layers", "attention", "feature_maps", "concepts", "evaluate", "recommend", "compare"],
)
def test_a_model_that_runs_on_no_usual_size_is_told_to_state_it(call: Callable[[nn.Module, Any], object]) -> None:
    wide = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 8 * 60, 5)).eval()
    with pytest.raises(ForwardError, match=r"mat1 .*a size of 224 x 224 .* were assumed.*preprocessing\(size.*--size"):
        call(wide, PHOTO)
    with pytest.raises(ForwardError) as of_tensor:
        camtool.explain(wide, torch.rand(1, 1, 224, 224))
    assert "assumed" not in str(of_tensor.value)
    stated = camtool.preprocessing((16, 120), channels="gray", mean=0.5, std=0.25)
    codes = [each.code for each in camtool.explain(wide, PHOTO, transform=stated).warnings]
    assert "assumed-transform" not in codes


def test_a_model_of_other_channels_refuses_a_photo() -> None:
    with pytest.raises(ImageError, match=r"a photo has 1 or 3 channels, but .* first convolution takes 4; give"):
        camtool.explain(net(4), PHOTO)


def test_looking_for_the_size_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 256, 5)).train()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    camtool.explain(model, PHOTO, 1)
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


def test_the_public_function_states_a_preprocessing() -> None:
    made = camtool.preprocessing(size=32, channels="gray", mean=0.5, std=0.25)
    assert (made.size, made.mean, made.std, made.channels, made.notes) == ((32, 32), (0.5,), (0.25,), "gray", ())
    assert repr(camtool.preprocessing(np.int64(32)).size) == "(32, 32)"
    assert camtool.preprocessing((32, 48), mean=[123.7, 116.3, 103.5], std=np.full(3, 58.0)).mean[0] < 1
    assert [note.code for note in camtool.preprocessing(32).notes] == ["assumed-transform"]
    for options in (
        {"size": 0},
        {"size": 8.0},
        {"size": (1, 2, 3)},
        {"size": 8, "channels": "grey"},
        {"size": 8, "mean": 0.5},
    ):
        with pytest.raises(ModelError, match=r"size must|channels must be .*'gray', got 'grey'|give both"):
            camtool.preprocessing(**options)
