"""Matrices that interpolate between cells."""

from __future__ import annotations

import torch

from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.resampling import build_interpolation_matrix


def test_interpolation_matrix_equals_hand_computed_weights():
    expected = [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]
    torch.testing.assert_close(build_interpolation_matrix(2, 0, 4, 4), torch.tensor(expected).double())
    torch.testing.assert_close(build_interpolation_matrix(2, 4, 0, 4), torch.tensor(expected).double().flip(1))
    inside = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0]]).double()
    torch.testing.assert_close(build_interpolation_matrix(2, 1, 3, 4), inside)


def test_interpolation_matrices_are_built_once():
    build_interpolation_matrix.cache_clear()
    geometry = Geometry.whole(20, 30).crop(2, 3, 10, 12)
    geometry.place_on_photo(torch.rand(7, 7))
    geometry.place_on_photo(torch.rand(5, 7, 7))
    assert build_interpolation_matrix.cache_info().misses == 2
