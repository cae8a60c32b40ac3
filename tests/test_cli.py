"""The command line: what people type, what they are told, what is written, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from photos import save, unseen
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

import camtool
from camtool import cli
from camtool.methods import WRAPPERS

LABELS = ["ant", "bee", "cat", "dog"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals are POSIX's")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Tanh())
        self.second = nn.Conv2d(6, 6, 3, 1, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.mean((1, 2, 3)) > 0.9).any():
            raise RuntimeError("too bright")
        return self.head(self.second(self.first(x)).mean((2, 3)))


class Slow(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        return super().forward(x)


def prepare(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture.resize((16, 16), Image.Resampling.BILINEAR)).copy()).movedim(2, 0) / 255


def tiny() -> camtool.Loaded:
    return camtool.Loaded(Net(), prepare, LABELS)


def slow() -> camtool.Loaded:
    return camtool.Loaded(Slow(), prepare, LABELS)


def sleeping() -> None:
    print("loading", flush=True)  # noqa: T201
    time.sleep(60)


TINY, SLOW, SLEEPING = (f"{__name__}:{factory.__name__}" for factory in (tiny, slow, sleeping))


# ------------------------------------------------------------------------------------------------------- helpers


@dataclass
class Said:
    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def camtool_(monkeypatch, capsys, tmp_path) -> Command:
    """The command, in this process and in an empty folder: ``camtool_("photos", "--json")``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*args: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["camtool", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        said = capsys.readouterr()
        return Said(code if isinstance(code, int) else -1, said.out, said.err)

    return command


@pytest.fixture
def on_screen(camtool_, monkeypatch) -> Callable[[int], Command]:
    """The command on a terminal of so many columns, whose output is read without its colors."""

    def at(width: int) -> Command:
        def command(*args: object) -> Said:
            monkeypatch.setattr(cli, "_out", Console(highlight=False, force_terminal=True, width=width))
            said = camtool_(*args)
            return Said(said.code, re.sub(r"\x1b\[[\d;]*m", "", said.out), said.err)

        return command

    return at


@pytest.fixture
def explained(camtool_) -> Command:
    """The command with the tiny model, on ``photos`` unless paths are given first."""

    def command(*args: object) -> Said:
        paths = () if args and not str(args[0]).startswith("-") else ("photos",)
        return camtool_(*paths, *args, "--model", TINY)

    return command


def subprocess_of(*args: object, **options: Any) -> subprocess.Popen[str]:
    places = [Path(__file__).parent, Path(camtool.__file__).parents[1]]  # the camtool under test, wherever we start
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    if os.name == "posix":  # started in the background, a shell would have us ignore Ctrl-C
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = [sys.executable, "-m", "camtool", *map(str, args)]
    return subprocess.Popen(command, env=environment, text=True, **{**streams, **options})  # type: ignore[call-overload]


def photo(path: Path, level: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(path.name)).integers(0, 200, (20, 28, 3), dtype=np.uint8)
    Image.fromarray(noise if level is None else np.full_like(noise, level)).save(path)
    return path


def opened(path: str | Path) -> Image.Image:
    with Image.open(path) as picture:
        picture.load()
    return picture


@pytest.fixture
def photos(tmp_path) -> Path:
    for name in ("a.png", "b.jpg", "sub/c.png"):
        photo(tmp_path / "photos" / name)
    return tmp_path / "photos"


def lines(out: str | Path = "out") -> list[dict[str, Any]]:
    text = (Path(out) / "explanations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def files(out: str | Path = "out") -> list[str]:
    """The pictures and arrays below a folder, by their paths inside it."""
    found = [path for path in Path(out).rglob("*") if path.is_file() and path.name != "explanations.jsonl"]
    return sorted(path.relative_to(out).as_posix() for path in found)


def assert_refused(said: Said, *words: str) -> None:
    """The request cannot be served: exit code 2, and one sentence on stderr with these words."""
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Error: ")
    assert said.err.count("\n") == 1
    assert [word for word in words if word not in said.err] == []


# -------------------------------------------------------------------------------------------- what is explained


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
def test_files_folders_and_patterns_are_mirrored_in_the_output(camtool_, photos, paths, stems):
    assert camtool_(*paths, "--model", TINY).code == 0
    assert {file.partition(".")[0] for file in files()} == stems


def test_run_is_what_is_meant_where_no_command_is_named(camtool_, photos):
    assert camtool_("run", "photos", "--model", TINY, "--out", "one").code == 0
    assert camtool_("--quiet", "photos", "--model", TINY, "--out", "two").code == 0
    assert files("one") == files("two") != []


def test_a_folder_that_is_called_like_a_command_is_explained_by_run(camtool_, tmp_path):
    photo(tmp_path / "methods" / "a.png")
    assert camtool_("run", "methods", "--model", TINY).code == 0
    assert len(files()) == 1


def test_there_is_a_line_for_each_photo_class_and_method_and_its_files_exist(explained, photos):
    asked = ("--method", "gradcam,layercam", "--target", "top2", "--save", "overlay,heatmap,mask,raw", "-r")
    assert explained(*asked, "--no-enlarge").code == 0
    found = lines()
    assert len(found) == len({(line["image"], line["index"], line["method"]) for line in found}) == 3 * 2 * 2
    assert sorted(file for line in found for file in line["files"].values()) == files()
    assert {tuple(line["files"]) for line in found} == {("overlay", "heatmap", "mask", "raw")}
    for name in files():
        path = Path("out", name)
        assert np.load(path).ndim == 2 if path.suffix == ".npy" else opened(path).size == (28, 20)


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
def test_several_methods_are_asked_for_by_commas_or_by_repeating(explained, photos, options, methods):
    assert explained("photos/a.png", *options).code == 0
    assert [line["method"] for line in lines()] == methods
    assert len(files()) == len(methods)


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
    found = [line["index"] for line in lines()]
    if indices == "ranked":
        ranked = tiny().model(prepare(opened("photos/a.png"))[None])[0].argsort(descending=True).tolist()
        assert found == ranked[: int(targets[0][3:])]
    else:
        assert found == indices
    assert [line["label"] for line in lines()] == [LABELS[index] for index in found]


def test_layers_are_named_and_repeated(explained, photos):
    assert explained("photos/a.png", "--layer", "first").code == 0
    assert [line["layer"] for line in lines()] == ["first"]
    assert explained("photos/a.png", "--layer", "first", "--layer", "second").code == 0
    assert [line["layer"] for line in lines()] == ["first + second"]


@pytest.mark.parametrize(("suffix", "kind"), [("png", "PNG"), ("jpg", "JPEG"), ("webp", "WEBP")])
def test_pictures_are_written_in_the_format_asked_for(explained, photos, suffix, kind):
    assert explained("photos/a.png", "--format", suffix, "--save", "overlay, mask,raw").code == 0
    pictures = [Path("out", name) for name in files() if not name.endswith(".npy")]
    assert {(path.suffix, opened(path).format) for path in pictures} == {(f".{suffix}", kind)}
    assert len(pictures) == 2


def test_alpha_and_colormap_change_the_colours(explained, photos):
    def picture(*options: object) -> np.ndarray:
        assert explained("photos/a.png", "--no-enlarge", *options).code == 0
        return np.asarray(opened(Path("out", files()[0]))).astype(int)

    given = np.asarray(opened("photos/a.png")).astype(int)
    assert abs(picture("--alpha", 0) - given).max() <= 1
    turbo, bone = picture("--alpha", 1), picture("--alpha", 1, "--colormap", "bone")
    assert abs(turbo - bone).max() > 50
    assert abs(turbo - given).max() > 50


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_weights_come_from_a_file(explained, photos, suffix, tmp_path):
    state = Net().state_dict()
    state["head.bias"] = torch.tensor([0.0, 0, 0, 9])
    path = tmp_path / f"weights.{suffix}"
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    assert explained("--weights", path).code == 0
    assert {line["label"] for line in lines()} == {"dog"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.txt", "Ameise\nBiene\nKätzchen\nHund\n"),
        ("names.txt", "\ufeffAmeise\r\nBiene\r\nKätzchen\r\nHund"),
        ("names.json", '["Ameise", "Biene", "Kätzchen", "Hund"]'),
    ],
    ids=["lines", "as Windows writes them", "json"],
)
def test_labels_come_from_a_file(explained, photos, name, content):
    Path(name).write_text(content, encoding="utf-8", newline="")
    assert explained("photos/a.png", "--labels", name, "--target", "kätzchen", "--target", "0").code == 0
    assert [line["label"] for line in lines()] == ["Kätzchen", "Ameise"]


def test_results_inside_the_input_folder_are_not_explained_by_the_next_run(explained, photos):
    for _ in range(3):
        assert explained("photos", "-r", "--out", "photos/results").code == 0
    assert len(lines("photos/results")) == len(files("photos/results")) == 3


# ------------------------------------------------------------------------------------------- what people are told


def test_a_run_is_summed_up(explained, photos):
    said = explained("-r")
    assert said.err == ""
    assert re.search(r"^3 photos explained in [\d.]+ s \(\d+ ms each\), at layer second\.$", said.out, re.MULTILINE)
    assert "3 files and explanations.jsonl are in out\n" in said.out


def test_verbose_has_a_line_for_each_explanation_however_long(explained, tmp_path):
    long = photo(tmp_path / ("deep" * 20) / "[red]a[/].png")
    said = explained(long, "--verbose", "--target", "top2")
    told = [line for line in said.out.splitlines() if line.startswith(str(long))]
    assert [re.sub(r" [\d.]+%", "", line).split()[-2:] for line in told] == [
        [line["label"], "gradcam"] for line in lines()
    ]


def test_quiet_says_nothing_but_errors(explained, photos):
    assert explained("--quiet") == Said(0, "", "")
    (photos / "bad.png").write_bytes(b"")
    said = explained("-q")
    assert (said.code, said.out) == (1, "")
    assert "bad.png" in said.err


@pytest.mark.parametrize("options", [[], ["--verbose"], ["--quiet"]])
def test_json_is_all_that_stands_on_stdout(explained, photos, options):
    bad = photos / "bad.png"
    bad.write_bytes(photo(photos / "whole.png").read_bytes()[:60])
    said = explained("--json", *options)
    told = json.loads(said.out)
    assert said.code == 1
    assert told["explained"] == lines()
    assert [Path(failure["image"]).name for failure in told["failed"]] == ["bad.png"]
    assert "cut short" in told["failed"][0]["reason"]
    assert (told["out"], told["interrupted"]) == ("out", False)


def test_bad_photos_never_stop_the_run_and_are_listed_at_the_end(explained, photos):
    whole = (photos / "b.jpg").read_bytes()
    (photos / "a-cut.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "a-text.png").write_text("I am no picture.")
    photo(photos / "a-bright.png", level=255)
    said = explained("--batch-size", 2)
    assert said.code == 1
    assert "2 photos explained" in said.out
    assert said.err.splitlines()[0] == "3 photos could not be explained:"
    listed = [re.search(r"a-(cut|text|bright)", line) for line in said.err.splitlines()[1:]]
    assert [match and match[1] for match in listed] == ["bright", "cut", "text"]
    assert [Path(line["image"]).name for line in lines()] == ["a.png", "b.jpg"]


@posix
def test_a_name_that_is_no_text_is_told(explained, photos):
    odd = os.fsdecode(b"photos/caf\xe9.png")
    (photos / "a.png").rename(odd)
    said = explained(odd, "--json")
    assert said.code == 0
    assert json.loads(said.out)["explained"][0]["image"] == odd == lines()[0]["image"]
    assert r"caf\udce9.png" in explained(odd, "--verbose").out


def test_the_methods_are_listed(camtool_):
    said = camtool_("methods")
    assert (said.code, said.err) == (0, "")
    heading, *listed = said.out.splitlines()
    assert heading.split("  ")[0] == "method"
    wrappers = [f"{name}:" for name in WRAPPERS]
    assert sorted(line.split()[0] for line in listed) == sorted([*camtool.METHODS, *wrappers])
    assert all(camtool.METHODS[name].cost in line for line in listed if (name := line.split()[0]) not in wrappers)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_methods_fit_the_terminal_a_line_each_from_80_columns_on(on_screen, width):
    lines = on_screen(width)("methods").out.splitlines()
    assert max(map(len, lines)) <= width
    assert {*camtool.METHODS} <= {line.split(" ")[0] for line in lines}
    assert width < 80 or len(lines) < 75


def test_a_method_is_told_with_its_options_and_its_paper(on_screen):
    said = on_screen(80)("methods", "scorecam")
    assert max(map(len, said.out.splitlines())) <= 80
    for told in ("arXiv 1910.01279", "activations, forwards", "many passes", "max_channels=None", "w = softmax_k(f("):
        assert told in said.out
    assert "tta:" in on_screen(80)("methods", "tta:rise").out
    assert_refused(on_screen(80)("methods", "scorecan"), "'scorecan' is unknown", "Did you mean 'scorecam'")


def test_options_of_a_method_reach_it(explained, photos):
    assert explained("--method", "rivalcam", "--option", "rivals=1", "--option", "temperature=2.5").code == 0
    said = explained("--method", "rivalcam", "--option", "rivals=0")
    assert (said.code, "rivals must be a whole number" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--option", "rivals"], "--option 'rivals' is not of the form NAME=VALUE"),
        (["--method", "rivalcam", "--option", "rivls=3"], "has no option 'rivls'; known options:"),
        (["--merge", "man"], "merge 'man' is unknown"),
        (["--option", "layer=2"], "--option 'layer=2' is no option of a method; use --layer"),
    ],
)
def test_an_option_or_a_merge_that_does_not_exist_is_told(explained, photos, arguments, told):
    said = explained(*arguments)
    assert said.code == 2
    assert told in " ".join(said.err.split())


def test_the_layers_of_a_model_are_listed_and_the_chosen_one_is_that_of_a_run(camtool_, photos):
    said = camtool_("layers", TINY, "--size", 32)
    assert (said.code, said.err) == (0, "")
    chosen = [line.split()[0] for line in said.out.splitlines() if "chosen:" in line]
    assert camtool_("photos/a.png", "--model", TINY).code == 0
    assert chosen == [line["layer"] for line in lines()]


def test_the_picture_whose_layers_are_listed_need_not_be_square(camtool_):
    said = camtool_("layers", "resnet18", "--size", "64x96")
    chosen = next(line for line in said.out.splitlines() if "chosen:" in line)
    assert chosen.split()[:6] == ["layer4", "512", "x", "2", "x", "3"]


@pytest.mark.parametrize("size", ["16", "64x", "64x8", "large"])
def test_a_size_that_is_none_is_refused(camtool_, size):
    assert_refused(camtool_("layers", "resnet18", "--size", size), f"--size '{size}'", "224x320")


@pytest.mark.parametrize(("model", "lines"), [("vit_b_16", 25), ("resnet18", 28), ("mobilenet_v2", 25)])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_layers_fit_the_terminal_a_line_each(on_screen, model, lines, width):
    said = on_screen(width)("layers", model)
    assert max(map(len, said.out.splitlines())) <= width
    assert len(said.out.splitlines()) <= lines
    assert re.search(r"^> \S+ +\d+ x \d+", said.out, re.MULTILINE)


def test_shallow_layers_are_listed_on_demand(camtool_):
    short, long = (
        camtool_("layers", "squeezenet1_1", "--size", 64),
        camtool_("layers", "squeezenet1_1", "--size", 64, "--all"),
    )
    assert re.search(r"(\d+) shallower ones are listed with --all", short.err)
    assert "shallower" not in short.out + long.err
    names = [{line.split()[0] for line in said.out.splitlines() if line[0] != " "} for said in (short, long)]
    assert "features.0" in names[1] - names[0]


def test_help_and_version(camtool_):
    assert camtool_("--version") == Said(0, f"camtool {camtool.__version__}\n", "")
    assert camtool_("--help") == camtool_("-h")
    assert "layers" in camtool_("--help").out
    assert "--colormap" in camtool_("run", "--help").out == camtool_("run", "-h").out
    assert "layers" in "".join([(said := camtool_()).out, said.err])


# ------------------------------------------------------------------------------- requests that cannot be served


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], ["'nowhere'", "no such file or folder"]),
        (["empty"], ["'empty'", "no pictures there", "--recursive"]),
        (["photos/*.tiff"], ["no pictures there"]),
        (["--model", "mobilnet_v2"], ["'mobilnet_v2' is unknown", "Did you mean 'mobilenet_v2'"]),
        (["--model", "nope[/]"], ["'nope[/]' is unknown"]),
        (["--model", "nowhere_nets:make"], ["no module 'nowhere_nets'"]),
        (["--model", f"{__name__}:tinny"], ["no function 'tinny'", "Did you mean 'tiny'"]),
        (["--method", "grad-can"], ["'grad-can' is unknown", "Did you mean 'gradcam'"]),
        (["--method", ","], ["--method names none", "gradcam"]),
        (["--colormap", "tubro"], ["'tubro'", "Did you mean 'turbo'"]),
        (["--save", "overlay,heetmap"], ["'heetmap' is unknown", "Did you mean 'heatmap'"]),
        (["--target", "catt"], ["'catt' is not among the 4 labels", "Did you mean 'cat'"]),
        (["--target", "4"], ["4 does not exist", "0 to 3"]),
        (["--layer", "secnd"], ["'secnd'", "Did you mean 'second'"]),
        (["--layer", "stage4"], ["'stage4'", "camtool layers MODEL"]),
        (["--weights", "none.pth"], ["'none.pth'", "no such file"]),
        (["--weights", "https://x.org/a.pth"], ["weights 'https://x.org/a.pth': URLs are not read; download"]),
        (["https://x.org/a.jpg?b=1"], ["path 'https://x.org/a.jpg?b=1': URLs are not read; download"]),
        (["--model", "https://x.org/a.pth"], ["model 'https://x.org/a.pth': URLs are not read"]),
        (["--model", "photos/a.png"], ["'photos/a.png' is unknown", "looks like a photo"]),
        (["mobilenet_v2"], ["'mobilenet_v2' is the name of a model, not a photo; give it as --model mobilenet_v2"]),
        (["features", "timm:x"], ["'timm:x' is the name of a model, not a photo"]),
        (["--weights", "photos/a.png"], ["a.png", "damaged"]),
        (["--labels", "half.json"], ["half.json", "cannot be read"]),
        (["--labels", "table.json"], ["table.json", "a list of names is needed"]),
        (["--labels", "latin.txt"], ["latin.txt", "cannot be read"]),
        (["--out", "photos/a.png"], ["a.png", "File exists"]),
    ],
    ids=lambda value: " ".join(value) if str(value[0]).startswith("-") else None,
)
def test_what_cannot_be_served_is_one_sentence_that_helps(camtool_, photos, args, words):
    Path("empty").mkdir()
    Path("half.json").write_text('["ant"')
    Path("table.json").write_text('{"0": "ant"}')
    Path("latin.txt").write_bytes(b"K\xe4fer")
    paths = [] if not args[0].startswith("-") else ["photos"]
    model = [] if "--model" in args else ["--model", TINY]
    assert_refused(camtool_(*paths, *args, *model), *words)


