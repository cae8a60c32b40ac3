"""``camtool replay``, and runs that the command line continues."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from camtool.cli.options import run_options
from camtool.cli.options.model_options import ModelOptions
from camtool.cli.run_and_cluster_commands import run
from camtool.runs import result_writer
from tests.cli.test_commands import assert_refused, list_files, read_lines, write_photo
from tests.helpers.tiny_models import Net
from tests.runs.run_folder.test_resumable_folder import read_files

# ------------------------------------------------------------------------------------------------------ continuing


def test_a_finished_run_does_nothing_and_says_so(explained, photos):
    assert explained("-r").code == 0
    before = read_files(Path("out"))
    result = explained("-r", "--verbose", "--workers", "0")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "Nothing to do: the run is finished. --overwrite starts it anew.",
        "3 photos had been explained before.",
        "3 files and explanations.jsonl are in out",
        f"Open {Path('out', 'index.html')} to see them all.",
    ]
    assert read_files(Path("out")) == before


def test_new_photos_are_explained(explained, photos):
    assert explained().code == 0
    write_photo(photos / "new.png")
    result = explained()
    assert "1 photo explained in" in result.out
    assert "2 photos had been explained before." in result.out
    assert len(read_lines()) == len(list_files()) == 3


def test_a_finished_run_goes_on_when_photos_are_removed_and_added(explained, photos):
    """Results keep their names, though ``a.jpg`` beside ``a.png`` would change those of a new run."""
    write_photo(photos / "c.png")
    (photos / "bad.png").write_bytes(b"")
    assert explained().code == 1
    (photos / "b.jpg").unlink(), (photos / "bad.png").unlink()
    write_photo(photos / "a.jpg")
    result = explained("--verbose")
    assert (result.code, result.err) == (0, "")
    assert "image 1/3 photos/a.jpg" in result.out
    assert "1 photo explained in" in result.out
    assert "2 photos had been explained before." in result.out
    assert "Kept: the results of 2 photos of earlier starts, which are not chosen now." in result.out
    assert len(read_lines()) == len(list_files()) == 4
    again = json.loads(explained("--json").out)
    assert [Path(line["image"]).name for line in again["explained"]] == ["a.png", "c.png", "a.jpg"]
    assert again["removed"] == 2


def test_results_outlast_a_limit_and_a_removal_beside_an_edited_photo(explained, photos):
    """A batch is explained again as a whole, also those of its photos that are behind the limit now."""
    write_photo(photos / "c.png")
    (photos / "a.png").unlink()
    asked = ("--limit", 2, "--no-report")
    assert explained(*asked).code == 0
    write_photo(photos / "a.png")
    for level, is_there in ((70, True), (90, False)):
        write_photo(photos / "b.jpg", level)
        if not is_there:
            (photos / "c.png").unlink()
        result = explained(*asked)
        assert (result.code, result.err) == (0, "")
        assert "Kept: the results of 1 photo of earlier starts, which are not chosen now." in result.out
        assert {Path(line["image"]).name for line in read_lines()} == {"a.png", "b.jpg", "c.png"}
        assert len(list_files()) == 3
        assert "Nothing to do" in explained(*asked).out


def test_a_stopped_run_does_not_explain_what_no_start_chooses_any_more(explained, photos):
    write_photo(photos / "c.png")
    (photos / "a.png").unlink()
    asked = ("--limit", 2, "--batch-size", 1, "--no-report")
    assert explained(*asked).code == 0
    lines = Path("out", "photos.jsonl").read_text().splitlines(keepends=True)
    unfinished = {name: json.loads(lines[1])[name] for name in ("image", "stem", "batch")}
    Path("out", "photos.jsonl").write_text(lines[0] + json.dumps(unfinished) + "\n")
    write_photo(photos / "a.png")
    assert explained(*asked).code == 0
    assert {Path(line["image"]).name for line in read_lines()} == {"a.png", "b.jpg"}
    assert Path("out", "failures.jsonl").read_text() == ""


def test_a_mistyped_path_is_no_problem_of_the_output_folder(explained, photos):
    assert explained().code == 0
    assert_refused(explained("photo"), "path 'photo': no such file or folder. Did you mean 'photos'?")


def test_the_summary_keeps_the_numbers_of_warnings(explained, photos, monkeypatch):
    real = result_writer.build_line

    def build(image, *others):
        # Another number for each photo.
        return replace(real(image, *others), warnings=(f"3 x {len(image)} cells are coarse; pass layer=2.",))

    monkeypatch.setattr(result_writer, "build_line", build)
    assert "3 maps: 3 x 12 to 16 cells are coarse; pass layer=2.\n" in explained("-r").out


def test_the_summary_as_json_holds_earlier_results(explained, photos):
    (photos / "bad.png").write_bytes(b"")
    first, second = (json.loads(explained("--json").out) for _ in range(2))
    assert first["explained"] == second["explained"] == read_lines()
    assert first["failed"] == second["failed"] != []


def test_failures_are_listed_again_and_the_exit_code_stays(explained, photos):
    (photos / "bad.png").write_bytes(b"")
    assert explained().code == 1
    result = explained()
    assert result.code == 1
    assert "bad.png" in result.err
    assert "--retry-failed does" in result.err
    (failure,) = map(json.loads, Path("out", "failures.jsonl").read_text().splitlines())
    assert (failure["image"], "empty, 0 bytes" in failure["reason"]) == ("photos/bad.png", True)
    assert "--retry-failed" not in explained("--retry-failed").err


OTHER = [
    (["--method", "layercam"], "--method: gradcam then, layercam now"),
    (["--target", "cat"], "--target: "),
    (["--layer", "first"], "--layer: "),
    (["--save", "raw"], "--save: overlay then, raw now"),
    (["--format", "jpg"], "--format: png then, jpg now"),
    (["--alpha", "0.5"], "--alpha: none then, 0.5 now"),
    (["--batch-size", "3"], "--batch-size: 8 then, 3 now"),
    (["--recursive"], "--recursive: False then, True now"),
    (["--option", "x=1"], "--option: "),
    (["--placement", "stretch"], "--placement: centers then, stretch now"),
    (["--max-side", "100"], "--max-side: none then, 100 now"),
]


@pytest.mark.parametrize(("options", "text"), OTHER, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_a_changed_option_is_refused_with_both_values(explained, photos, monkeypatch, options, text):
    assert explained().code == 0
    before = read_files(Path("out"))
    monkeypatch.setattr(ModelOptions, "load", None)  # it is noticed before the model is loaded
    result = explained(*options)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert "--out" in result.err
    assert "--overwrite" in result.err
    assert read_files(Path("out")) == before


def test_another_model_is_refused(camtool_, explained, photos):
    assert explained().code == 0
    assert "--model: " in camtool_("photos", "--model", "demo").err
    assert explained("photos/a.png").err.splitlines()[1] == "  PATH: photos then, photos/a.png now"


def test_other_weights_of_the_same_name_are_refused(explained, photos, monkeypatch):
    assert explained().code == 0
    real = Net.__init__

    def build(self: Net) -> None:
        real(self)
        self.head.bias.data += 1

    monkeypatch.setattr(Net, "__init__", build)
    result = explained()
    assert (result.code, result.err.count(" then, ")) == (2, 1)
    assert "model weights sha256: " in result.err


def test_another_machine_is_a_warning(explained, photos):
    assert explained().code == 0
    found = json.loads(Path("out", "run.json").read_text())
    found["machine"]["processor"] = "Z80"
    Path("out", "run.json").write_text(json.dumps(found))
    result = explained()
    assert result.code == 0
    assert "machine processor: Z80 then, " in result.err


def test_each_option_is_compared_unless_it_is_listed(explained, photos):
    import inspect

    assert explained().code == 0
    known = {*inspect.signature(run).parameters} - {"context", "help_all"}
    compared = {*json.loads(Path("out", "run.json").read_text())["command"]}
    assert compared == known - run_options.WITHOUT_EFFECT


# ------------------------------------------------------------------------------------------------------- replaying


def test_a_replay_is_bit_identical(explained, camtool_, photos):
    options = ("--method", "gradcam,rise", "--option", "samples=20", "--target", "top2", "--save", "overlay,raw")
    assert explained("-r", *options, "--batch-size", 2, "--no-enlarge", "--alpha", "0.4").code == 0
    before = read_files(Path("out"))
    result = camtool_("replay", "out", "--allow-code")
    assert (result.code, result.err) == (0, "")
    assert result.out == "12 explanations replayed: numbers and files are bit-identical.\n"
    assert read_files(Path("out")) == before


@pytest.mark.parametrize("image", ["photos/b.jpg", "b.jpg", "./photos/b.jpg"])
def test_one_photo_is_replayed(explained, camtool_, photos, image):
    assert explained().code == 0
    found = json.loads(camtool_("replay", "out", image, "--json", "--allow-code").out)
    assert (found["identical"], found["changes"]) == (True, [])
    (only,) = found["explanations"]
    assert (only["image"], only["method"], only["identical"]) == ("photos/b.jpg", "gradcam", True)


def test_a_failed_photo_is_replayed(explained, camtool_, photos):
    (photos / "bad.png").write_bytes(b"")
    assert explained().code == 1
    assert camtool_("replay", "out", "--allow-code").code == 0
    write_photo(photos / "bad.png")
    result = camtool_("replay", "out", "bad.png", "--allow-code")
    assert result.code == 1
    assert "failure then: photos/bad.png cannot be read: empty, 0 bytes." in result.out
    assert "failure now: none" in result.out


def test_a_changed_photo_is_told(explained, camtool_, photos):
    assert explained().code == 0
    write_photo(photos / "a.png", level=9)
    result = camtool_("replay", "out", "photos/a.png", "--allow-code")
    assert result.code == 1
    assert {"the photo has changed", "Not bit-identical: 1 of 1 explanation."} <= {
        line.strip() for line in result.out.splitlines()
    }
    assert "  score: " in result.out
    assert "  overlay: other bytes than those of a.gradcam." in result.out


@pytest.mark.parametrize("damage", ["change", "remove"])
def test_a_changed_file_is_told(explained, camtool_, photos, damage):
    assert explained().code == 0
    path = Path("out", list_files()[0])
    path.write_bytes(b"x") if damage == "change" else path.unlink()
    result = camtool_("replay", "out", "--allow-code")
    assert result.code == 1
    assert f"overlay: {path.name} was changed or removed after the run" in result.out
    assert "Not bit-identical: 1 of 2 explanations." in result.out


def test_other_weights_and_versions_are_told(explained, camtool_, photos, monkeypatch):
    assert explained().code == 0
    stored = json.loads(Path("out", "run.json").read_text())
    stored["versions"]["torch"] = "1.0"
    Path("out", "run.json").write_text(json.dumps(stored))
    real = Net.__init__

    def build(self: Net) -> None:
        real(self)
        self.head.bias.data += 1

    monkeypatch.setattr(Net, "__init__", build)
    found = json.loads(camtool_("replay", "out", "--json", "--allow-code").out)
    assert not found["identical"]
    assert [change.partition(":")[0] for change in found["changes"]] == ["model weights sha256", "version of torch"]
    assert all(any(text.startswith("score: ") for text in each["differences"]) for each in found["explanations"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["photos"], ["'photos'", "holds no run.json"]),
        (["out", "c.png"], ["'c.png' is no photo of the run"]),
        (["out", "same.png"], ["'same.png' is one of 2 photos"]),
    ],
)
def test_an_invalid_replay_is_refused(explained, camtool_, photos, arguments, words):
    (photos / "sub" / "c.png").unlink()
    write_photo(photos / "x" / "same.png"), write_photo(photos / "y" / "same.png")
    assert explained("-r").code == 0
    assert_refused(camtool_("replay", *arguments), *words)


def test_a_replay_in_another_directory_is_refused(explained, camtool_, photos, tmp_path, monkeypatch):
    assert explained().code == 0
    monkeypatch.chdir(photos)
    assert_refused(camtool_("replay", tmp_path / "out"), "relative to", "start the command there")
