"""The command ``camtool diff``: pairs of models and of weights, exit codes, and what is printed and written."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
from PIL import Image
from safetensors.torch import save_file

import camtool
from camtool.cli import app
from camtool.cli.exit_codes import Terminated
from camtool.cli.progress.run_progress import FileProgress
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.demo.shapes import LABELS
from tests.cli.test_file_progress import advance
from tests.cli.test_progress import Clock

FAST = ("--method", "gradcam")


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        label = ("arrow", "cross")[number % 2]
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_scene(UNSEEN + number, classes=[label]).image).save(f"photos/{label}/{number}.png")
    state = camtool.load("demo").model.state_dict()
    save_file(state, "old.safetensors")
    # The two classes change places, so all answers change.
    order = [*LABELS]
    order[LABELS.index("arrow")], order[LABELS.index("cross")] = "cross", "arrow"
    rows = [LABELS.index(label) for label in order]
    save_file({**state, **{name: state[name][rows] for name in ("head.weight", "head.bias")}}, "new.safetensors")

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["camtool", "diff", *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


def test_two_files_of_weights_are_compared(run_command, tmp_path):
    args = ("old.safetensors", "new.safetensors", "photos", "--model", "demo", *FAST, "--truth", "imagefolder")
    finished = run_command(*args, "--fail-on", "moved")
    assert finished.code == 0
    lines = finished.out.splitlines()
    assert lines[0] == "No finding at q ≤ 0.02, which does not mean that the models look at the same."
    assert lines[1].startswith("images: 4; other answers: 4; heat that moved: ")
    content = json.loads((tmp_path / "diff/diff.json").read_text())
    assert content["names"] == ["old.safetensors", "new.safetensors"]
    assert {*content["images"][0]["answers"]} == {"arrow", "cross"}
    assert content["command"].startswith("camtool diff old.safetensors new.safetensors photos --model demo")
    assert "</html>" in (tmp_path / "diff/index.html").read_text(encoding="utf-8")
    assert run_command(*args, "--fail-on", "moved,answers").code == 1


def test_a_name_and_weights_of_the_same_values_have_the_same_maps(run_command):
    finished = run_command(
        "demo", "old.safetensors", "photos/arrow", "--model", "demo", *FAST, "--json", "--fail-on", "answers"
    )
    assert finished.code == 0
    content = json.loads(finished.out)
    assert (content["moved"], content["correlation"], content["other_answers"]) == (0, pytest.approx(1), 0)
    assert content["accuracy"] is None
    assert finished.err == ""


def test_options_reach_the_comparison(run_command, monkeypatch):
    asked, module = {}, import_module("camtool.evaluation.diff")
    compare = module.diff
    monkeypatch.setattr(module, "diff", lambda *args, **kwargs: asked.update(kwargs) or compare(*args))
    assert run_command("demo", "demo", "photos", "--recursive", "--controls", "5", "--pictures", "1").code == 0
    assert (asked["controls"], asked["pictures"]) == (5, 1)


def test_photos_that_cannot_be_read_are_told(run_command, tmp_path):
    (tmp_path / "photos/arrow/broken.png").write_bytes(b"no picture")
    finished = run_command("demo", "demo", "photos/arrow", *FAST)
    assert finished.code == 1
    assert finished.err == "1 photo could not be read, see diff/diff.md.\n"
    assert "broken.png" in (tmp_path / "diff/diff.md").read_text()


def test_a_machine_under_load_adds_nothing_to_standard_error(capsys):
    """Else the tests here, which compare all of it, would fail now and then."""
    clock = Clock()
    with FileProgress("4 photos", is_quiet=False, clock=clock):
        advance(clock, 60)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_comparison_that_is_stopped_says_how_it_goes_on(run_command, monkeypatch, stop, code):
    def interrupt(*_):
        raise stop

    monkeypatch.setattr("camtool.evaluation.diff.pairs.PairedImages.record_batch", interrupt)
    finished = run_command("demo", "demo", "photos/arrow", *FAST)
    assert (finished.code, finished.out) == (code, "")
    assert finished.err == "Stopped; the same command goes on from here.\n"


def test_the_help_breaks_no_sentence(run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "It goes on where it stopped if it is called again with the same folder" in run_command("--help").out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("old.safetensors", "demo", "photos/arrow"),
            "OLD old.safetensors is a file of weights; name its architecture",
        ),
        (("demo", "demo-chaet", "photos/arrow"), "Did you mean 'demo-cheat'"),
        (("demo", "demo", "photos/arrow", "--fail-on", "move"), "--fail-on must be one of 'moved', 'answers'"),
        (("demo", "demo", "photos", "--truth", "none.csv"), "--truth none.csv: there is no such file"),
        (("demo", "demo", "https://x.org/photos"), "URLs are not read"),
    ],
)
def test_wrong_arguments_are_named(run_command, args, message):
    finished = run_command(*args)
    assert finished.code == 2
    assert message in " ".join(finished.err.split())
