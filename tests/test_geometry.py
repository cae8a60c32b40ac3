"""How a photo became the model's input: every rule is checked against the transform that really runs."""

from __future__ import annotations

import random
import subprocess
import sys
import timeit

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as vision
from torchvision.transforms._presets import ImageClassification, ObjectDetection, SemanticSegmentation

from camtool.errors import CamtoolError, GeometryError
from camtool.geometry import Geometry, geometry_of, interpolation, probe

LANDSCAPE, PORTRAIT = (375, 500), (500, 333)
SIZES = [LANDSCAPE, PORTRAIT, (224, 224), (225, 224), (224, 225), (223, 400), (100, 60), (97, 1000), (1, 1)]

to_tensor = v1.ToTensor()


def draw(height, width, box=None):
    """A black photo with, perhaps, one white rectangle (top, left, bottom, right)."""
    pixels = np.zeros((height, width, 3), np.uint8)
    if box is not None:
        pixels[box[0] : box[2], box[1] : box[3]] = 255
    return Image.fromarray(pixels)


def centroid(image):
    """The mean position (row, column) of the light in an (h, w) picture, in pixels with edges at 0."""
    light = np.asarray(image, float)
    light = np.where(light > 0.5 * light.max(), light, 0)
    rows, columns = np.indices(light.shape) + 0.5
    return np.array([(rows * light).sum(), (columns * light).sum()]) / light.sum()


def to_photo(geometry, point):
    """The photo coordinates of a point (row, column) of the model's input."""
    top, left, bottom, right = geometry.box
    return np.array([top, left]) + np.divide(point, geometry.size) * [bottom - top, right - left]


def to_input(geometry, point):
    """The input coordinates of a point (row, column) of the photo."""
    top, left, bottom, right = geometry.box
    return np.subtract(point, [top, left]) / [bottom - top, right - left] * geometry.size


def resize_and_crop(photo, resize, crop):
    """The box of the classification preset, written out once more and literally."""
    height, width = photo
    if width <= height:
        new_height, new_width = int(resize * height / width), resize
    else:
        new_height, new_width = resize, int(resize * width / height)
    pad_top, pad_left = max(crop - new_height, 0) // 2, max(crop - new_width, 0) // 2
    padded_height, padded_width = max(new_height, crop), max(new_width, crop)
    top = int(round((padded_height - crop) / 2.0)) - pad_top  # noqa: RUF046 - as torchvision writes it
    left = int(round((padded_width - crop) / 2.0)) - pad_left  # noqa: RUF046
    rows, columns = height / new_height, width / new_width
    return top * rows, left * columns, (top + crop) * rows, (left + crop) * columns


# ---- The algebra -------------------------------------------------------------------------------------------


def test_whole_photo_is_its_own_input():
    assert Geometry.whole(3, 5) == Geometry((3, 5), (3, 5), (0, 0, 3, 5))


@pytest.mark.parametrize(
    ("change", "size", "box"),
    [
        (lambda g: g.resize(256), (256, 341), (0, 0, 375, 500)),
        (lambda g: g.resize([256]), (256, 341), (0, 0, 375, 500)),
        (lambda g: g.resize((30, 20)), (30, 20), (0, 0, 375, 500)),
        (lambda g: g.resize(300, max_size=320), (240, 320), (0, 0, 375, 500)),
        (lambda g: g.resize(None, max_size=100), (75, 100), (0, 0, 375, 500)),
        (lambda g: g.crop(10, 20, 30, 40), (30, 40), (10, 20, 40, 60)),
        (lambda g: g.crop(-5, 480, 10, 40), (10, 40), (-5, 480, 5, 520)),
        (lambda g: g.pad(1, 2, 3, 4), (381, 504), (-2, -1, 379, 503)),
        (lambda g: g.pad(0, 62, 0, 63).resize((100, 100)), (100, 100), (-62, 0, 438, 500)),
        (lambda g: g.center_crop(300), (300, 300), (38, 100, 338, 400)),
        (lambda g: g.center_crop((400, 501)), (400, 501), (-12, 0, 388, 501)),
        (lambda g: g.resize((75, 100)).crop(10, 20, 30, 40), (30, 40), (50, 100, 200, 300)),
        (lambda g: g.flip(), (375, 500), (0, 500, 375, 0)),
        (lambda g: g.flip().crop(0, 0, 375, 100), (375, 100), (0, 500, 375, 400)),
    ],
)
def test_algebra_in_numbers(change, size, box):
    geometry = change(Geometry.whole(375, 500))
    assert geometry.photo == (375, 500)
    assert geometry.size == size
    assert geometry.box == pytest.approx(box, abs=1e-9)


