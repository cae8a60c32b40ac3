"""Geometry: steps from the photo to the input, and maps placed on the photo."""

from __future__ import annotations

import subprocess
import sys
import timeit

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from camtool.errors import CamtoolError, GeometryError
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import build_interpolation_matrix
from tests.geometry.photos import (
    LANDSCAPE,
)

# ---- Steps


def test_a_whole_photo_is_its_own_input():
    assert Geometry.whole(3, 5) == Geometry((3, 5), (3, 5), (0, 0, 3, 5))


@pytest.mark.parametrize(
    ("change", "size", "box"),
    [
        (lambda g: g.resize(256), (256, 341), (0, 0, 375, 500)),
        (lambda g: g.resize(np.int64(256)), (256, 341), (0, 0, 375, 500)),
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
def test_steps_change_size_and_box(change, size, box):
    geometry = change(Geometry.whole(375, 500))
    assert geometry.photo == (375, 500)
    assert geometry.size == size
    assert geometry.box == pytest.approx(box, abs=1e-9)


def test_center_crop_rounds_half_pixels_to_even_as_torchvision():
    tops = [Geometry.whole(height, 10).center_crop(10).box[0] for height in (10, 11, 12, 13, 14, 15)]
    assert tops == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda g: g.resize(None), "give one of them"),
        (lambda g: g.resize(20, max_size=20), "max_size must be greater than size, got max_size=20"),
        (lambda g: g.resize((20, 20), max_size=30), "max_size=30 requires one number"),
        (lambda g: g.resize((1, 2, 3)), r"one number or \(h, w\), got \(1, 2, 3\)"),
        (lambda g: g.crop(0, 0, 0, 4), "at least 1 x 1"),
        (lambda g: Geometry.whole(0, 4), "at least 1 x 1"),
        (lambda g: Geometry((4, 4), (4, 4), (0, 1, 4, 1)), "finite and not empty"),
        (lambda g: Geometry((4, 4), (4, 4), (0, 0, 4, float("nan"))), "finite and not empty"),
    ],
)
def test_impossible_sizes_raise_an_error(change, match):
    with pytest.raises(GeometryError, match=match) as caught:
        change(Geometry.whole(8, 8))
    assert isinstance(caught.value, CamtoolError)


# ---- Maps on the photo


def test_a_map_of_ones_is_one_inside_of_the_box_and_zero_outside():
    geometry = Geometry((61, 83), (24, 24), (-7.3, 11.25, 50.1, 60.0))
    placed = geometry.place_on_photo(torch.ones(5, 7, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(placed, geometry.seen, atol=1e-12)


@pytest.mark.parametrize("grid", [(7, 7), (1, 1), (3, 11), (64, 80)])
@pytest.mark.parametrize("photo", [(40, 56), (5, 3), (1, 1)])
def test_place_equals_bilinear_interpolation_without_a_crop(grid, photo):
    maps = torch.randn(2, 3, *grid, dtype=torch.float64)
    expected = F.interpolate(maps, photo, mode="bilinear", align_corners=False)
    torch.testing.assert_close(Geometry.whole(*photo).place_on_photo(maps), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(Geometry.whole(*photo).place_on_photo(maps.float()), expected.float(), rtol=0, atol=1e-6)


def test_a_flip_mirrors_the_map():
    maps = torch.rand(4, 6)
    geometry = Geometry.whole(20, 31)
    torch.testing.assert_close(geometry.flip().place_on_photo(maps), geometry.place_on_photo(maps.flip(-1)))


def test_the_scale_is_that_of_the_more_enlarged_axis():
    assert Geometry.whole(100, 200).resize((50, 50)).compute_scale() == 0.5
    assert Geometry.whole(100, 200).resize((300, 200)).flip().compute_scale() == 3
    assert Geometry.whole(100, 200).center_crop(64).compute_scale() == 1


def test_seen_marks_the_pixels_inside_of_the_box():
    seen = Geometry((4, 5), (2, 2), (1, -3, 3, 2.5)).seen
    assert seen.dtype == bool
    assert seen.astype(int).tolist() == [[0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert (seen == Geometry((4, 5), (2, 2), (1, 2.5, 3, -3)).seen).all()


@pytest.mark.parametrize("edge", [-1.0, 0.0, 0.5, 0.6, 4.4, 4.5, 5.0])
@pytest.mark.parametrize("side", range(4))
def test_all_is_seen_if_every_pixel_is(edge: float, side: int) -> None:
    box = [0.0, 0.0, 5.0, 5.0]
    box[side] = edge
    if box[0] != box[2] and box[1] != box[3]:
        geometry = Geometry((5, 5), (2, 2), tuple(box))
        assert geometry.sees_all == geometry.seen.all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_place_keeps_dtype_and_batch(dtype):
    maps = torch.rand(2, 3, 7, 7).to(dtype)
    geometry = Geometry.whole(*LANDSCAPE).resize(256).center_crop(224)
    placed = geometry.place_on_photo(maps)
    assert placed.dtype == dtype
    assert placed.shape == (2, 3, *LANDSCAPE)
    torch.testing.assert_close(placed[1, 2], geometry.place_on_photo(maps[1, 2]))


def test_place_ignores_autocast():
    maps = torch.rand(7, 7)
    geometry = Geometry.whole(50, 60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        placed = geometry.place_on_photo(maps)
    torch.testing.assert_close(placed, geometry.place_on_photo(maps), rtol=0, atol=0)


def test_place_is_differentiable_after_a_first_use_in_inference_mode():
    geometry = Geometry((9, 8), (6, 6), (-1.0, 2.0, 7.0, 9.5))
    build_interpolation_matrix.cache_clear()
    with torch.inference_mode():
        geometry.place_on_photo(torch.rand(3, 2, dtype=torch.float64))
    maps = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(geometry.place_on_photo, maps)


@pytest.mark.parametrize("maps", [torch.ones(3), torch.ones(3, 3, dtype=torch.int64)])
def test_wrong_maps_raise_an_error(maps):
    with pytest.raises(GeometryError, match=r"maps must be floating and \(\.\.\., gh, gw\), got torch\.\w+"):
        Geometry.whole(5, 5).place_on_photo(maps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_maps_stay_on_their_device():
    maps = torch.rand(2, 7, 7)
    geometry = Geometry.whole(*LANDSCAPE).resize(256).center_crop(224)
    placed = geometry.place_on_photo(maps.cuda())
    assert placed.is_cuda
    torch.testing.assert_close(placed.cpu(), geometry.place_on_photo(maps), rtol=0, atol=1e-5)


def test_place_takes_less_than_a_millisecond():
    geometry, maps = Geometry.whole(224, 224), torch.rand(7, 7)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second thread may wait on a busy machine
    try:
        spent = [timeit.timeit(lambda: geometry.place_on_photo(maps), number=1) for _ in range(200)]
    finally:
        torch.set_num_threads(threads)
    assert min(spent) < 1e-3


def test_importing_geometry_imports_no_heavy_library():
    code = (
        "import sys, camtool.geometry; "
        "print([m for m in ('torchvision', 'cv2', 'skimage', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