def test_an_error_is_wrapped_between_words_on_a_terminal_and_one_line_elsewhere(camtool_, monkeypatch):
    piped = camtool_("layers", "resnet1000").err
    monkeypatch.setattr(cli, "_err", Console(stderr=True, highlight=False, force_terminal=True, width=60))
    shown = re.sub(r"\x1b\[[\d;]*m", "", camtool_("layers", "resnet1000").err)
    assert max(map(len, shown.splitlines())) <= 60
    assert piped.count("\n") == 1
    assert shown.split() == piped.split()


@pytest.mark.parametrize(
    "args",
    [["--format", "gif"], ["--alpha", "2"], ["--batch-size", "0"], ["--device", "tpu"], ["--labels", "none.txt"]],
)
def test_a_value_that_an_option_does_not_take_is_refused(explained, photos, args):
    said = explained(*args)
    assert (said.code, said.out) == (2, "")
    assert args[0] in said.err
    assert "Traceback" not in said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU on this machine")
def test_a_device_that_is_not_there_is_one_sentence(explained, photos):
    assert_refused(explained("--device", "cuda"), "--device cuda: there is none on this machine", "cpu")


@pytest.mark.parametrize("options", [[], ["--quiet"], ["--json"]])
def test_without_internet_the_way_out_is_named(camtool_, photos, monkeypatch, tmp_path, options):
    def urlopen(*args: object, **kwargs: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    said = camtool_("photos", "--model", "resnet50", *options)
    assert options == [] or said.err.startswith("Error:")  # else torch.hub says that it downloads
    assert_refused(
        Said(said.code, said.out, said.err[said.err.index("Error:") :]),
        "'resnet50'",
        "--weights",
        "--model demo",
        "Name or service not known",
    )


def test_the_layers_of_a_model_of_clips_are_listed(camtool_):
    said = camtool_("layers", "r3d_18", "--size", 64)
    assert said.code == 0
    assert "chosen" in said.out


@pytest.mark.parametrize("model", ["raft_small", "vit_b_32"])
def test_a_model_that_takes_no_such_picture_has_no_layers_to_list(camtool_, model):
    assert_refused(camtool_("layers", model, "--size", 64), model, "cannot run on one picture of 64 x 64")


# ------------------------------------------------------------------------------------------------ as people run it


@pytest.mark.parametrize(
    ("args", "code"),
    [(["photos/a.png"], 0), (["photos", "-r"], 1), (["photos", "--method", "x"], 2)],
    ids=["fine", "a bad photo", "a bad request"],
)
def test_the_exit_code_tells_how_it_went(photos, tmp_path, args, code):
    (photos / "sub" / "bad.png").write_bytes(b"")
    process = subprocess_of(*args, "--model", TINY, cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in err) == (code, False)
    assert (bool(out), bool(err)) == (code != 2, code != 0)


def test_a_factory_is_found_where_the_person_works(photos, tmp_path):
    (tmp_path / "mynets.py").write_text(f"from {__name__} import tiny as make\n")
    process = subprocess_of("photos", "--model", "mynets:make", cwd=tmp_path)
    assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)


