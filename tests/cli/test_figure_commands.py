"""The commands ``camtool features`` and ``camtool kernels``."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from camtool.cli import app
from tests.figures.drawing_helpers import draw_scenes

matplotlib = pytest.importorskip("matplotlib")
backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(draw_scenes(1)[0]).save("photo.png")

    def run(*args: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["camtool", *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


def test_features_writes_one_figure_per_layer(run_command, tmp_path):
    said = run_command("features", "photo.png", "--model", "demo", "--layers", "stem.*.0,features.2", "--maps", "4")
    assert said.code == 0
    assert sorted(file.name for file in (tmp_path / "figures").glob("[!.]*")) == [
        "001-stem.0.0.png",
        "002-stem.1.0.png",
        "003-features.2.png",
    ]
    assert "3 figures drawn in figures" in said.out


def test_features_writes_one_page(run_command, tmp_path):
    said = run_command(
        *("features", "photo.png", "--model", "demo", "--one-page", "--output", "here", "--format", "pdf"),
        *("--order", "class", "--target", "star", "--layers", "stem.0,stem.1"),
    )
    assert said.code == 0
    assert [file.name for file in (tmp_path / "here").glob("[!.]*")] == ["features.pdf"]
    assert (tmp_path / "here" / "features.pdf").read_bytes().startswith(b"%PDF")


def test_kernels_writes_the_selected_layers(run_command, tmp_path):
    assert run_command("kernels", "--model", "demo", "--out", "k", "--format", "svg", "--filters", "4").code == 0
    assert (
        run_command("kernels", "--model", "demo", "--out", "k", "--layer", "stem.1.0", "--layer", "features.0.0").code
        == 0
    )
    written = {file.name for file in (tmp_path / "k").glob("[!.]*")}
    assert written == {"kernels.svg", "kernels-stem.1.0.png", "kernels-features.0.0.png"}


def test_kernels_of_names_that_are_alike_in_a_file_name_have_files_of_their_own(run_command, tmp_path):
    (tmp_path / "alike.py").write_text(
        "from torch import nn\n\n\ndef make():\n    net = nn.Sequential()\n"
        "    for name in ('a b', 'a_b', 'A_b'):\n        net.add_module(name, nn.Conv2d(3, 3, 3))\n    return net\n"
    )
    said = run_command("kernels", "--model", "alike:make", "--filters", "2", "--out", "k", "--layer", "*")
    assert said.code == 0, said.err
    assert {file.name for file in (tmp_path / "k").glob("[!.]*")} == {
        f"kernels-{n}.png" for n in ("a_b", "a_b-2", "A_b-3")
    }


def test_kernels_accepts_patterns_and_writes_nothing_if_a_name_is_unknown(run_command, tmp_path):
    options = ("kernels", "--model", "demo", "--filters", "2", "--out", "k")
    assert run_command(*options, "--layers", "stem.*,features.0.0").code == 0
    written = {file.name for file in (tmp_path / "k").glob("[!.]*")}
    assert written == {"kernels-stem.0.0.png", "kernels-stem.1.0.png", "kernels-features.0.0.png"}
    said = run_command(*options[:-1], "other", "--layer", "stem.0.0,head")
    assert said.code == 2
    assert "layer 'head' is a Linear, which has no filters" in said.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("width", "pixels"), [("single", 975), ("5.5", 1650)])
def test_figures_of_the_command_line_have_the_given_width(run_command, tmp_path, width, pixels):
    assert run_command("kernels", "--model", "demo", "--filters", "2", "--width", width).code == 0
    options = ("features", "photo.png", "--model", "demo", "--layers", "stem.0", "--one-page", "--width", width)
    assert run_command(*options).code == 0
    for file in (tmp_path / "figures").glob("[!.]*"):
        with Image.open(file) as image:
            assert image.width == pixels
    said = run_command("kernels", "--model", "demo", "--width", "singel")
    assert said.code == 2
    assert "Did you mean 'single'" in said.err


def test_command_line_reports_errors_in_one_sentence(run_command, tmp_path):
    said = run_command("features", "photo.png", "--model", "demo", "--layers", "stme")
    assert said.code == 2
    assert "no layer 'stme'. Did you mean 'stem'" in said.err
    assert run_command("kernels", "--model", "demo", "--layer", "head").code == 2
    assert not (tmp_path / "figures").exists()