def test_half_pixels_round_to_even_as_in_torchvision():
    tops = [Geometry.whole(height, 10).center_crop(10).box[0] for height in (10, 11, 12, 13, 14, 15)]
    assert tops == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda g: g.resize(None), "give one of them"),
        (lambda g: g.resize(20, max_size=20), "max_size must be greater than size, got max_size=20"),
        (lambda g: g.resize((20, 20), max_size=30), "max_size=30 goes only with one number"),
        (lambda g: g.resize((1, 2, 3)), r"one number or \(h, w\), got \(1, 2, 3\)"),
        (lambda g: g.crop(0, 0, 0, 4), "at least 1 x 1"),
        (lambda g: Geometry.whole(0, 4), "at least 1 x 1"),
        (lambda g: Geometry((4, 4), (4, 4), (0, 1, 4, 1)), "finite and not empty"),
        (lambda g: Geometry((4, 4), (4, 4), (0, 0, 4, float("nan"))), "finite and not empty"),
    ],
)
def test_impossible_sizes_are_refused(change, match):
    with pytest.raises(GeometryError, match=match) as caught:
        change(Geometry.whole(8, 8))
    assert isinstance(caught.value, CamtoolError)


# ---- The way back ------------------------------------------------------------------------------------------


def test_interpolation_by_hand():
    expected = [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]
    torch.testing.assert_close(interpolation(2, 0, 4, 4), torch.tensor(expected).double())
    torch.testing.assert_close(interpolation(2, 4, 0, 4), torch.tensor(expected).double().flip(1))
    inside = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0]]).double()
    torch.testing.assert_close(interpolation(2, 1, 3, 4), inside)