@posix
def test_the_progress_bar_is_drawn_on_stderr_alone(photos, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess_of("photos", "--model", TINY, "--verbose", cwd=tmp_path, stderr=theirs)
        os.close(theirs)
        drawn = b""
        try:
            while chunk := terminal.read(4096):
                drawn += chunk
        except OSError:  # Linux' way of saying that the other end is closed
            pass
        out = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert b"Explaining" in drawn
    assert not re.search(r"[\x00-\x09\x0b-\x1f]|Explaining|Loading", out)


@posix
def test_ctrl_c_while_the_model_is_loaded_ends_quietly(photos, tmp_path):
    process = subprocess_of("photos", "--model", SLEEPING, cwd=tmp_path)
    assert process.stderr
    assert process.stderr.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert (*process.communicate(timeout=60), process.returncode) == ("", "", 130)


@pytest.mark.slow
def test_the_bundled_model_explains_scenes(tmp_path):
    """The twin of the real model."""
    shapes = ["star", "drop"]
    paths = [save(unseen(number, [shape], size=160), tmp_path / f"{shape}.jpg") for number, shape in enumerate(shapes)]
    process = subprocess_of(*paths, "--model", "demo", "--no-enlarge", "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)["explained"]
    assert [line["label"] for line in found] == shapes
    assert [line["files"]["overlay"] for line in found] == ["star.gradcam.8-star.png", "drop.gradcam.2-drop.png"]
    for line, path in zip(found, paths, strict=True):
        assert opened(tmp_path / "out" / line["files"]["overlay"]).size == opened(path).size


@pytest.mark.slow
def test_a_real_model_explains_real_photos(shared, tmp_path):
    names = ["n01558993_robin.jpg", "n02165456_ladybug.jpg"]
    weights = shared / "models" / "mobilenet_v2-imagenet.safetensors"
    paths = [shared / "images" / name for name in names]
    process = subprocess_of(*paths, "--model", "mobilenet_v2", "--weights", weights, "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    found = json.loads(out)["explained"]
    assert [line["label"] for line in found] == ["robin", "ladybug"]
    assert [line["files"]["overlay"] for line in found] == [
        "n01558993_robin.gradcam.15-robin.png",
        "n02165456_ladybug.gradcam.301-ladybug.png",
    ]
    for line, path in zip(found, paths, strict=True):
        assert opened(tmp_path / "out" / line["files"]["overlay"]).size == opened(path).size
