"""Options in a YAML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from camtool.cli.options.dataclasses_to_typer import read_config
from camtool.errors import CamtoolError
from tests.cli.test_commands import PREPARE_SMALL, SMALL, assert_refused, list_files, read_lines
from tests.helpers.tiny_models import TINY


def test_the_file_means_what_the_options_mean(camtool_, photos) -> None:
    Path("run.yaml").write_text(
        f"paths: [photos]\nmodel: {TINY}\nmethod: [gradcam, rise]\noption: {{samples: 4}}\nrecursive: true\n"
        "save: [overlay, raw]\nenlarge: false\ntarget: [2, bee]\nbatch_size: 2\nmax-side: 20\nout: by-file\nlayer:\n"
    )
    assert camtool_("--config", "run.yaml").code == 0
    options = [
        "photos",
        "--model",
        TINY,
        "--method",
        "gradcam,rise",
        "--option",
        "samples=4",
        "-r",
        "--save",
        "overlay,raw",
    ]
    options += ["--no-enlarge", "--target", "2", "--target", "bee", "--batch-size", "2", "--max-side", "20"]
    assert camtool_(*options, "--out", "by-options").code == 0
    assert read_lines("by-file") == read_lines("by-options") != []
    for name in list_files("by-options"):
        assert Path("by-file", name).read_bytes() == Path("by-options", name).read_bytes()


def test_the_command_line_counts_more(camtool_, photos) -> None:
    Path("run.yaml").write_text(f"paths: nowhere\nmodel: {TINY}\nmethod: rise\nenlarge: true\ntarget: 1\n")
    assert camtool_("run", "photos/a.png", "--config", "run.yaml", "--method", "gradcam", "--target", "3").code == 0
    assert [(line["method"], line["index"]) for line in read_lines()] == [("gradcam", 3)]


@pytest.mark.parametrize(
    "lines", ["size: 16\nmean: [127.5]\nstd: 63.75\nchannels: gray", f"transform: {PREPARE_SMALL}"]
)
def test_the_preprocessing_may_stand_in_the_file(camtool_, photos, lines) -> None:
    Path("run.yaml").write_text(f"model: {SMALL}\n{lines}\n")
    assert camtool_("photos/a.png", "--config", "run.yaml").code == 0
    assert "assumed" not in str(read_lines()[0]["warnings"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: demo", ["no option 'modle'", "Did you mean 'model'"]),
        ("model: demo\nmodel: resnet50", ["'model' stands twice"]),
        ("- model", ["holds a list", "model: demo"]),
        ("model: [", ["cannot be read"]),
        (
            "model: !!python/object/apply:os.system ['touch ran']",
            ["could not determine a constructor"],
        ),
        ("recursive: 3", ["recursive is true or false, got 3"]),
        ("target: no", ["target has the value False", "in quotes"]),
        ("model: {a: b}", ["model takes a value or a list of values, got dict"]),
        ("model: &a [*a]", ["aliases of YAML (*name) are not read"]),
        ("[" * 5000, ["cannot be read", "nested in more than 50 levels"]),
        ("config: other.yaml", ["no option 'config'"]),
        ("mean: 0.5", ["--mean is given alone"]),
        ("\x1b[31m: 1", ["cannot be read"]),
    ],
)
def test_an_invalid_file_is_refused(camtool_, photos, text, words) -> None:
    Path("run.yaml").write_text(text)
    assert_refused(camtool_("photos", "--config", "run.yaml", *(["--model", TINY] * ("model" not in text))), *words)
    assert not Path("ran").exists()


def test_a_missing_file_and_a_value_of_another_type_are_refused(camtool_, photos) -> None:
    assert_refused(camtool_("photos", "--config", "none.yaml"), "none.yaml", "No such file")
    Path("run.yaml").write_text("batch-size: many")
    result = camtool_("photos", "--config", "run.yaml")
    assert (result.code, "--batch-size" in result.err) == (2, True)


def test_aliases_that_explode_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(CamtoolError, match=r"aliases of YAML \(\*name\) are not read"):
        read_config(tmp_path / "a.yaml", ["model"])
