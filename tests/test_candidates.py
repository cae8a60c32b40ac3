"""The list of a model's layers that people are shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool.candidates import HEADINGS, Candidates, candidate_layers, cells, list_candidates
from camtool.errors import ImageError
from camtool.layers import Candidate, Layout


@pytest.fixture
def model() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)).eval()


def test_the_chosen_layer_is_the_one_at_which_maps_are_drawn(model: nn.Module) -> None:
    picture = torch.randn(1, 3, 64, 96)
    found = candidate_layers(model, picture)
    assert [candidate.name for candidate in found] == ["0", "1", "2"]
    assert found.chosen is not None
    assert found.chosen.name == camtool.explain(model, picture)[0].layer == "2"
    assert found.chosen.stride == (8.0, 8.0)
    assert found.chosen.reached is True


def test_where_none_qualifies_none_is_chosen() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    assert (
        list(candidate_layers(model, torch.randn(1, 3, 8, 8))),
        candidate_layers(model, torch.randn(1, 3, 8, 8)).chosen,
    ) == ([], None)


def forms() -> dict[str, object]:
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


@pytest.mark.parametrize("form", forms())
def test_an_image_may_come_in_any_form_that_explain_takes(model: nn.Module, form: str) -> None:
    found = candidate_layers(model, forms()[form])
    assert found.chosen is not None
    assert found.chosen.name == "2"
    photo = "photo" in form or form == "pixels"
    assert found.chosen.layout.grid == ((28, 28) if photo else (8, 8))  # a photo is prepared: 224 x 224


def test_a_transform_and_a_loaded_model_decide_what_the_model_sees(model: nn.Module) -> None:
    def transform(photo: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(photo.resize((32, 32)))).movedim(-1, 0) / 255

    photo = Image.new("RGB", (50, 40), "red")
    by_argument = candidate_layers(model, photo, transform=transform)
    by_loading = candidate_layers(camtool.Loaded(model, transform), photo)
    assert [c.layout.grid for c in by_argument] == [c.layout.grid for c in by_loading] == [(8, 8), (8, 8), (4, 4)]


def test_no_image_is_told() -> None:
    with pytest.raises(ImageError, match="img holds no image"):
        candidate_layers(nn.Conv2d(3, 3, 3), [])


@pytest.mark.parametrize(
    ("reached", "chosen", "told"),
    [
        (True, True, ("yes", "chosen: good")),
        (False, False, ("no", "good")),
        (None, False, ("-", "good")),
    ],
)
def test_a_row_tells_all_there_is_to_say(reached: bool | None, chosen: bool, told: tuple[str, str]) -> None:
    candidate = Candidate(
        "a.b", "Conv2d", (1, 6, 8, 12), Layout("channels first", (8, 12)), (8.0, 8.5), reached, "good", chosen
    )
    row = dict(zip(HEADINGS, cells(candidate), strict=True))
    assert (row.pop("gradient"), row.pop("verdict")) == told
    assert row == {
        "layer": "a.b",
        "output": "6 x 8 x 12",
        "read as": "channels first, 8 x 12",
        "stride": "8 x 8.5",
    }


def test_printed_it_is_a_table_with_the_grid_above_and_the_verdicts_below(model: nn.Module) -> None:
    found = candidate_layers(model, torch.randn(1, 3, 64, 64))
    assert str(found) == repr(found)
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
    ]
    assert str(Candidates()) == "No layer can carry a map."


NAMED = "encoder.layers.encoder_layer_11"


def tokens(name: str, verdict: str, *, chosen: bool = False) -> Candidate:
    layout = Layout("tokens", (14, 14), 1)
    return Candidate(name, "Linear", (1, 197, 3072), layout, (16.0, 16.0), None, verdict, chosen)


def found_in_a_transformer() -> Candidates:
    verdicts = ["no gradient reaches it", "a projection of norm", "no gradient reaches it"]
    others = [tokens(f"{NAMED}.self_attention.{'q' * n}", verdict) for n, verdict in enumerate(verdicts)]
    return Candidates([tokens(f"{NAMED}.ln_1", "the deepest", chosen=True), *others])


@pytest.mark.parametrize("width", [52, 60, 80, 120])
def test_the_table_fits_any_width_and_breaks_no_word(width: int) -> None:
    found = found_in_a_transformer()
    lines = [line for line, _ in list_candidates(found, width)]
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {each.name for each in found} | {"3072", "projection"} <= words
    assert lines[0].startswith("14 x 14 grid, stride 16, tokens (1 prefix token)"[:width])


def test_verdicts_are_told_once_and_referred_to_by_letters() -> None:
    lines = str(found_in_a_transformer()).splitlines()
    assert [line[:2] for line in lines[1:5]] == ["> ", "a ", "b ", "a "]
    assert lines[-3:] == [">  chosen: the deepest", "a  no gradient reaches it", "b  a projection of norm"]


def test_without_a_width_a_candidate_is_one_line_with_all_there_is_to_tell() -> None:
    found = found_in_a_transformer()
    heading, *lines = (line for line, _ in list_candidates(found))
    assert heading.split() == " ".join(HEADINGS).split()
    for line, candidate in zip(lines, found, strict=True):
        assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [*cells(candidate)]


def test_a_notebook_shows_it_as_a_table_of_its_own() -> None:
    model = nn.Sequential()
    model.add_module("<b>", nn.Conv2d(3, 4, 8, stride=8))
    model.add_module("pool", nn.AdaptiveAvgPool2d(1))
    html = candidate_layers(model.append(nn.Flatten()).append(nn.Linear(4, 3)), torch.randn(1, 3, 64, 64))._repr_html_()
    assert html.startswith("<table>")
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count('<tr style="font-weight: bold">') == 1
    assert html.count("<td") == html.count('<td style="text-align: left') > 0
