"""Command line: arguments, output, files and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from torch import nn
from torchvision.models import vision_transformer

import camtool
from camtool.cli import app, terminal
from camtool.cli.options.dataclasses_to_typer import takes_options
from camtool.methods import WRAPPERS
from tests.helpers.photos import save, unseen
from tests.helpers.tiny_models import LABELS, SLEEPING, TINY, Net, prepare, tiny
from tests.helpers.warm_processes import IS_POSSIBLE, ForkedCommand
from tests.targets.test_detection_targets import TWO as SQUARES

posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals of POSIX")


# ------------------------------------------------------------------------------------------------------- helpers


@dataclass
class Result:
    code: int
    out: str
    err: str  # without notes
    notes: list[str] = field(default_factory=list, compare=False)


Command = Callable[..., Result]


def drop_progress(err: str) -> str:
    """Return standard error of a process without the lines of progress, which a machine under load adds."""
    return "".join(
        line for line in err.splitlines(keepends=True) if not re.match(r".* \.\.\. |Explaining: |About ", line)
    )


def split_notes(err: str) -> tuple[str, list[str]]:
    """Return standard error without its notes, and the notes."""
    lines = err.splitlines(keepends=True)
    notes = [line.removeprefix("Note: ").rstrip() for line in lines if line.startswith("Note: ")]
    return "".join(line for line in lines if not line.startswith("Note: ")), notes


@pytest.fixture
def camtool_(monkeypatch, capsys, tmp_path) -> Command:
    """Run the command in this process, in an empty folder: ``camtool_("photos", "--json")``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["camtool", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            app.main()
        code = end.value.code
        result = capsys.readouterr()
        err, notes = split_notes(result.err)
        return Result(code if isinstance(code, int) else -1, result.out, err, notes)

    return command


@pytest.fixture
def on_screen(camtool_, monkeypatch) -> Callable[[int], Command]:
    """Run the command on a terminal with a number of columns; colors are removed from its output."""

    def at(width: int) -> Command:
        def command(*args: object) -> Result:
            monkeypatch.setattr(terminal, "out", Console(highlight=False, force_terminal=True, width=width))
            result = camtool_(*args)
            return Result(result.code, re.sub(r"\x1b\[[\d;]*m", "", result.out), result.err)

        return command

    return at


@pytest.fixture
def explained(camtool_) -> Command:
    """Run the command with the tiny model, on ``photos`` unless paths are given first."""

    def command(*args: object) -> Result:
        paths = () if args and not str(args[0]).startswith("-") else ("photos",)
        return camtool_(*paths, *args, "--model", TINY)

    return command


def start_process(*args: object, is_fresh: bool = not IS_POSSIBLE, **options: Any) -> subprocess.Popen[str]:
    """Start the real command in a process of its own: a fork of a warm one, unless what a start does is tested."""
    places = [
        Path(__file__).parents[2],
        Path(camtool.__file__).parents[1],
    ]  # the camtool under test, in any working directory
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    options = {"env": environment, "text": True, **streams, **options}
    if not is_fresh:
        return ForkedCommand([*map(str, args)], **options)
    if os.name == "posix":  # a process that a shell starts in the background ignores Ctrl-C
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen([sys.executable, "-m", "camtool", *map(str, args)], **options)


def write_photo(path: Path, level: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(path.name)).integers(0, 200, (20, 28, 3), dtype=np.uint8)
    Image.fromarray(noise if level is None else np.full_like(noise, level)).save(path)
    return path


def open_image(path: str | Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


@pytest.fixture
def photos(tmp_path) -> Path:
    for name in ("a.png", "b.jpg", "sub/c.png"):
        write_photo(tmp_path / "photos" / name)
    return tmp_path / "photos"


def read_lines(out: str | Path = "out") -> list[dict[str, Any]]:
    text = (Path(out) / "explanations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def list_files(out: str | Path = "out") -> list[str]:
    """List the images and arrays below a folder, by their paths inside it."""
    other = (".json", ".jsonl", ".html")
    found = [path for path in Path(out).rglob("*") if path.is_file() and path.suffix not in other]
    return sorted(path.relative_to(out).as_posix() for path in found)


def assert_refused(result: Result, *words: str) -> None:
    """Check that the exit code is 2, and that stderr is one line with these words."""
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1
    assert [word for word in words if word not in result.err] == []


# ------------------------------------------------------------------------------------ photos, methods and targets


@pytest.mark.parametrize(
    ("paths", "stems"),
    [
        (["photos/a.png"], {"a"}),
        (["photos/a.png", "photos/sub/c.png"], {"a", "c"}),
        (["photos"], {"a", "b"}),
        (["photos", "--recursive"], {"a", "b", "sub/c"}),
        (["-r", "photos"], {"a", "b", "sub/c"}),
        (["photos/*.png"], {"a"}),
        (["photos/**/*.png"], {"a", "sub/c"}),
        (["photos", "photos/sub"], {"photos/a", "photos/b", "sub/c"}),
    ],
)
def test_the_output_mirrors_files_folders_and_patterns(camtool_, photos, paths, stems):
    assert camtool_(*paths, "--model", TINY).code == 0
    assert {file.partition(".")[0] for file in list_files()} == stems


def test_run_is_the_default_command(camtool_, photos):
    assert camtool_("run", "photos", "--model", TINY, "--out", "one").code == 0
    assert camtool_("--quiet", "photos", "--model", TINY, "--out", "two").code == 0
    assert list_files("one") == list_files("two") != []


def test_run_explains_a_folder_with_the_name_of_a_command(camtool_, tmp_path):
    write_photo(tmp_path / "methods" / "a.png")
    assert camtool_("run", "methods", "--model", TINY).code == 0
    assert len(list_files()) == 1


def test_max_side_limits_the_size_of_the_images(explained, photos):
    Image.effect_noise((400, 300), 60).convert("RGB").save(photos / "large.jpg")
    assert explained("--max-side", "200").code == 0
    (large,) = [name for name in list_files() if name.startswith("large")]
    assert open_image(Path("out", large)).size == (200, 150)


def test_each_photo_class_and_method_has_a_line_whose_files_exist(explained, photos):
    asked = ("--method", "gradcam,layercam", "--target", "top2", "--save", "overlay,heatmap,mask,raw", "-r")
    assert explained(*asked, "--no-enlarge").code == 0
    found = read_lines()
    assert len(found) == len({(line["image"], line["index"], line["method"]) for line in found}) == 3 * 2 * 2
    assert sorted(file for line in found for file in line["files"].values()) == list_files()
    assert {tuple(line["files"]) for line in found} == {("overlay", "heatmap", "mask", "raw")}
    for name in list_files():
        path = Path("out", name)
        assert np.load(path).ndim == 2 if path.suffix == ".npy" else open_image(path).size == (28, 20)


@pytest.mark.parametrize(
    ("options", "methods"),
    [
        ([], ["gradcam"]),
        (["--method", "hirescam"], ["hirescam"]),
        (["--method", "gradcam,layercam"], ["gradcam", "layercam"]),
        (["--method", "gradcam++", "--method", "layercam, gradcam++"], ["gradcam++", "layercam"]),
        (
            ["--method", "gradcam++,GradCAMPlusPlus", "--method", "Grad-CAM++,TTA:Grad-CAM"],
            ["gradcam++", "tta:gradcam"],
        ),
        (
            ["--method", "cam,eigencam,ablationcam,rise", "--option", "samples=4"],
            ["cam", "eigencam", "ablationcam", "rise"],
        ),
    ],
)
def test_several_methods_are_given_by_commas_or_by_repetition(explained, photos, options, methods):
    assert explained("photos/a.png", *options).code == 0
    assert [line["method"] for line in read_lines()] == methods
    assert len(list_files()) == len(methods)


@pytest.mark.parametrize(
    ("targets", "indices"),
    [
        (["2"], [2]),
        (["cat"], [2]),
        (["CAT", "0"], [2, 0]),
        (["top3"], "ranked"),
        (["top99"], "ranked"),
    ],
)
def test_targets_are_ranks_indices_or_names(explained, photos, targets, indices):
    assert explained("photos/a.png", *[word for each in targets for word in ("--target", each)]).code == 0
    found = [line["index"] for line in read_lines()]
    if indices == "ranked":
        ranked = tiny().model(prepare(open_image("photos/a.png"))[None])[0].argsort(descending=True).tolist()
        assert found == ranked[: int(targets[0][3:])]
    else:
        assert found == indices
    assert [line["label"] for line in read_lines()] == [LABELS[index] for index in found]


def test_targets_are_groups_of_classes(explained, photos):
    wanted = ("group:0,cat", "cat vs 0", "within:0,1")
    assert explained("photos/a.png", *[word for each in wanted for word in ("--target", each)]).code == 0
    group, contrast, within = read_lines()
    assert (group["label"], group["index"]) == (f"{LABELS[0]} or cat", None)
    assert (contrast["label"], contrast["index"]) == (f"cat rather than {LABELS[0]}", 2)
    assert within["label"] in (f"{LABELS[0]} rather than {LABELS[1]}", f"{LABELS[1]} rather than {LABELS[0]}")
    assert_refused(explained("photos/a.png", "--target", "group:catt", "--out", "bad"), "Did you mean 'cat'")


def test_all_detections_above_a_confidence_and_the_surest_ones(camtool_, photos):
    pixels = (SQUARES.permute(1, 2, 0) * 255).byte().numpy()
    Image.fromarray(pixels).save("photos/squares.png")
    detector = "tests.targets.test_detection_targets:SquareDetector"
    for number, (target, confidences) in enumerate(
        [("detections", [0.5, 0.3, 0.2]), ("detections:0.25", [0.5, 0.3]), ("top3", [0.5, 0.3, 0.2]), ("top1", [0.5])]
    ):
        out = f"out{number}"
        assert camtool_("photos/squares.png", "--model", detector, "--target", target, "--out", out).code == 0
        lines = read_lines(Path(out))
        assert [line["probability"] for line in lines] == pytest.approx(confidences, abs=5e-3)
        assert [line["index"] for line in lines] == [1, 2, 2][: len(confidences)]
    result = camtool_("photos/squares.png", "--model", detector, "--target", "detections:2", "--out", "bad")
    assert result.code == 2
    assert "--target detections:2: the confidence must be a number from 0 to 1" in " ".join(result.err.split())


def test_a_photo_in_which_a_detector_finds_nothing_is_no_failure(camtool_, photos):
    Image.new("RGB", (96, 96)).save("photos/black.png")
    result = camtool_("photos/black.png", "--model", "tests.targets.test_detection_targets:SquareDetector", "--verbose")
    assert result.code == 0
    assert "black.png: 96x96 nothing found" in result.out
    (line,) = read_lines()
    assert Path("out", line["files"]["overlay"]).is_file()


def test_layer_can_be_repeated(explained, photos):
    assert explained("photos/a.png", "--layer", "first").code == 0
    assert [line["layer"] for line in read_lines()] == ["first"]
    assert explained("photos/a.png", "--layer", "first", "--layer", "second", "--overwrite").code == 0
    assert [line["layer"] for line in read_lines()] == ["first + second"]


@pytest.mark.parametrize(("suffix", "kind"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP")])
def test_images_are_written_in_the_given_format(explained, photos, suffix, kind):
    assert explained("photos/a.png", "--format", suffix, "--save", "overlay, mask,raw").code == 0
    pictures = [Path("out", name) for name in list_files() if not name.endswith(".npy")]
    assert {(path.suffix, open_image(path).format) for path in pictures} == {(f".{suffix}", kind)}
    assert len(pictures) == 2


def test_alpha_and_colormap_change_the_colors(explained, photos):
    def draw(*options: object) -> np.ndarray:
        assert explained("photos/a.png", "--no-enlarge", "--overwrite", *options).code == 0
        return np.asarray(open_image(Path("out", list_files()[0]))).astype(int)

    given = np.asarray(open_image("photos/a.png")).astype(int)
    assert abs(draw("--alpha", 0) - given).max() <= 1
    turbo, bone = draw("--alpha", 1), draw("--alpha", 1, "--colormap", "bone")
    assert abs(turbo - bone).max() > 50
    assert abs(turbo - given).max() > 50


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_come_from_a_file(explained, photos, suffix, tmp_path):
    state = Net().state_dict()
    state["head.bias"] = torch.tensor([0.0, 0, 0, 9])
    path = tmp_path / f"weights.{suffix}"
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    assert explained("--weights", path).code == 0
    assert {line["label"] for line in read_lines()} == {"dog"}


def test_a_prefix_in_weights_is_told_for_every_name_of_a_file(explained, photos):
    torch.save({f"module.{name}": value for name, value in Net().state_dict().items()}, "it's.pt")
    result = explained("photos/a.png", "--weights", "it's.pt")
    assert (result.code, result.notes[1:]) == (
        0,
        ["""weights "it's.pt": the prefix 'module.' of the names is left out."""],
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.txt", "Ameise\nBiene\nKätzchen\nHund\n"),
        ("names.txt", "\ufeffAmeise\r\nBiene\r\nKätzchen\r\nHund"),
        ("names.txt", "Ameise\nBiene\nKätzchen\nHund\n\n\n"),
        ("names.txt", "{0: 'Ameise',\n 1: 'Biene',\n 2: 'Kätzchen',\n 3: 'Hund'}\n"),
        ("names.txt", "{0: ('n1', 'Ameise'), 1: ('n2', 'Biene'), 2: ('n3', 'Kätzchen'), 3: ('n4', 'Hund')}"),
        ("names.json", '["Ameise", "Biene", "Kätzchen", "Hund"]'),
        ("names.json", '{"2": "Kätzchen", "0": "Ameise", "1": "Biene", "3": "Hund"}'),
        ("names.json", '{"Kätzchen": 2, "Ameise": 0, "Biene": 1, "Hund": 3}'),
        ("names.json", '{"0": ["n1", "Ameise"], "1": ["n2", "Biene"], "2": ["n3", "Kätzchen"], "3": ["n4", "Hund"]}'),
    ],
    ids=[
        "lines",
        "byte order mark",
        "blank lines",
        "Python",
        "Python's Keras",
        "json",
        "by index",
        "class_to_idx",
        "Keras",
    ],
)
def test_labels_come_from_a_file(explained, photos, name, content):
    Path(name).write_text(content, encoding="utf-8", newline="")
    assert explained("photos/a.png", "--labels", name, "--target", "kätzchen", "--target", "0").code == 0
    assert [line["label"] for line in read_lines()] == ["Kätzchen", "Ameise"]


def test_labels_may_be_given_by_name(explained, photos):
    assert explained("photos/a.png", "--labels", "ant,bee, kitten,dog", "--target", "kitten").code == 0
    assert [line["label"] for line in read_lines()] == ["kitten"]


def test_results_inside_the_input_folder_are_not_explained_by_the_next_run(explained, photos):
    for _ in range(3):
        assert explained("photos", "-r", "--out", "photos/results").code == 0
    assert len(read_lines("photos/results")) == len(list_files("photos/results")) == 3


# --------------------------------------------------------------------------------------------- the user's own model


class Small(nn.Module):
    """A model of gray images of 16 x 16 alone, as many users have one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(6 * 16 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu().flatten(1))


def prepare_small(image: Image.Image) -> torch.Tensor:
    return (torch.from_numpy(np.asarray(image.convert("L").resize((16, 16))).copy())[None] / 255 - 0.5) / 0.25


SMALL, PREPARE_SMALL = f"{__name__}:Small", f"{__name__}:prepare_small"
STATED = ("--size", "16", "--mean", "0.5", "--std", "0.25", "--channels", "gray")


def test_the_preprocessing_of_a_users_model_is_stated_by_numbers_or_by_a_function(camtool_, photos):
    Image.effect_noise((16, 16), 60).save("square.png")
    assert camtool_("square.png", "--model", SMALL, *STATED, "--out", "numbers").code == 0
    assert camtool_("square.png", "--model", SMALL, "--transform", PREPARE_SMALL, "--out", "function").code == 0
    (numbers,), (function,) = read_lines("numbers"), read_lines("function")
    assert numbers["warnings"] == function["warnings"] == []
    assert numbers["score"] == pytest.approx(function["score"], abs=1e-5)
    by_bytes = ("--size", "16x16", "--mean", "127.5", "--std", "63.75", "--channels", "gray")
    assert camtool_("square.png", "--model", SMALL, *by_bytes, "--out", "bytes").code == 0
    assert read_lines("bytes")[0]["score"] == pytest.approx(function["score"], abs=1e-5)


def test_a_size_alone_warns_that_the_normalization_was_assumed(camtool_, photos):
    assert camtool_("photos/a.png", "--model", SMALL, "--size", "16", "--channels", "gray").code == 0
    for fit in ("stretch", "pad"):
        result = camtool_("photos/a.png", "--model", SMALL, *STATED, "--fit", fit, "--out", fit)
        assert result.code == 0, result.err
    assert any("No mean and std" in warning for warning in read_lines()[0]["warnings"])


def test_size_and_channels_that_are_not_stated_are_read_from_the_model(camtool_, photos):
    assert camtool_("photos/a.png", "--model", SMALL, "--mean", "0.5", "--std", "0.25").code == 0
    assert any("so 16 x 16 was assumed" in warning for warning in read_lines()[0]["warnings"])


def test_the_warning_of_an_assumed_preprocessing_names_options_that_exist(camtool_, photos):
    assert camtool_("photos/a.png", "--model", f"{__name__}:Net").code == 0
    (warning,) = [each for each in read_lines()[0]["warnings"] if "were assumed" in each]
    named = re.findall(r"--\w+", warning)
    assert "--transform" in named
    shown = camtool_("run", "--help-all").out
    assert [option for option in named if option not in shown] == []


@pytest.mark.parametrize("command", ["run", "evaluate", "features", "export"])
def test_all_commands_that_load_a_model_take_the_preprocessing(on_screen, command):
    shown = on_screen(200)(command, "--help-all").out
    assert [option for option in ("--transform", "--size", "--fit", "--mean", "--std") if option not in shown] == []
    assert re.search(r"--channels +<rgb\|bgr\|gray>", shown)  # and never a number of channels
    assert re.search(r"whose code is\s+then run", re.sub(r"[│\s]+", " ", shown))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--transform", PREPARE_SMALL, "--mean", "0.5", "--size", "9"],
            ["--transform is the whole", "--size and --mean"],
        ),
        (["--mean", "0.5"], ["--mean is given alone"]),
        (["--std", "0.5"], ["--std is given alone"]),
        (["--mean", "a", "--std", "1"], ["--mean 'a' is not one number or three", "0.485,0.456,0.406"]),
        (["--mean", "1,2", "--std", "1"], ["--mean '1,2' is not"]),
        (["--mean", "1,2,3", "--std", "1", "--channels", "gray"], ["--mean '1,2,3' is not one number for gray"]),
        (["--mean", "nan", "--std", "1"], ["mean must be a finite number"]),
        (["--mean", "0", "--std", "0"], ["std must be a finite number above 0"]),
        (["--mean", "123.7", "--std", "0.2"], ["different scales"]),
        (["--size", "16xx"], ["--size '16xx'"]),
        (["--transform", "tests.nowhere:f"], ["transform 'tests.nowhere:f'", "no module"]),
        (["--size", "16", "--channels", "rgb"], ["makes inputs of 3 channels", "takes 1", "--channels"]),
        (["--size", "20", "--channels", "gray"], ["1 x 20 x 20", "on which the model fails", "--size"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("-") else "",
)
def test_a_preprocessing_that_is_impossible_or_does_not_fit_is_refused(camtool_, photos, options, words):
    assert_refused(camtool_("photos", "--model", SMALL, *options), *words)


def test_a_file_beside_the_weights_is_read_and_named(camtool_, photos):
    Path("mine").mkdir()
    save_file(Net().state_dict(), "mine/model.safetensors")
    settings = {"input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
    Path("mine/config.json").write_text(json.dumps({"pretrained_cfg": settings}))
    run = ("photos/a.png", "--model", f"{__name__}:Net", "--weights", "mine/model.safetensors")
    result = camtool_(*run)
    assert (result.code, result.notes[-1]) == (0, f"Preprocessing is that of {Path('mine', 'config.json')}.")
    assert "assumed" not in " ".join(read_lines()[0]["warnings"])
    stated = camtool_(*run, "--size", "16", "--mean", "0.5", "--std", "0.25", "--overwrite")
    assert (stated.code, len(stated.notes)) == (0, 1)


def test_code_of_the_users_is_announced_unless_quiet(camtool_, photos):
    run = ("photos/a.png", "--model", SMALL, "--transform", PREPARE_SMALL)
    assert camtool_(*run).notes == [
        f"--transform {PREPARE_SMALL} runs the Python code of {__name__}.",
        f"--model {SMALL} runs the Python code of {__name__}.",
    ]
    assert camtool_(*run, "--quiet").notes == []
    assert camtool_("layers", TINY, "--size", "16").notes == [
        f"--model {TINY} runs the Python code of tests.helpers.tiny_models."
    ]
    assert camtool_("photos/a.png", "--model", "demo").notes == []


# ------------------------------------------------------------------------------------------- output


def test_a_run_ends_with_a_summary(explained, photos):
    result = explained("-r")
    assert result.err == ""
    assert re.search(r"^3 photos explained in [\d.]+ s \(\d+ ms each\), at layer second\.$", result.out, re.MULTILINE)
    assert "3 files and explanations.jsonl are in out\n" in result.out


def test_verbose_prints_an_unbroken_line_for_each_photo(explained, tmp_path):
    long = write_photo(tmp_path / ("deep" * 20) / "[red]a[/].png")
    result = explained(long, "--verbose", "--target", "top2", "--method", "gradcam,layercam")
    first, second = (line for line in read_lines() if line["method"] == "gradcam")
    labels = [f"{line['label']} {line['probability']:.1%}" for line in (first, second)]
    line = result.out.splitlines()[0]
    assert re.sub(r", [\d.]+ms$", "", line) == (f"image 1/1 {long}: 20x28 {labels[0]}, {labels[1]}, gradcam, layercam")


def test_quiet_prints_errors_only(explained, photos):
    assert explained("--quiet") == Result(0, "", "")
    (photos / "bad.png").write_bytes(b"")
    result = explained("-q")
    assert (result.code, result.out) == (1, "")
    assert "bad.png" in result.err


@pytest.mark.parametrize("options", [[], ["--verbose"], ["--quiet"]])
def test_json_is_the_only_output_on_stdout(explained, photos, options):
    bad = photos / "bad.png"
    bad.write_bytes(write_photo(photos / "whole.png").read_bytes()[:60])
    result = explained("--json", *options)
    summary = json.loads(result.out)
    assert result.code == 1
    assert summary["explained"] == read_lines()
    assert [Path(failure["image"]).name for failure in summary["failed"]] == ["bad.png"]
    assert "cut short" in summary["failed"][0]["reason"]
    assert (summary["out"], summary["interrupted"]) == ("out", False)


def test_unreadable_photos_are_listed_at_the_end(explained, photos):
    whole = (photos / "b.jpg").read_bytes()
    (photos / "a-cut.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "a-text.png").write_text("not an image")
    write_photo(photos / "a-bright.png", level=255)
    result = explained("--batch-size", 2)
    assert result.code == 1
    assert "2 photos explained" in result.out
    assert result.err.splitlines()[0] == "3 photos could not be explained:"
    listed = [re.search(r"a-(cut|text|bright)", line) for line in result.err.splitlines()[1:]]
    assert [match and match[1] for match in listed] == ["bright", "cut", "text"]
    assert [Path(line["image"]).name for line in read_lines()] == ["a.png", "b.jpg"]


@posix
def test_a_file_name_that_is_not_utf8_is_printed(explained, photos):
    odd = os.fsdecode(b"photos/caf\xe9.png")
    (photos / "a.png").rename(odd)
    result = explained(odd, "--json")
    assert result.code == 0
    assert json.loads(result.out)["explained"][0]["image"] == odd == read_lines()[0]["image"]
    assert r"caf\udce9.png" in explained(odd, "--verbose", "--overwrite").out


def test_all_methods_are_listed(camtool_):
    result = camtool_("methods")
    assert (result.code, result.err) == (0, "")
    heading, *listed = result.out.splitlines()
    assert heading.split("  ")[0] == "method"
    wrappers = [f"{name}:" for name in WRAPPERS]
    assert sorted(line.split()[0] for line in listed) == sorted([*camtool.METHODS, *wrappers])
    assert all(camtool.METHODS[name].cost in line for line in listed if (name := line.split()[0]) not in wrappers)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_of_methods_fits_the_terminal(on_screen, width):
    lines = on_screen(width)("methods").out.splitlines()
    assert max(map(len, lines)) <= width
    assert {*camtool.METHODS} <= {line.split(" ")[0] for line in lines}
    assert width < 80 or len(lines) <= 97
    assert lines[0] == "Begin with"
    assert lines[1].startswith("gradcam ")


def test_a_method_is_described_with_its_options_and_its_paper(on_screen):
    result = on_screen(80)("methods", "scorecam")
    assert max(map(len, result.out.splitlines())) <= 80
    texts = (
        "arXiv 1910.01279",
        "activations, forwards",
        "many passes",
        "max_channels=None",
        "w = softmax_k(f(",
    )
    assert [text for text in texts if text not in result.out] == []
    assert "tta:" in on_screen(80)("methods", "tta:rise").out
    assert_refused(on_screen(80)("methods", "scorecan"), "'scorecan' is unknown", "Did you mean 'scorecam'")


def test_options_reach_the_method(explained, photos):
    assert explained("--method", "rivalcam", "--option", "rivals=1", "--option", "temperature=2.5").code == 0
    result = explained("--method", "rivalcam", "--option", "rivals=0", "--overwrite")
    assert (result.code, "rivals must be a whole number" in result.err) == (2, True)


def strided() -> camtool.Loaded:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
    torch.manual_seed(0)
    nn.init.uniform_(net[0].weight)
    return camtool.Loaded(net.eval(), prepare, LABELS)


def test_the_placement_reaches_the_explainer(camtool_, photos):
    drawn, run = {}, ("photos/a.png", "--model", f"{__name__}:strided", "--target", "1", "--save", "heatmap")
    for placement in ("stretch", "centers"):
        assert camtool_(*run, "--placement", placement, "--method", "eigencam", "--out", placement).code == 0
        (drawn[placement],) = [path.read_bytes() for path in Path(placement).rglob("*.png")]
    assert drawn["stretch"] != drawn["centers"]
    assert camtool_(*run, "--placement", "center").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--option", "rivals"], "--option 'rivals' is not of the form NAME=VALUE"),
        (["--method", "rivalcam", "--option", "rivls=3"], "has no option 'rivls'; known options:"),
        (["--merge", "man"], "merge 'man' is unknown"),
        (["--option", "layer=2"], "--option 'layer=2' is not an option of a method; use --layer"),
    ],
)
def test_an_unknown_option_or_merge_raises_an_error(explained, photos, arguments, message):
    result = explained(*arguments)
    assert result.code == 2
    assert message in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("given", "ending"), [("torch_compile", "'auto'. Did you mean 'torch.compile'?"), ("none", "'openvino', 'auto'.")]
)
def test_a_wrong_choice_is_answered_with_similar_ones(explained, photos, given, ending):
    result = explained("--engine", given)
    words = " ".join(result.err.replace("\u2502", " ").split())
    assert result.code == 2
    assert f"Invalid value for '--engine': '{given}' is not one of 'eager', " in words
    assert ending in words
    assert ("Did you mean" in words) == ("Did you mean" in ending)


def test_the_chosen_layer_in_the_list_is_that_of_a_run(camtool_, photos):
    result = camtool_("layers", TINY, "--size", 32)
    assert (result.code, result.err) == (0, "")
    chosen = [line.split()[0] for line in result.out.splitlines() if "chosen:" in line]
    assert camtool_("photos/a.png", "--model", TINY).code == 0
    assert chosen == [line["layer"] for line in read_lines()]


def test_layers_are_listed_for_an_image_that_is_not_square(camtool_):
    result = camtool_("layers", "resnet18", "--size", "64x96")
    chosen = next(line for line in result.out.splitlines() if "chosen:" in line)
    assert chosen.split()[:6] == ["layer4", "512", "x", "2", "x", "3"]


@pytest.mark.parametrize("size", ["0", "64x", "64x0", "large", "123456"])
def test_an_invalid_size_is_refused(camtool_, size):
    assert_refused(camtool_("layers", "resnet18", "--size", size), f"--size '{size}'", "224x320")


@pytest.mark.parametrize(
    ("model", "lines", "width"),
    [
        ("vit_b_16", 27, 60),
        *(("resnet18", 28, 80), ("mobilenet_v2", 25, 60), ("mobilenet_v2", 25, 120)),
    ],
)
def test_the_list_of_layers_fits_the_terminal(on_screen, monkeypatch, model, lines, width):
    build = vision_transformer._vision_transformer
    narrow = {"num_heads": 4, "hidden_dim": 192, "mlp_dim": 1024}  # as many digits, and a tenth of the weights
    monkeypatch.setattr(vision_transformer, "_vision_transformer", lambda **options: build(**options | narrow))
    result = on_screen(width)("layers", model)
    assert max(map(len, result.out.splitlines())) <= width
    assert len(result.out.splitlines()) <= lines
    assert re.search(r"^> \S+ +\d+ x \d+", result.out, re.MULTILINE)


def test_shallow_layers_are_listed_on_demand(camtool_):
    short, long = (
        camtool_("layers", "squeezenet1_1", "--size", 64),
        camtool_("layers", "squeezenet1_1", "--size", 64, "--all"),
    )
    assert re.search(r"(\d+) shallower layers are listed with --all", short.err)
    assert "shallower" not in short.out + long.err
    names = [{line.split()[0] for line in result.out.splitlines() if line[0] != " "} for result in (short, long)]
    assert "features.0" in names[1] - names[0]


def test_help_and_version(camtool_):
    assert camtool_("--version") == Result(0, f"camtool {camtool.__version__}\n", "")
    assert camtool_("--help") == camtool_("-h")
    assert "layers" in camtool_("--help").out
    assert "--colormap" in camtool_("run", "--help").out == camtool_("run", "-h").out
    short, long = (set(re.findall(r"--[\w-]+", camtool_("run", option).out)) for option in ("--help", "--help-all"))
    assert long - short == {
        *(
            "--labels",
            "--truth",
            "--labels-csv",
            "--only-wrong",
            "--transform",
            "--size",
            "--fit",
            "--mean",
            "--std",
            "--channels",
        ),
        *("--bands", "--window", "--percentiles", "--slice", "--volume", "--axis", "--frame"),
    }
    assert "layers" in "".join([(result := camtool_()).out, result.err])


# The options of these names, of all commands that have any use for them.
ALIKE = {
    "--limit": "run cluster evaluate audit repair diff",
    "--weights": "run cluster video slide app mcp layers features kernels evaluate audit repair export",
    "--device": "run cluster video slide app mcp features kernels evaluate audit repair diff export",
    "--labels": "run cluster video slide features evaluate audit repair diff",
    "--out": "run cluster video slide features kernels evaluate audit repair diff demo",
    "--json": "run cluster report replay video slide methods layers features kernels evaluate audit repair diff export "
    "demo doctor",
    "--quiet": "run cluster report replay video slide features kernels evaluate audit repair diff export demo",
    "--engine": "run cluster video slide app audit",
    "--layer": "run cluster video slide features kernels evaluate export",
    "--method": "run cluster video slide evaluate audit diff export",
    "--overwrite": "run cluster evaluate audit diff export",
    "--truth": "run cluster evaluate audit repair diff",
    "--recursive": "run cluster evaluate audit repair diff",
    "-r": "run cluster evaluate audit repair diff",
}


def test_the_same_options_have_the_same_names_in_every_command():
    commands = typer.main.get_command(app.app).commands
    names = {command: {name for each in found.params for name in each.opts} for command, found in commands.items()}
    assert {option: " ".join(name for name in names if option in names[name]) for option in ALIKE} == ALIKE


def test_the_documentation_names_options_that_exist():
    text = (Path(__file__).parents[2] / "docs/command-line.md").read_text(encoding="utf-8")
    exist = {
        name
        for command in typer.main.get_command(app.app).commands.values()
        for each in command.params
        for name in (*each.opts, *each.secondary_opts)
    }
    named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert len(named) > 40
    assert named - exist == {"--help", "--install-completion", "--show-completion"}


def test_other_programs_can_read_what_commands_print(camtool_, photos):
    pytest.importorskip("matplotlib")
    layers = json.loads(camtool_("layers", "demo", "--json").out)
    assert sum(layer["chosen"] for layer in layers) == 1
    (method,) = json.loads(camtool_("methods", "gradcam", "--json").out)
    assert (method["name"], method["needs"]) == ("gradcam", ["gradients"])
    drawn = camtool_("kernels", "--model", "demo", "--json")
    assert json.loads(drawn.out) == {"files": [str(Path("figures", "kernels.png"))]}
    assert drawn.err == ""


@dataclass(frozen=True)
class Sizes:
    """Sizes.

    Attributes:
        width: Width, which is told
            in two lines.
    """

    width: Annotated[int, typer.Option(metavar="N")] = 1


@dataclass(frozen=True)
class Shape(Sizes):
    """Sizes and more."""

    depth: Annotated[int, typer.Option(help="Depth.")] = 1


def draw(*, name: Annotated[str, typer.Argument()], shape: Shape) -> None:
    """Draw it.

    Args:
        name: Name of it.
        shape: No option.
    """


def test_help_of_an_option_is_its_line_in_a_docstring_which_the_help_of_the_command_leaves_out():
    drawing = typer.Typer()
    drawing.command()(takes_options(draw))
    command = typer.main.get_command(drawing)
    helps = {parameter.name: parameter.help for parameter in command.params}
    assert {name: helps[name] for name in ("name", "width", "depth")} == {
        "name": "Name of it.",
        "width": "Width, which is told in two lines.",
        "depth": "Depth.",
    }
    assert command.help == "Draw it."


def test_every_option_of_every_command_has_help():
    def list_parameters(command):
        children = getattr(command, "commands", {}).values()
        return [*command.params, *(parameter for child in children for parameter in list_parameters(child))]

    parameters = list_parameters(typer.main.get_command(app.app))
    assert [parameter.name for parameter in parameters if not parameter.help] == []
    assert len(parameters) > 300


# ------------------------------------------------------------------------------- invalid requests


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], ["'nowhere'", "no such file or folder"]),
        (["empty"], ["'empty'", "no images found", "--recursive"]),
        (["photos/*.tiff"], ["no images found"]),
        (["--model", "mobilnet_v2"], ["'mobilnet_v2' is unknown", "Did you mean 'mobilenet_v2'"]),
        (["--model", "nope[/]"], ["'nope[/]' is unknown"]),
        (["--model", "nowhere_nets:make"], ["no module 'nowhere_nets'"]),
        (["--model", f"{__name__}:tinny"], ["no function 'tinny'", "Did you mean 'tiny'"]),
        (["--method", "grad-can"], ["'grad-can' is unknown", "Did you mean 'gradcam'"]),
        (["--method", ","], ["--method names no method", "gradcam"]),
        (["--colormap", "tubro"], ["'tubro'", "Did you mean 'turbo'"]),
        (["--save", "overlay,heetmap"], ["'heetmap' is unknown", "Did you mean 'heatmap'"]),
        (["--target", "catt"], ["'catt' is not among the 4 labels", "Did you mean 'cat'"]),
        (["--target", "4"], ["4 does not exist", "0 to 3"]),
        (["--layer", "secnd"], ["'secnd'", "Did you mean 'second'"]),
        (["--layer", "stage4"], ["'stage4'", "camtool layers MODEL"]),
        (["--weights", "none.pth"], ["'none.pth'", "no such file"]),
        (["--weights", "https://x.org/a.pth"], ["weights 'https://x.org/a.pth': URLs are not read; download"]),
        (["ftp://x.org/a.jpg?b=1"], ["path 'ftp://x.org/a.jpg?b=1': URLs are not read; download"]),
        (["--out", "https://x.org/out"], ["out 'https:/x.org/out' is a URL"]),
        (["--model", "https://x.org/a.pth"], ["model 'https://x.org/a.pth': URLs are not read"]),
        (["--model", "photos/a.png"], ["'photos/a.png' is unknown", "looks like a photo"]),
        (["mobilenet_v2"], ["'mobilenet_v2' is the name of a model, not a photo; give it as --model mobilenet_v2"]),
        (["features", "timm:x"], ["'timm:x' is the name of a model, not a photo"]),
        (["--weights", "photos/a.png"], ["a.png", "damaged"]),
        (["--labels", "none.txt"], ["labels: none.txt is no file", "--labels cat,dog"]),
        (["--labels", "half.json"], ["half.json", "cannot be read"]),
        (["--labels", "table.json"], ["table.json", "give a list of names"]),
        (["--labels", "latin.txt"], ["latin.txt", "cannot be read"]),
        (["--out", "photos/a.png"], ["a.png", "File exists"]),
    ],
    ids=lambda value: " ".join(value) if str(value[0]).startswith("-") else None,
)
def test_an_invalid_request_raises_an_error_of_one_line(camtool_, photos, args, words):
    Path("empty").mkdir()
    Path("half.json").write_text('["ant"')
    Path("table.json").write_text('{"7": "ant"}')
    Path("latin.txt").write_bytes(b"K\xe4fer")
    paths = [] if not args[0].startswith("-") else ["photos"]
    model = [] if "--model" in args else ["--model", TINY]
    assert_refused(camtool_(*paths, *args, *model), *words)


def test_an_error_is_wrapped_on_a_terminal_only(camtool_, monkeypatch):
    piped = camtool_("layers", "resnet1000").err
    monkeypatch.setattr(terminal, "err", Console(stderr=True, highlight=False, force_terminal=True, width=60))
    shown = re.sub(r"\x1b\[[\d;]*m", "", camtool_("layers", "resnet1000").err)
    assert max(map(len, shown.splitlines())) <= 60
    assert piped.count("\n") == 1
    assert shown.split() == piped.split()


@pytest.mark.parametrize(
    "args",
    [["--format", "gif"], ["--alpha", "2"], ["--batch-size", "0"], ["--device", "tpu"], ["--labels", "none.txt"]],
)
def test_an_invalid_value_of_an_option_is_refused(explained, photos, args):
    result = explained(*args)
    assert (result.code, result.out) == (2, "")
    assert args[0] in result.err
    assert "Traceback" not in result.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_device_raises_an_error(explained, photos):
    assert_refused(explained("--device", "cuda"), "--device cuda is not available on this machine", "cpu")


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--json"]])
def test_the_error_without_internet_names_the_remedy(camtool_, photos, monkeypatch, tmp_path, options):
    def urlopen(*args: object, **kwargs: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    result = camtool_("photos", "--model", "resnet50", *options)
    assert options == [] or result.err.startswith("Error:")  # else torch.hub prints that it downloads
    assert_refused(
        Result(result.code, result.out, result.err[result.err.index("Error:") :]),
        "'resnet50'",
        "--weights",
        "--model demo",
        "Name or service not known",
    )


def test_the_layers_of_a_video_model_are_listed(camtool_):
    result = camtool_("layers", "r3d_18", "--size", 64)
    assert result.code == 0
    assert "chosen" in result.out


@pytest.mark.parametrize("model", ["raft_small", "vit_b_32"])
def test_a_model_that_cannot_run_on_the_image_raises_an_error(camtool_, model):
    assert_refused(camtool_("layers", model, "--size", 64), model, "cannot run on one image of 64 x 64")


# ------------------------------------------------------------------------------------------------ processes


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["photos/a.png"], 0),
        (["photos", "-r"], 1),
        (["photos", "--method", "x"], 2),
    ],
    ids=["fine", "a bad photo", "a bad request"],
)
def test_the_exit_code_shows_success_failures_and_errors(photos, tmp_path, args, code):
    (photos / "sub" / "bad.png").write_bytes(b"")
    process = start_process(*args, "--model", TINY, cwd=tmp_path, is_fresh=code == 1)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in err) == (code, False)
    assert (bool(out), bool(split_notes(drop_progress(err))[0])) == (code != 2, code != 0)


def test_a_factory_is_found_in_the_working_directory(photos, tmp_path):
    (tmp_path / "mynets.py").write_text(f"from {__name__} import tiny as make\n")
    process = start_process("photos", "--model", "mynets:make", cwd=tmp_path)
    err, notes = split_notes(drop_progress(process.communicate(timeout=120)[1]))
    assert (err, notes, process.returncode) == ("", ["--model mynets:make runs the Python code of mynets."], 0)


@posix
def test_the_progress_bar_is_drawn_on_stderr_only(photos, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = start_process("photos", "--model", TINY, "--verbose", cwd=tmp_path, stderr=theirs, is_fresh=True)
        os.close(theirs)
        drawn = b""
        try:
            while chunk := terminal.read(4096):
                drawn += chunk
        except OSError:  # Linux raises this when the other end is closed
            pass
        out = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert b"Explaining" in drawn
    assert not re.search(r"[\x00-\x09\x0b-\x1f]|Explaining|Loading", out)


@posix
def test_ctrl_c_during_loading_exits_without_a_traceback(photos, tmp_path):
    process = start_process("photos", "--model", SLEEPING, cwd=tmp_path)
    assert process.stderr
    lines = (line for line in process.stderr if drop_progress(line))
    assert next(lines).startswith("Note: --model")
    assert next(lines) == "loading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, drop_progress(err), process.returncode) == ("", "", 130)


def test_the_bundled_model_explains_scenes(tmp_path):
    """The same test with a real model follows."""
    shapes = ["star", "drop"]
    paths = [save(unseen(number, [shape], size=160), tmp_path / f"{shape}.jpg") for number, shape in enumerate(shapes)]
    process = start_process(*paths, "--model", "demo", "--no-enlarge", "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, drop_progress(err)) == (0, "")
    found = json.loads(out)["explained"]
    assert [line["label"] for line in found] == shapes
    assert [line["files"]["overlay"] for line in found] == ["star.gradcam.8-star.png", "drop.gradcam.2-drop.png"]
    for line, path in zip(found, paths, strict=True):
        assert open_image(tmp_path / "out" / line["files"]["overlay"]).size == open_image(path).size


def test_a_real_model_explains_real_photos(shared, tmp_path):
    names = ["n01558993_robin.jpg", "n02165456_ladybug.jpg"]
    weights = shared / "models" / "mobilenet_v2-imagenet.safetensors"
    paths = [shared / "images" / name for name in names]
    process = start_process(*paths, "--model", "mobilenet_v2", "--weights", weights, "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, drop_progress(err)) == (0, "")
    found = json.loads(out)["explained"]
    assert [line["label"] for line in found] == ["robin", "ladybug"]
    assert [line["files"]["overlay"] for line in found] == [
        "n01558993_robin.gradcam.15-robin.png",
        "n02165456_ladybug.gradcam.301-ladybug.png",
    ]
    for line, path in zip(found, paths, strict=True):
        assert open_image(tmp_path / "out" / line["files"]["overlay"]).size == open_image(path).size