def test_cells_inside_sum_to_one_and_outside_to_zero():
    geometry = Geometry((61, 83), (24, 24), (-7.3, 11.25, 50.1, 60.0))
    placed = geometry.place(torch.ones(5, 7, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(placed, geometry.seen, atol=1e-12)


@pytest.mark.parametrize("grid", [(7, 7), (1, 1), (3, 11), (64, 80)])
@pytest.mark.parametrize("photo", [(40, 56), (5, 3), (1, 1)])
def test_without_a_crop_it_is_bilinear_interpolation(grid, photo):
    maps = torch.randn(2, 3, *grid, dtype=torch.float64)
    expected = F.interpolate(maps, photo, mode="bilinear", align_corners=False)
    torch.testing.assert_close(Geometry.whole(*photo).place(maps), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(Geometry.whole(*photo).place(maps.float()), expected.float(), rtol=0, atol=1e-6)


def test_flip_mirrors_the_map():
    maps = torch.rand(4, 6)
    geometry = Geometry.whole(20, 31)
    torch.testing.assert_close(geometry.flip().place(maps), geometry.place(maps.flip(-1)))


def test_seen_by_hand():
    seen = Geometry((4, 5), (2, 2), (1, -3, 3, 2.5)).seen
    assert seen.dtype == bool
    assert seen.astype(int).tolist() == [[0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert (seen == Geometry((4, 5), (2, 2), (1, 2.5, 3, -3)).seen).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_and_batch_are_kept(dtype):
    maps = torch.rand(2, 3, 7, 7).to(dtype)
    geometry = Geometry.whole(*LANDSCAPE).resize(256).center_crop(224)
    placed = geometry.place(maps)
    assert placed.dtype == dtype
    assert placed.shape == (2, 3, *LANDSCAPE)
    torch.testing.assert_close(placed[1, 2], geometry.place(maps[1, 2]))


def test_autocast_does_not_coarsen_the_heatmap():
    maps = torch.rand(7, 7)
    geometry = Geometry.whole(50, 60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        placed = geometry.place(maps)
    torch.testing.assert_close(placed, geometry.place(maps), rtol=0, atol=0)


def test_gradients_pass_even_after_a_first_use_in_inference_mode():
    geometry = Geometry((9, 8), (6, 6), (-1.0, 2.0, 7.0, 9.5))
    interpolation.cache_clear()
    with torch.inference_mode():
        geometry.place(torch.rand(3, 2, dtype=torch.float64))
    maps = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(geometry.place, maps)


@pytest.mark.parametrize("maps", [torch.ones(3), torch.ones(3, 3, dtype=torch.int64)])
def test_what_is_no_map_is_refused(maps):
    with pytest.raises(GeometryError, match=r"maps must be floating and \(\.\.\., gh, gw\), got torch\.\w+"):
        Geometry.whole(5, 5).place(maps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_maps_stay_on_their_device():
    maps = torch.rand(2, 7, 7)
    geometry = Geometry.whole(*LANDSCAPE).resize(256).center_crop(224)
    placed = geometry.place(maps.cuda())
    assert placed.is_cuda
    torch.testing.assert_close(placed.cpu(), geometry.place(maps), rtol=0, atol=1e-5)


def test_placing_is_fast():
    geometry, maps = Geometry.whole(224, 224), torch.rand(7, 7)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # waiting for a second thread on a busy machine is not what is measured
    try:
        spent = [timeit.timeit(lambda: geometry.place(maps), number=1) for _ in range(200)]
    finally:
        torch.set_num_threads(threads)
    assert min(spent) < 1e-3


def test_matrices_are_built_once():
    interpolation.cache_clear()
    geometry = Geometry.whole(20, 30).crop(2, 3, 10, 12)
    geometry.place(torch.rand(7, 7))
    geometry.place(torch.rand(5, 7, 7))
    assert interpolation.cache_info().misses == 2


# ---- Reading transforms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (232, 224), (224, 224), (342, 299), (200, 256), (231, 224)])
@pytest.mark.parametrize("photo", SIZES)
def test_classification_preset(photo, resize, crop):
    geometry = geometry_of(ImageClassification(crop_size=crop, resize_size=resize), photo)
    assert geometry.size == (crop, crop)
    assert geometry.box == pytest.approx(resize_and_crop(photo, resize, crop), abs=1e-9)


def test_input_size_is_what_torchvision_returns():
    draw_size = random.Random(0).randint
    for _ in range(30):
        photo = draw_size(2, 90), draw_size(2, 90)
        size, slack, crop = draw_size(2, 60), draw_size(1, 40), draw_size(1, 80)
        padding = [draw_size(0, 9) for _ in range(4)]
        parts = [v1.Pad(padding), v1.Resize(size, max_size=size + slack), v1.CenterCrop((crop, size)), v1.ToTensor()]
        for count in range(1, 5):
            output = v1.Compose(parts[:count])(draw(*photo))
            made = tuple(output.shape[-2:]) if count == 4 else (output.height, output.width)
            assert geometry_of(v1.Compose(parts[:count]), photo).size == made


RUN_FOR_REAL = {
    "classification": ImageClassification(crop_size=224, resize_size=256),
    "bicubic": ImageClassification(crop_size=224, resize_size=232, interpolation=InterpolationMode.BICUBIC),
    "crop larger than the resize": ImageClassification(crop_size=300, resize_size=200),
    "segmentation": SemanticSegmentation(resize_size=260),
    "segmentation as it is": SemanticSegmentation(resize_size=None),
    "detection": ObjectDetection(),
    "v1": v1.Compose([v1.Resize(300, max_size=310), v1.Pad((7, 20)), v1.CenterCrop(310), v1.ToTensor()]),
    "v2": v2.Compose(
        [
            v2.ToImage(),
            v2.Compose([v2.Resize(size=None, max_size=320), v2.Pad([1, 2, 30, 40], fill=3)]),
            v2.CenterCrop([270, 250]),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.4] * 3, [0.2] * 3),
        ]
    ),
    "squash, flip, grey": v1.Compose(
        [v1.Resize((180, 240)), v1.RandomHorizontalFlip(1.0), v1.Grayscale(3), v1.PILToTensor()]
    ),
}


@pytest.mark.parametrize("photo", [LANDSCAPE, PORTRAIT, (225, 224), (120, 100)])
@pytest.mark.parametrize("transform", RUN_FOR_REAL.values(), ids=RUN_FOR_REAL.keys())
def test_an_object_lies_where_the_geometry_says(transform, photo):
    geometry = geometry_of(transform, draw(*photo))
    height, width = photo
    for row, column in [(0.5, 0.5), (0.35, 0.6), (0.6, 0.35)]:
        top, left = int(row * height) - 6, int(column * width) - 6
        pixels = transform(draw(height, width, (top, left, top + 12, left + 12)))
        assert pixels.shape[-2:] == geometry.size
        light = pixels.double().mean(0) - transform(draw(height, width)).double().mean(0)
        found = centroid(light)
        assert np.abs(found - to_input(geometry, (top + 6, left + 6))).max() < 0.5


@pytest.mark.parametrize("photo", [LANDSCAPE, PORTRAIT])
@pytest.mark.parametrize("transform", RUN_FOR_REAL.values(), ids=RUN_FOR_REAL.keys())
def test_round_trip_of_a_map(transform, photo):
    geometry = geometry_of(transform, photo)
    maps = torch.zeros(14, 14)
    maps[6, 8] = 1
    middle = to_photo(geometry, (6.5 / 14 * geometry.size[0], 8.5 / 14 * geometry.size[1]))
    top, left = (middle - 8).round().astype(int)
    pixels = transform(draw(*photo, (top, left, top + 16, left + 16)))
    light = pixels.double().mean(0) - transform(draw(*photo)).double().mean(0)
    pooled = F.adaptive_avg_pool2d(light[None], 14)[0]
    assert divmod(int(pooled.argmax()), 14) == (6, 8)
    assert np.abs(centroid(geometry.place(maps)) - (top + 8, left + 8)).max() < 1


def test_size_and_photo_say_the_same():
    preset = RUN_FOR_REAL["classification"]
    assert geometry_of(preset, LANDSCAPE) == geometry_of(preset, draw(*LANDSCAPE))


@pytest.mark.parametrize("padding", [5, [5], (5, 6), (1, 2, 3, 4), (-3, 2, 3, -4)])
def test_forms_of_padding(padding):
    geometry = geometry_of(v2.Pad(padding), (40, 50))
    left, top, right, bottom = {1: [5] * 4, 2: [5, 6, 5, 6]}.get(len(np.atleast_1d(padding)), padding)
    assert geometry.box == (-top, -left, 40 + bottom, 50 + right)
    assert v2.Pad(padding)(draw(40, 50)).size == geometry.size[::-1]


def test_timm_parts_that_move_nothing_are_known():
    maybe = type("MaybeToTensor", (v1.ToTensor,), {"__module__": "timm.data.transforms"})()
    transform = v1.Compose([v1.Resize(50), v1.CenterCrop(40), maybe])
    assert geometry_of(transform, (60, 80)).box == pytest.approx(resize_and_crop((60, 80), 50, 40))


class Resize(v1.Resize):
    """A foreign class of a known name that does something else: it keeps the top left corner."""

    def forward(self, img):
        return img.crop((0, 0, self.size, self.size))


def test_a_foreign_class_of_a_known_name_is_probed():
    geometry = geometry_of(v1.Compose([Resize(100), v1.ToTensor()]), (150, 200))
    assert geometry.box == pytest.approx((0, 0, 100, 100), abs=0.05)


# ---- Probing -----------------------------------------------------------------------------------------------


def squash(photo):
    resized = cv2.resize(np.asarray(photo), (224, 224), interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(resized).permute(2, 0, 1).float() / 255


def squash_area(photo):
    resized = cv2.resize(np.asarray(photo), (224, 224), interpolation=cv2.INTER_AREA)
    return (torch.from_numpy(resized).permute(2, 0, 1).float() - 120) / 57


def letterbox(photo):
    side = max(photo.size)
    square = Image.new("RGB", (side, side), (114, 90, 30))
    square.paste(photo, ((side - photo.width) // 2, (side - photo.height) // 2))
    return to_tensor(square.resize((256, 256), Image.Resampling.BICUBIC))


def boxes(height, width):
    """What the functions above really show of a photo."""
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    return {
        "whole": (0, 0, height, width),
        "mirrored": (0, width, height, 0),
        "corner": (0, 0, 200, 180),
        "letterbox": (-top, -left, side - top, side - left),
        "replicated": (-40, -50, height + 40, width + 50),
    }


FUNCTIONS = {
    "to tensor": (to_tensor, "whole"),
    "squash": (squash, "whole"),
    "squash by area": (squash_area, "whole"),
    "inverted": (lambda photo: 1 - squash(photo), "whole"),
    "one channel": (lambda photo: to_tensor(photo.convert("L").resize((96, 96))), "whole"),
    "corner": (lambda photo: to_tensor(photo.crop((0, 0, 180, 200))), "corner"),
    "letterbox": (letterbox, "letterbox"),
    "mirrored": (lambda photo: squash(ImageOps.mirror(photo)), "mirrored"),
    "mirrored batch": (lambda photo: vision.hflip(squash(photo))[None], "mirrored"),
    "replicated": (lambda photo: squash(vision.pad(photo, [50, 40], padding_mode="edge")), "replicated"),
    "reflected": (lambda photo: squash(vision.pad(photo, [50, 40], padding_mode="reflect")), "replicated"),
    "array": (lambda photo: squash(photo).numpy(), "whole"),
    "dict": (lambda photo: {"image": squash(photo)}, "whole"),
    "processor": (lambda photo: {"pixel_values": squash(photo)[None], "pixel_mask": torch.ones(1, 2, 2)}, "whole"),
    "processor's list": (lambda photo: {"pixel_values": [squash(photo).numpy()]}, "whole"),
    "only value": (lambda photo: {"x": squash(photo).half()}, "whole"),
}


@pytest.mark.parametrize("photo", [LANDSCAPE, PORTRAIT, (700, 640)])
@pytest.mark.parametrize(("transform", "shown"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_probe_finds_the_box_of_a_function(transform, shown, photo):
    assert geometry_of(transform, photo).box == pytest.approx(boxes(*photo)[shown], abs=0.05)


@pytest.mark.parametrize("photo", [LANDSCAPE, (500, 375), (640, 1000), (150, 120)])
@pytest.mark.parametrize("transform", [t for name, t in RUN_FOR_REAL.items() if "flip" not in name])
def test_probe_agrees_with_the_exact_reader(transform, photo):
    exact, measured = geometry_of(transform, photo), probe(transform, photo)
    assert measured.size == exact.size
    assert measured.photo == exact.photo
    assert measured.box == pytest.approx(exact.box, abs=0.05)


@pytest.mark.parametrize("photo", [(446, 232), (719, 930), (647, 948)])
@pytest.mark.parametrize(
    "parts",
    [[v1.Resize((224, 224))], [v1.Resize(64), v1.Resize(256), v1.CenterCrop(224)], [v1.Resize((32, 32))]],
    ids=["to 224", "through 64", "to 32"],
)
def test_rounding_and_resampling_waves_average_out(parts, photo):
    # Each is off by more than this without the dithers, or without the weights of the line that fade out.
    transform = v1.Compose([*parts, v1.ToTensor()])
    assert probe(transform, photo).box == pytest.approx(geometry_of(transform, photo).box, abs=0.06)


@pytest.mark.parametrize("mode", [InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC])
@pytest.mark.parametrize(("photo", "size"), [((813, 767), 256), ((697, 719), 232), ((449, 430), 224)])
def test_probe_where_resampling_makes_one_slow_wave(photo, size, mode):
    # Scales next to 3, 3 and 2: the sampled positions drift by up to half a pixel, so no line fits to hundredths.
    transform = v1.Compose([v1.Resize((size, size), mode), v1.ToTensor()])
    assert probe(transform, photo).box == pytest.approx(geometry_of(transform, photo).box, abs=0.6)


@pytest.mark.parametrize("photo", [(40, 1), (1, 40)])
def test_a_photo_of_one_column_cannot_be_probed(photo):
    with pytest.raises(GeometryError, match="'squash' is not a crop and a scale"):
        probe(squash, photo)


def test_probe_leaves_the_random_generators_alone():
    def thirsty(photo):
        random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002
        return to_tensor(photo)

    def following():
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    for transform in (to_tensor, thirsty):
        python, numpys, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        expected = following()
        random.setstate(python), np.random.set_state(numpys), torch.set_rng_state(torchs)  # noqa: NPY002
        if transform is thirsty:
            with pytest.raises(GeometryError, match="'thirsty' is random"):
                probe(transform, (40, 50))
        else:
            probe(transform, (40, 50))
        assert following() == expected


def turned(degrees):
    return lambda photo: vision.rotate(to_tensor(photo), degrees, InterpolationMode.BILINEAR)


def keystone(photo):
    corners = [[0, 0], [photo.width, 0], [photo.width, photo.height], [0, photo.height]]
    moved = [[20, 10], *corners[1:]]
    return vision.perspective(to_tensor(photo), corners, moved)


@pytest.mark.parametrize(
    "transform",
    [
        turned(5),
        turned(-1.5),
        turned(90),
        keystone,
        lambda photo: to_tensor(photo).mT,
        lambda photo: to_tensor(photo) ** 2.2,
        lambda photo: torch.cat([to_tensor(photo)] * 2, dim=2),
    ],
    ids=["5 degrees", "1.5 degrees", "90 degrees", "perspective", "transposed", "gamma", "twice"],
)
@pytest.mark.parametrize("photo", [(300, 400), (200, 200)])
def test_what_is_no_crop_and_scale_is_refused(transform, photo):
    name = "keystone" if transform is keystone else "<lambda>"
    with pytest.raises(GeometryError, match=f"transform '{name}' is not a crop and a scale.*deterministic transform"):
        geometry_of(transform, photo)


private = np.random.default_rng(0)


def shaken(photo):
    left = int(private.integers(0, 30))
    return to_tensor(photo.crop((left, 0, left + 200, 200)))


def resampled(photo):
    return to_tensor(photo.resize((int(private.integers(50, 90)), 60)))


def trimmed(photo):
    """Cuts black borders away, as of a scan."""
    return to_tensor(photo.crop(photo.point(lambda grey: 255 * (grey > 90)).getbbox()))


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (trimmed, "trimmed"),
        (v1.Compose([v1.RandomResizedCrop(100), v1.ToTensor()]), "Compose"),
        (v2.Compose([v2.ToImage(), v2.RandomResizedCrop(100)]), "Compose"),
        (v1.Compose([v1.Resize(64), v1.RandomHorizontalFlip(0.5), v1.ToTensor()]), "Compose"),
        (v1.Compose([v1.ColorJitter(0.3), v1.ToTensor()]), "Compose"),
        (shaken, "shaken"),
        (resampled, "resampled"),
    ],
)
def test_a_random_transform_is_refused(transform, name):
    with pytest.raises(GeometryError, match=f"transform '{name}' is random.*Pass a deterministic transform"):
        geometry_of(transform, LANDSCAPE)


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (lambda photo: photo, r"must return a tensor \(C, h, w\) or \(1, C, h, w\), got Image\. Pass"),
        (lambda photo: torch.zeros(4, 4), r"got Tensor with shape \(4, 4\)"),
        (lambda photo: torch.zeros(5, 3, 4, 4), r"got Tensor with shape \(5, 3, 4, 4\)"),
        (lambda photo: {"a": to_tensor(photo), "b": to_tensor(photo)}, "got dict"),
        (lambda photo: {}, "got dict"),
        (v1.FiveCrop(20), "transform 'FiveCrop' must return a tensor .* got tuple"),
        (lambda photo: torch.zeros(3, 9, 9), "does not tell a black photo from a white one"),
        (lambda photo: torch.full((3, 9, 9), float("nan")), "is random|does not tell a black photo"),
    ],
)
def test_what_is_no_image_is_refused(transform, match):
    with pytest.raises(GeometryError, match=match):
        geometry_of(transform, (40, 50))


def test_an_error_inside_the_transform_is_not_hidden():
    def broken(photo):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        geometry_of(broken, (40, 50))


def test_import_stays_light():
    code = (
        "import sys, camtool.geometry; "
        "print([m for m in ('torchvision', 'cv2', 'skimage', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
