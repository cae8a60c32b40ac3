"""Table of the layers that can carry a map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool.errors import ImageError
from camtool.explaining.layer_table import HEADINGS, Candidates, candidate_layers, describe_candidate, format_candidates
from camtool.layers.default_layer import Candidate
from camtool.layers.layouts import Layout


@pytest.fixture
def model() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)).eval()


def test_the_chosen_layer_is_the_one_that_is_explained(model: nn.Module) -> None:
    image = torch.randn(1, 3, 64, 96)
    found = candidate_layers(model, image)
    assert [candidate.name for candidate in found] == ["0", "1", "2"]
    assert found.chosen is not None
    assert found.chosen.name == camtool.explain(model, image)[0].layer == "2"
    assert found.chosen.stride == (8.0, 8.0)
    assert found.chosen.reached is True


def test_no_layer_is_chosen_if_none_qualifies() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    assert (
        list(candidate_layers(model, torch.randn(1, 3, 8, 8))),
        candidate_layers(model, torch.randn(1, 3, 8, 8)).chosen,
    ) == ([], None)


def build_images() -> dict[str, object]:
    """Return an image in all forms."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 80, 3), np.uint8)
    prepared = torch.randn(2, 3, 64, 64)
    return {
        "photo": Image.fromarray(pixels),
        "pixels": pixels,
        "several photos": [Image.fromarray(pixels), pixels],
        "prepared": prepared[0],
        "a batch": prepared,
        "by name": {"input": prepared},
        "a list of inputs": [{"input": prepared[0]}, {"input": prepared[1]}],
    }


@pytest.mark.parametrize("form", build_images())
def test_an_image_may_have_any_form_that_explain_takes(model: nn.Module, form: str) -> None:
    found = candidate_layers(model, build_images()[form])
    assert found.chosen is not None
    assert found.chosen.name == "2"
    photo = "photo" in form or form == "pixels"
    assert found.chosen.layout.grid == ((28, 28) if photo else (8, 8))  # a photo is resized to 224 x 224


def test_the_transform_of_the_user_or_of_the_loaded_model_is_used(model: nn.Module) -> None:
    def transform(photo: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(photo.resize((32, 32)))).movedim(-1, 0) / 255

    photo = Image.new("RGB", (50, 40), "red")
    by_argument = candidate_layers(model, photo, transform=transform)
    by_loading = candidate_layers(camtool.Loaded(model, transform), photo)
    assert [c.layout.grid for c in by_argument] == [c.layout.grid for c in by_loading] == [(8, 8), (8, 8), (4, 4)]


def test_an_empty_list_raises_an_error() -> None:
    with pytest.raises(ImageError, match="img holds no image"):
        candidate_layers(nn.Conv2d(3, 3, 3), [])


@pytest.mark.parametrize(
    ("reached", "chosen", "cells"),
    [
        (True, True, ("yes", "chosen: good")),
        (False, False, ("no", "good")),
        (None, False, ("-", "good")),
    ],
)
def test_a_candidate_is_described_by_six_cells(reached: bool | None, chosen: bool, cells: tuple[str, str]) -> None:
    candidate = Candidate(
        "a.b", "Conv2d", (1, 6, 8, 12), Layout("channels first", (8, 12)), (8.0, 8.5), reached, "good", chosen
    )
    row = dict(zip(HEADINGS, describe_candidate(candidate), strict=True))
    assert (row.pop("gradient"), row.pop("verdict")) == cells
    assert row == {
        "layer": "a.b",
        "output": "6 x 8 x 12",
        "layout": "channels first, 8 x 12",
        "stride": "8 x 8.5",
    }


def test_the_printed_table_has_grids_above_and_verdicts_below(model: nn.Module) -> None:
    found = candidate_layers(model, torch.randn(1, 3, 64, 64))
    assert repr(found) == f"<Candidates: {len(found)} layers, '2' chosen>"
    assert str(found).splitlines() == [
        "16 x 16 grid, stride 4, channels first",
        "  0  4 x 16 x 16",
        "  1  4 x 16 x 16",
        "",
        "8 x 8 grid, stride 8, channels first",
        "> 2  6 x 8 x 8",
        "",
        "   no mark: good, but not the deepest",
        ">  chosen: the deepest that the score's gradient reaches",
        "   cells at 0.5, 8.5, ... see 11 pixels",
    ]
    assert str(Candidates()) == "No layer can carry a map."


NAMED = "encoder.layers.encoder_layer_11"


def build_token_candidate(name: str, verdict: str, *, chosen: bool = False) -> Candidate:
    """Return a candidate of a vision transformer."""
    layout = Layout("tokens", (14, 14), 1)
    return Candidate(name, "Linear", (1, 197, 3072), layout, (16.0, 16.0), None, verdict, chosen)


def build_transformer_candidates() -> Candidates:
    """Return candidates with long names and three verdicts."""
    verdicts = ["no gradient reaches it", "a projection of norm", "no gradient reaches it"]
    others = [build_token_candidate(f"{NAMED}.self_attention.{'q' * n}", verdict) for n, verdict in enumerate(verdicts)]
    return Candidates([build_token_candidate(f"{NAMED}.ln_1", "the deepest", chosen=True), *others])


@pytest.mark.parametrize("width", [52, 60, 80, 120])
def test_the_table_fits_any_width_without_breaking_words(width: int) -> None:
    found = build_transformer_candidates()
    lines = [line for line, _ in format_candidates(found, width)]
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {each.name for each in found} | {"3072", "projection"} <= words
    assert lines[0].startswith("14 x 14 grid, stride 16, tokens (1 prefix token)"[:width])


def test_verdicts_are_listed_once_and_referred_to_by_letters() -> None:
    lines = str(build_transformer_candidates()).splitlines()
    assert [line[:2] for line in lines[1:5]] == ["> ", "a ", "b ", "a "]
    assert lines[-3:] == [">  chosen: the deepest", "a  no gradient reaches it", "b  a projection of norm"]


def test_a_candidate_is_one_line_without_a_width() -> None:
    found = build_transformer_candidates()
    heading, *lines = (line for line, _ in format_candidates(found))
    assert heading.split() == " ".join(HEADINGS).split()
    for line, candidate in zip(lines, found, strict=True):
        assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [*describe_candidate(candidate)]


def test_a_notebook_shows_an_html_table() -> None:
    model = nn.Sequential()
    model.add_module("<b>", nn.Conv2d(3, 4, 8, stride=8))
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    html = candidate_layers(model.append(nn.Flatten()).append(nn.Linear(4, 3)), torch.randn(1, 3, 64, 64))._repr_html_()
    assert html.startswith("<table>")
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count('<tr style="font-weight: bold">') == 1
    assert html.count("<td") == html.count('<td style="text-align: left') > 0
