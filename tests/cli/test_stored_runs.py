"""Runs that somebody else stored: no code and no address of theirs is used unasked, and damage is a sentence."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import camtool
from camtool.runs.run_folder.photo_records import check_records
from camtool.runs.run_folder.resumable_folder import RunFolder
from tests.cli.test_commands import assert_refused, list_files, posix, read_lines, start_process, write_photo
from tests.helpers.tiny_models import TINY, Net, prepare
from tests.runs.run_folder.test_resumable_folder import read_files

LISTS = ("run.json", "photos.jsonl", "explanations.jsonl", "failures.jsonl", ".photos.jsonl.part")


@pytest.fixture
def stored(camtool_, photos) -> Path:
    """A finished run of the bundled model, over two photos."""
    assert camtool_("photos", "--model", "demo", "--no-report").code == 0
    return Path("out")


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    """Edit a JSON file."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


# ------------------------------------------------------------------------------------------- code and addresses


def test_a_replay_neither_runs_code_nor_opens_urls_of_a_stranger(stored, camtool_, tmp_path):
    """The real command, with a factory that leaves a trace, and a server that waits for a call."""
    trap = "from pathlib import Path\nPath('was-run').touch()\n"
    (tmp_path / "trap.py").write_text(f"{trap}def make(*_): raise RuntimeError\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.png"
        lines = (stored / "photos.jsonl").read_text().replace("photos/a.png", url)
        (stored / "photos.jsonl").write_text(lines)
        description = (stored / "run.json").read_text()
        for values in ({"model": "trap:make"}, {"transform": "trap:make"}, {}):
            (stored / "run.json").write_text(description)
            change(stored / "run.json", lambda found, values=values: found["command"].update(values))
            process = start_process("replay", stored, cwd=tmp_path)
            text, errors = process.communicate(timeout=120)
            assert (process.returncode, text) == (2, "")
            assert url in errors
            assert "--allow-code" in errors
        with pytest.raises(TimeoutError):
            server.accept()
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("is_url", [True, False])
def test_a_continued_run_opens_no_photo_that_the_user_did_not_name(stored, camtool_, is_url):
    write_photo(Path("other.png"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        image = f"http://127.0.0.1:{server.getsockname()[1]}/a.png" if is_url else "other.png"
        with (stored / "photos.jsonl").open("a") as lines:
            lines.write(json.dumps({"image": image, "stem": "other", "batch": 1}) + "\n")
        assert camtool_("photos", "--model", "demo", "--no-report").code in (0, 1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert {line["image"] for line in read_lines()} == {"photos/a.png", "photos/b.jpg"}


def name_model_folder(command: dict[str, Any]) -> None:
    Path("folder").mkdir()
    Path("folder", "modeling.py").touch()
    command["model"] = "hf:folder"


STRANGE = {
    "factory": (lambda command: command.update(model="trap:make"), "--model trap:make"),
    "transform": (lambda command: command.update(transform="trap:make"), "--transform trap:make"),
    "folder with code": (name_model_folder, "--model hf:folder"),
    "photo": (lambda command: command["paths"].append("https://a.example/b.png"), "https://a.example/b.png"),
    "weights": (lambda command: command.update(weights="https://a.example/w.pth"), "https://a.example/w.pth"),
    "model": (lambda command: command.update(model="ultralytics:http:/a.example/y.pt"), "http:/a.example/y.pt"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_a_stored_run_names_is_refused_unless_it_is_repeated(stored, camtool_, kind):
    edit, text = STRANGE[kind]
    change(stored / "run.json", lambda found: edit(found["command"]))
    result = camtool_("replay", "out")
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    # With the permission the replay goes on, and fails later: nothing of this exists.
    assert "--allow-code" not in camtool_("replay", "out", "--allow-code").err
    if text.startswith("--"):
        assert "--allow-code" not in camtool_("replay", "out", *text.split()).err
        assert_refused(camtool_("replay", "out", text.split()[0], "else"), f"the run used {text.split()[1]}")


def test_no_hub_is_asked_for_a_model_that_a_stored_run_names(stored, camtool_, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", "nothing-was-downloaded")
    for name in ("hf:org/x", "timm:hf-hub:org/x", "timm:resnet18", "open_clip:ViT-B-32/openai", "resnet50"):
        change(stored / "run.json", lambda found, name=name: found["command"].update(model=name))
        result = camtool_("replay", "out")
        assert (result.code, result.out) == (2, "")
        assert f"  --model {name}\n" in result.err
    change(stored / "run.json", lambda found: found["command"].update(weights="none.pt"))
    assert_refused(camtool_("replay", "out"), "none.pt")


@pytest.mark.parametrize("value", [None, 5, "", ["demo"]])
def test_a_stored_run_whose_model_has_no_name_is_refused(stored, camtool_, value):
    change(stored / "run.json", lambda found: found["command"].update(model=value))
    assert_refused(camtool_("replay", "out"))


def test_a_stored_run_without_a_model_is_damaged(stored, camtool_):
    change(stored / "run.json", lambda found: found["command"].pop("model"))
    assert_refused(camtool_("replay", "out"), "run.json is damaged")


def test_names_with_colons_are_no_addresses(camtool_, photos):
    write_photo(Path("photos", "scan:", "a.png")), write_photo(Path("masks:", "a.png"))
    named = ["photos/scan:/a.png", "--region", f"mask:/={Path('masks:').absolute()}"]
    assert camtool_(*named, "--model", "demo", "--no-report").code == 0
    assert camtool_("replay", "out").code == 0


def test_code_in_the_working_directory_is_not_that_of_a_model_without_a_folder(stored, camtool_):
    Path("mine.py").touch()
    assert camtool_("replay", "out").code == 0


@pytest.mark.parametrize(
    "values",
    [
        {"out": "elsewhere"},
        {"overwrite": True},
        {"config": "options.yaml"},
        {"shard_size": "9"},
        {"limit": ["1", "--out=elsewhere"]},
        {"window": ["1", "2", "--out=elsewhere"]},
        {"paths": 5},
        {"paths": [5]},
    ],
    ids=str,
)
def test_options_that_no_run_stores_are_refused(stored, camtool_, values):
    before = read_files(Path())
    change(stored / "run.json", lambda found: found["command"].update(values))
    assert_refused(camtool_("replay", "out"))
    assert {*read_files(Path())} == {*before}


# ------------------------------------------------------------------------------------------------------ damage


def drop(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record.update({name: value})


def put_row(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record["explanations"][0].update({name: value})


MUTATIONS = [
    *(drop(name) for name in ("image", "stem", "batch", "explanations", "files", "sha256")),
    *(put("image", value) for value in (5, "", None, "a\0b", "\ud800", ["a"], "photos/b.jpg")),
    *(put("stem", value) for value in ("", "../a", "/a", "a\0", {})),
    *(put("batch", value) for value in (-1, 2**80, "0", 1.5, True, None, 7)),
    *(put("bytes", value) for value in ("5", [], -1)),
    *(put("explanations", value) for value in (5, {}, [5], [[]], [{}])),
    *(put("failure", value) for value in (5, "both")),
    *(put("files", value) for value in (5, [], {"a.png": 5}, {"a.png": {}}, {"../a": {"bytes": 1, "sha256": ""}})),
    *(put_row(name, None) for name in ("image", "method", "layer", "label", "warnings", "files")),
    *(put_row(name, [5]) for name in ("index", "score", "box", "warnings", "files", "warning_codes", "correct")),
    *(put_row("score", value) for value in (float("nan"), float("inf"), "1e999", 10**400)),
    put_row("files", {"overlay": "../../a.png"}),
    put("new", 1),
]
RAW = [
    b"\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"5\n",
    b"\xff\xfe\n",
    b"\0\0\0\n",
    b'{"image"\n',
    b"[" * 5000 + b"\n",
    b'{"a":' * 99,
]


def find_damage(path: Path) -> str:
    """Return the error about a list of photos, or an empty text."""
    try:
        for _ in check_records(path):
            pass
    except camtool.CamtoolError as error:
        return str(error)
    return ""


def test_a_line_of_a_stored_run_that_is_damaged_is_a_sentence_or_is_made_again(stored, camtool_):
    """Lines that pass, and three that are refused, are met by each command. ``camtool_`` would raise a traceback."""
    path = stored / "photos.jsonl"
    good = path.read_bytes().splitlines(keepends=True)
    lines: list[bytes] = [*RAW, b"", good[1]]
    for mutate in MUTATIONS:
        record = json.loads(good[0])
        mutate(record)
        lines.append(f"{json.dumps(record)}\n".encode())
    refused = 0
    for line in lines:
        path.write_bytes(line + good[1])
        damage = find_damage(path)
        assert not damage or "photos.jsonl, line " in damage, line
        refused += bool(damage)
        if damage and refused > 3:
            continue
        for command in (["replay", "out"], ["photos", "--model", "demo", "--no-report"]):
            path.write_bytes(line + good[1])
            result = camtool_(*command)
            assert result.code in (0, 1, 2), line
            assert (result.code == 2) == result.err.startswith("Error: "), line
    assert refused > len(lines) / 2


def test_lines_of_the_list_that_are_damaged_are_counted_in_the_report(stored, camtool_):
    good = (stored / "explanations.jsonl").read_bytes().splitlines(keepends=True)
    row = json.loads(good[0])
    values = (None, 5, 10**400, "\ud800", "a\0", [5], {"overlay": "a\0.png"}, {"overlay": "loop.png"}, {"a": 5})
    (stored / "loop.png").symlink_to("loop.png")
    edited = [json.dumps({**row, name: value}).encode() + b"\n" for name in row for value in values]
    # The last one is cut.
    (stored / "explanations.jsonl").write_bytes(b"".join([good[1], *edited, *RAW]))
    assert camtool_("report", "out").code == 0
    assert "11 lines of the run" in (stored / "index.html").read_text()


@posix
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product(["pipe", "loop", "folder", "device", "large"], ["photos.jsonl"]),
        *product(["pipe"], ["run.json", "explanations.jsonl", "failures.jsonl"]),
    ],
)
def test_files_of_a_stored_run_are_regular_and_not_too_large(stored, camtool_, kind, name):
    path = stored / name
    path.unlink()
    make = {
        "pipe": os.mkfifo,
        "loop": lambda path: path.symlink_to(path.name),
        "folder": Path.mkdir,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "large": lambda path: path.open("wb").close() or os.truncate(path, 2**35),
    }
    make[kind](path)
    for command in (["replay", "out"], ["photos", "--model", "demo"], ["report", "out"]):
        result = camtool_(*command)
        assert result.code in (0, 2)
        assert (result.code == 2) == result.err.startswith("Error: "), result.err
        if command[0] == "replay":
            assert result.code == (2 if name in LISTS[:2] else 0)


@posix
@pytest.mark.parametrize(
    "options",
    [
        ["photos", "--labels", "odd"],
        ["photos", "--labels-csv", "odd"],
        ["photos", "--config", "odd"],
        ["evaluate", "photos", "--labels", "odd"],
        ["evaluate", "photos", "--out", ".", "--methods", "gradcam", "--metrics", "entropy"],
    ],
    ids=lambda options: " ".join(options[:3]),
)
@pytest.mark.parametrize("kind", ["pipe", "large"])
def test_tables_and_labels_are_regular_and_not_too_large(camtool_, photos, kind, options):
    for name in ("odd", "checkpoint.jsonl"):
        os.mkfifo(name) if kind == "pipe" else Path(name).touch()
        os.truncate(name, 2**35) if kind == "large" else None
    result = camtool_(*options, "--model", TINY)
    assert (result.code, result.out) == (2, "")
    assert "cannot be read: it " in result.err


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="files of Linux")
@pytest.mark.parametrize("file", ["/proc/self/mem", "/proc/self/pagemap", "/dev/zero", "photos"])
@pytest.mark.parametrize("option", ["--labels", "--labels-csv", "--config", "--weights", "--auth-file"])
def test_files_of_the_system_and_folders_are_refused_with_a_sentence(camtool_, photos, option, file):
    """The first cannot be read at its beginning; the second claims to be empty, and never ends."""
    command = ["app", "--port", "0"] if option == "--auth-file" else ["photos", "--model", "demo"]
    result = camtool_(*command, option, file)
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    assert file in result.err


# ------------------------------------------------------------------------------------------------ foreign files


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=str)
def test_files_that_camtool_did_not_write_are_refused_by_name(explained, photos, name, options):
    Path("out").mkdir()
    Path("out", name).write_text('{"name": "my experiment"}\n')
    before = read_files(Path("out"))
    assert_refused(explained(*options), str(Path("out", name)), "camtool", "--out")
    assert read_files(Path("out")) == before


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=str)
@pytest.mark.parametrize("photo", ["a", "sub/c", "sub/" + "long" * 40])
def test_a_file_of_the_user_with_the_name_of_a_result_is_kept(explained, photos, options, photo):
    write_photo(photos / f"{photo}.png")
    assert explained("-r", "--out", "first").code == 0
    (name,) = (line["files"]["overlay"] for line in read_lines("first") if f"{photo}.png" in line["image"])
    mine = Path("out", name)
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    Path("out", "a.gradcam.notes.txt").touch(), Path("out", "a.final.1-cat.png").touch()
    before = read_files(Path("out"))
    assert_refused(explained("-r", *options), str(mine), "--out")
    assert {path: data for path, data in read_files(Path("out")).items() if ".lock" not in path} == before
    mine.unlink()
    assert explained("-r", *options).code == 0


def test_a_photo_that_is_added_does_not_overwrite_a_file_of_the_user(explained, photos):
    assert explained().code == 0
    write_photo(photos / "new.png")
    mine = Path("out", "new.gradcam.0-ant.png")
    mine.write_text("mine")
    assert_refused(explained(), str(mine), "--out")
    mine.unlink()
    assert explained().code == 0


@pytest.mark.parametrize("part", ["command", "format", "model"])
def test_a_run_whose_description_lacks_a_part_is_not_continued(explained, photos, part):
    assert explained().code == 0
    change(Path("out", "run.json"), lambda found: found.pop(part))
    before = read_files(Path("out"))
    assert explained().code == 2
    assert read_files(Path("out")) == before


def test_a_contact_sheet_of_the_user_is_kept(explained, photos):
    write_photo(Path("out", "contact-sheet.png"))
    before = read_files(Path("out"))
    assert_refused(explained("--sheet"), "contact-sheet.png", "--sheet")
    assert read_files(Path("out")) == before
    Path("out", "contact-sheet.png").unlink()
    assert explained("--sheet").code == explained("--sheet", "--overwrite").code == 0


# -------------------------------------------------------------------------------------------------------- kills


class Stuck(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(100)
        return super().forward(x)


def stuck() -> camtool.Loaded:
    return camtool.Loaded(Stuck(), prepare)


@posix
def test_after_a_kill_in_overwriting_the_old_command_goes_on(explained, photos, tmp_path):
    assert explained("--no-report").code == 0
    before = read_files(Path("out"))
    new = ["photos", "--model", f"{__name__}:stuck", "--overwrite"]
    with start_process(*new, cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        aside, new_lists = Path("out", ".camtool-replaced"), Path("out", "photos.jsonl")
        while not (aside.exists() and new_lists.exists()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert aside.exists()
    assert json.loads(Path("out", "run.json").read_text())["command"]["model"].endswith("stuck")
    result = explained("--no-report")
    assert (result.code, result.err) == (0, "")
    assert "Nothing to do: the run is finished." in result.out
    assert read_files(Path("out")) == before


def killed() -> camtool.Loaded:
    """A model of a process that dies when the first file is written, before it is recorded."""
    RunFolder.add = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    return camtool.Loaded(Net(), prepare)


@posix
@pytest.mark.parametrize("has_old_run", [True, False])
def test_results_that_a_killed_run_did_not_record_are_its_own(explained, photos, tmp_path, has_old_run):
    if has_old_run:
        assert explained("--no-report").code == 0
    before = read_files(Path("out"))
    new = ["photos", "--method", "layercam", "--overwrite", "--no-report"]
    with start_process(*new, "--model", f"{__name__}:killed", cwd=tmp_path) as process:
        assert process.wait() == -signal.SIGKILL
    assert [name for name in list_files() if name.startswith("a.layercam.")]
    if has_old_run:
        assert explained("--no-report").code == 0
        assert read_files(Path("out")) == before
    assert explained(*new[1:]).code == 0
    assert len(list_files()) == 2


# ------------------------------------------------------------------------------------------------- deep folders


@posix
@pytest.mark.parametrize("name", ["d", "d" * 200])
def test_a_folder_that_is_nested_too_deep_does_not_end_the_run(explained, photos, name, tmp_path):
    here = Path.cwd()
    os.chdir(photos)
    photo = (photos / "a.png").read_bytes()
    for _ in range(1500 if name == "d" else 30):
        Path(name).mkdir()
        os.chdir(name)
    Path("deep.png").write_bytes(photo)
    os.chdir(here)
    try:
        result = explained("-r", "--no-report")
    finally:
        os.system(f"rm -rf '{photos}' '{tmp_path / 'out'}'")  # shutil.rmtree is a recursive function
    assert result.code in (0, 1)  # the path of a result may be too long
    assert "photos explained" in result.out
    assert ("Skipped: " in result.out) == (name != "d")
