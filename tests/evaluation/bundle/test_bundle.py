"""The evidence bundle of a run: every hash is checked with hashlib, every number computed from the run's own lines."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from safetensors.torch import save_file

from camtool.errors import CamtoolError
from camtool.evaluation.bundle import write_bundle, writing
from camtool.evaluation.bundle.card import write_card
from camtool.evaluation.bundle.writing import gather_evidence
from tests.cli.test_commands import Command, assert_refused, camtool_, write_photo
from tests.evaluation.audit.results import build_audit, build_finding
from tests.helpers.tiny_models import LABELS, TINY, Net

__all__ = ["camtool_"]

NAMES = ["0.png", "00.png", "000.png", "0000.png", "00000.png", "plain.png"]
"""Photos of a run, all different."""

Z = 1.959963984540054  # of a normal distribution, 95 % lie within


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(bundle: Path, name: str) -> Any:
    with ZipFile(bundle) as archive:
        content = archive.read(name)
    return json.loads(content) if name.endswith(".json") else content.decode()


@pytest.fixture
def run(camtool_: Command, tmp_path: Path) -> Path:
    """Explain six photos by two methods, with true classes, two regions and a file of weights."""
    for name in NAMES[:5]:
        write_photo(tmp_path / "photos" / name)
    write_photo(tmp_path / "photos" / NAMES[5], 90)  # one color, which is a warning
    lines = [f"{name},{LABELS[number % 3]}" for number, name in enumerate(NAMES[:5])]
    Path("labels.csv").write_text("\n".join(["image,label", *lines]))
    save_file(Net().state_dict(), "tiny.safetensors")
    options = ["--model", TINY, "--weights", "tiny.safetensors", "--labels-csv", "labels.csv"]
    options += ["--method", "gradcam,layercam", "--region", "bottom-right", "--region", "logo=2,2,9,9"]
    assert camtool_("photos", *options, "--region", "border").code == 0
    return tmp_path / "out"


def read_rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "explanations.jsonl").read_text().splitlines()]


def test_the_hashes_are_those_of_the_files(run: Path) -> None:
    write_bundle(run, "evidence.zip")
    evidence = read(Path("evidence.zip"), "evidence.json")
    assert evidence["model"]["weights_file_sha256"] == hash_file(Path("tiny.safetensors"))
    preparation = evidence["preprocessing"]
    assert preparation["sha256"] == hashlib.sha256(preparation["transform"].encode()).hexdigest()
    own = Path(__file__).parents[2] / "helpers" / "tiny_models.py"
    assert preparation["code_sha256"]["tests/helpers/tiny_models.py"] == hash_file(own)
    records = [json.loads(line) for line in read(Path("evidence.zip"), "run/photos.jsonl").splitlines()]
    assert {record["image"]: record["sha256"] for record in records} == {
        f"photos/{name}": hash_file(Path("photos", name)) for name in NAMES
    }
    listed = "".join(f"{record['sha256']}  {record['image']}\n" for record in records)
    size = sum(path.stat().st_size for path in Path("photos").iterdir())
    assert evidence["data"] == {
        "photos": 6,
        "failed": 0,
        "bytes": size,
        "list_sha256": hashlib.sha256(listed.encode()).hexdigest(),
    }


def test_the_sums_are_those_of_all_files_in_it(run: Path) -> None:
    written = write_bundle(run, "evidence.zip")
    assert written.sha256 == hash_file(written.path)
    with ZipFile("evidence.zip") as archive:
        assert archive.testzip() is None
        contents = {name: archive.read(name) for name in archive.namelist()}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert len(contents) == written.files
    lines = [line.split("  ", 1) for line in contents.pop("SHA256SUMS").decode().splitlines()]
    assert {name: sha256 for sha256, name in lines} == {
        name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
    }
    copies = {name.removeprefix("run/"): content for name, content in contents.items() if name.startswith("run/")}
    overlays = {line["files"]["overlay"] for line in read_rows(run)}
    assert copies.keys() == overlays | {"run.json", "photos.jsonl", "explanations.jsonl", "failures.jsonl"}
    assert {name for name, content in copies.items() if (run / name).read_bytes() != content} == set()


def test_settings_and_the_command_that_repeats_the_run(run: Path, camtool_: Command) -> None:
    write_bundle(run, "evidence.zip")
    evidence = read(Path("evidence.zip"), "evidence.json")
    described = json.loads((run / "run.json").read_text())
    assert [method["name"] for method in evidence["methods"]] == ["gradcam", "layercam"]
    assert evidence["layers"] == ["second"]
    assert (evidence["engine"], evidence["device"]) == ("eager", "cpu")
    assert evidence["versions"] == described["versions"]
    change, replay = evidence["replay"]
    assert change == f"cd {described['directory']}"
    program, *arguments = replay.split()
    assert program == "camtool"
    assert camtool_(*arguments, "--model", TINY).code == 0


def test_the_measurements_are_those_of_the_lines(run: Path) -> None:
    write_bundle(run, "evidence.zip")
    measured = {one["name"]: one for one in read(Path("evidence.zip"), "evidence.json")["measurements"]}
    rows = read_rows(run)
    known = [row["correct"] for row in rows if row["method"] == "gradcam" and row["correct"] is not None]
    share, count = sum(known) / 5, 5
    middle, width = share + Z**2 / (2 * count), Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    accuracy = measured["accuracy"]
    assert accuracy["photos"] == len(known) == count
    assert accuracy["mean"] == share
    assert accuracy["chance"] == 2 / 5, "two of the five labels are the same"
    assert accuracy["low"] == pytest.approx((middle - width) / (1 + Z**2 / count), abs=1e-9)
    assert accuracy["high"] == pytest.approx((middle + width) / (1 + Z**2 / count), abs=1e-9)
    for region, chance in (("bottom-right", 1 / 16), ("border", 0.36), ("logo", None)):
        for method in ("gradcam", "layercam"):
            values = [row["heat_in"][region] for row in rows if row["method"] == method]
            one = measured[f"heat in {region}, {method}"]
            assert len({*values}) == 6
            assert one["mean"] == pytest.approx(sum(values) / 6, abs=1e-12)
            assert min(values) < one["low"] < one["mean"] < one["high"] < max(values)
            assert one["chance"] == (None if chance is None else pytest.approx(chance))
    assert len(measured) == 1 + 3 * 2


def test_several_targets_of_a_photo_are_one_observation(camtool_: Command, tmp_path: Path) -> None:
    for name in ("a.png", "bb.png"):
        write_photo(tmp_path / "photos" / name)
    assert camtool_("photos", "--model", TINY, "--target", "top2", "--region", "center").code == 0
    write_bundle("out", "evidence.zip")
    evidence = read(Path("evidence.zip"), "evidence.json")
    (one,) = evidence["measurements"]
    assert (one["photos"], evidence["explanations"]) == (2, 4)
    assert one["mean"] == pytest.approx(sum(row["heat_in"]["center"] for row in read_rows(Path("out"))) / 4)


def test_a_second_bundle_has_the_same_bytes_also_from_elsewhere(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_bundle("out", "evidence.zip")
    again = write_bundle("out", "evidence.zip")  # it replaces a bundle
    (run.parent / "elsewhere").mkdir()
    monkeypatch.chdir(run.parent / "elsewhere")
    other = write_bundle("../out", "other.ZIP")
    assert first.sha256 == again.sha256 == other.sha256


def test_audits_and_evaluations_beside_the_run_are_in_it(run: Path, camtool_: Command) -> None:
    audit = build_audit(build_finding())
    audit.mark(audit.findings[0].key, "shortcut").save(run / "audit")
    evaluated = camtool_("evaluate", "photos", "--model", TINY, "--method", "gradcam", "--out", run / "table")
    assert evaluated.code == 0
    write_bundle(run, "evidence.zip")
    evidence = read(Path("evidence.zip"), "evidence.json")
    (told,) = evidence["audits"]
    assert told["file"] == "audit/audit.json"
    assert [finding["sentence"] for finding in told["findings"]] == [one.sentence for one in audit.findings]
    assert told["findings"][0]["verdict"] == "shortcut"
    assert told["not_tested"] == [*audit.not_tested]
    table = json.loads((run / "table" / "leaderboard.json").read_text())
    rows = {row["name"]: row for row in table["rows"]}
    measured = {one["name"]: one for one in evidence["measurements"]}
    one = measured["deletion, gradcam"]
    assert one["file"] == "table/leaderboard.json"
    assert [one[name] for name in ("mean", "low", "high", "chance", "photos")] == [
        *(rows["gradcam"][name] for name in ("deletion", "deletion low", "deletion high")),
        *(rows["random"]["deletion"], 6),
    ]
    with ZipFile("evidence.zip") as archive:
        for name in ("audit/audit.json", "audit/audit.md", "audit/verdicts.json", "table/leaderboard.json"):
            assert archive.read(f"run/{name}") == (run / name).read_bytes()
    card = read(Path("evidence.zip"), "model-card-section.md")
    assert "Verdict of the user: shortcut." in card
    assert "Files of evaluations name no model" in card


def test_the_card_says_what_it_is_and_promises_nothing(run: Path) -> None:
    write_bundle(run, "evidence.zip")
    card = read(Path("evidence.zip"), "model-card-section.md")
    assert card.startswith("## Explanations: supporting evidence\n")
    promise = "It promises no compliance with any law, standard or policy, certifies nothing"
    assert [promise in line for line in card.splitlines() if "complian" in line.lower()] == [True]
    titles = [line.removeprefix("### ") for line in card.splitlines() if line.startswith("### ")]
    assert "What the maps show" in titles
    assert "What the maps do not show" in titles
    assert "nothing was tested for shortcuts" in card, "there is no audit"
    assert hash_file(Path("tiny.safetensors")) in card
    codes = {code for row in read_rows(run) for code in row["warning_codes"]}
    assert "constant-image" in codes
    assert [code for code in codes if f"| {code} |" not in card] == []
    tables = [line for line in card.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {3, 6, 7}, "no cell breaks a table"


def test_a_method_that_looks_at_no_score_is_said_to_be_one(camtool_: Command, tmp_path: Path) -> None:
    write_photo(tmp_path / "photos" / "a.png")
    assert camtool_("photos", "--model", TINY, "--method", "gradcam,eigencam,tta:eigencam").code == 0
    write_bundle("out", "evidence.zip")
    lines = read(Path("evidence.zip"), "model-card-section.md").splitlines()
    told = {line[2:].partition(": ")[0]: "All classes get the same map" in line for line in lines if "cam: " in line}
    assert told == {"gradcam": False, "eigencam": True, "tta:eigencam": True}


def test_markup_in_names_is_escaped(camtool_: Command, tmp_path: Path) -> None:
    write_photo(tmp_path / "photos" / "a.png")
    Path("names.txt").write_text("ant|<script>\n[bee](x)\ncat\ndog")
    assert camtool_("photos", "--model", TINY, "--labels", "names.txt", "--region", "x|<b>=center").code == 0
    write_bundle("out", "evidence.zip")
    card = read(Path("evidence.zip"), "model-card-section.md")
    assert "heat in x\\|\\<b\\>, gradcam" in card


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_text_are_escaped(camtool_: Command, tmp_path: Path) -> None:
    for name in (b"\xe9\xff.png", b"two\nlines.png", "turned\u202egnp.png".encode()):
        write_photo(tmp_path / "photos" / os.fsdecode(name))
    assert camtool_("photos", "--model", TINY).code == 0
    build_audit(build_finding()).save(tmp_path / "out" / os.fsdecode(b"\xff"))
    write_bundle("out", "evidence.zip")
    with ZipFile("evidence.zip") as archive:
        archive.extractall("packed")
    pictures = {path.name.partition(".gradcam")[0]: path for path in Path("packed", "run").glob("*.png")}
    assert pictures.keys() == {"%E9%FF", "two%0Alines", "turned%E2%80%AEgnp"}
    stored = next(path for path in Path("out").glob("*.png") if path.name.startswith(os.fsdecode(b"\xe9\xff")))
    assert pictures["%E9%FF"].read_bytes() == stored.read_bytes()
    assert Path("packed", "run", "%FF", "audit.json").is_file()
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    checked = subprocess.run(command, cwd="packed", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shutil.copytree(Path("out", os.fsdecode(b"\xff")), Path("out", "%FF"))
    with pytest.raises(CamtoolError, match=r"has the name of another file in the bundle, run/%FF/audit\.json"):
        write_bundle("out", "evidence.zip")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("name", ["back\\slash", "..\\..\\out", "C:x", "C:"])
def test_names_that_lead_elsewhere_on_windows_are_refused(run: Path, name: str) -> None:
    build_audit(build_finding()).save(run / name)
    with pytest.raises(CamtoolError, match="has a backslash or a drive in its name"):
        write_bundle(run, "evidence.zip")
    assert not Path("evidence.zip").exists()


def test_an_option_of_the_preprocessing_may_be_zero(camtool_: Command, tmp_path: Path) -> None:
    """Off are those without a value, and flags that are not given."""
    tifffile = pytest.importorskip("tifffile")
    noise = np.random.default_rng(0).integers(0, 255, (2, 40, 50), dtype=np.uint8)
    (tmp_path / "photos").mkdir()
    tifffile.imwrite(tmp_path / "photos" / "stack.tif", noise, imagej=True, metadata={"axes": "TYX"})
    assert camtool_("photos", "--model", TINY, "--frame", "0", "--max-side", "30").code == 0
    write_bundle("out", "evidence.zip")
    assert read(Path("evidence.zip"), "evidence.json")["preprocessing"]["options"] == {"max_side": 30, "frame": 0}
    assert "| options of the preprocessing | max\\_side 30, frame 0 |" in read(
        Path("evidence.zip"), "model-card-section.md"
    )


# ------------------------------------------------------------------------------------------------------------- faults


def change_picture(run: Path) -> None:
    next(run.glob("*.png")).write_bytes(b"another")


def remove_picture(run: Path) -> None:
    next(run.glob("*.png")).unlink()


def link_picture(run: Path) -> None:
    picture = next(run.glob("*.png"))
    picture.rename(run.parent / "moved.png")
    picture.symlink_to(run.parent / "moved.png")


def name_foreign_file(run: Path) -> None:
    text = (run / "photos.jsonl").read_text()
    (run / "photos.jsonl").write_text(text.replace('"files": {"0', '"files": {"../0'))


def go_on(run: Path) -> None:
    (run / ".photos.jsonl.part").write_text("")


def forget_photo(run: Path) -> None:
    lines = (run / "photos.jsonl").read_text().splitlines()
    fields = json.loads(lines[-1])
    lines[-1] = json.dumps({name: fields[name] for name in ("image", "stem", "batch")})
    (run / "photos.jsonl").write_text("\n".join([*lines, ""]))


def damage_leaderboard(run: Path) -> None:
    (run / "leaderboard.json").write_text('{"rows": [{"name": "gradcam", "deletion low": 1}]}')


def damage_audit(run: Path) -> None:
    (run / "audit.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (change_picture, "was changed or removed after the run"),
        (remove_picture, "was changed or removed after the run"),
        (link_picture, "a link in the output folder leads out of it"),
        (name_foreign_file, "line 1 is damaged"),
        (go_on, "has not ended; start the same command again"),
        (forget_photo, "is not explained yet"),
        (damage_leaderboard, "leaderboard.json cannot be read"),
        (damage_audit, "audit.json cannot be read"),
        (lambda run: (run / "run.json").unlink(), "holds no run.json"),
        (lambda run: (run / "photos.jsonl").unlink(), "A run of camtool cluster does not hash its photos"),
    ],
)
def test_what_cannot_be_vouched_for_is_refused_and_the_old_bundle_stays(
    run: Path, damage: Callable[[Path], None], words: str
) -> None:
    before = write_bundle(run, "evidence.zip").sha256
    damage(run)
    with pytest.raises(CamtoolError) as error:
        write_bundle(run, "evidence.zip")
    assert words in str(error.value)
    assert hash_file(Path("evidence.zip")) == before
    assert [*Path().glob(".camtool-*")] == []


def test_another_file_is_not_replaced(run: Path, camtool_: Command) -> None:
    (run / "index.html").unlink()
    with ZipFile("mine.zip", "w") as archive:
        archive.writestr("thesis.txt", "years of work")
    before = hash_file(Path("mine.zip"))
    for name, words in (("mine.zip", "is no evidence bundle"), ("evidence", "must end in .zip"), ("photos", ".zip")):
        with pytest.raises(CamtoolError, match=words):
            write_bundle(run, name)
        assert_refused(camtool_("report", "out", "--bundle", name), words)
    go_on(run)
    assert_refused(camtool_("report", "out", "--bundle", "new.zip"), "has not ended")
    assert_refused(camtool_("report", "ou", "--bundle", "new.zip"), "Did you mean 'out'")
    assert hash_file(Path("mine.zip")) == before
    assert not (run / "index.html").exists(), "it takes long, so it is not written first"


def test_large_files_are_streamed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2**26
    picture = next(run.glob("*.png"))
    with picture.open("wb") as stream:
        stream.truncate(size)
    digest = hashlib.sha256(bytes(size)).hexdigest()
    records = [json.loads(line) for line in (run / "photos.jsonl").read_text().splitlines()]
    for record in records:
        if picture.name in record["files"]:
            record["files"][picture.name] = {"bytes": size, "sha256": digest}
    (run / "photos.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))

    def gather(folder: Path) -> dict[str, Any]:
        gathered = gather_evidence(folder)
        tracemalloc.reset_peak()  # reading run.json reserves room for the largest one that is allowed
        return gathered

    monkeypatch.setattr(writing, "gather_evidence", gather)
    tracemalloc.start()
    try:
        write_bundle(run, "evidence.zip")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 4
    with ZipFile("evidence.zip") as archive:
        assert archive.getinfo(f"run/{picture.name}").file_size == size


def test_the_command_writes_page_and_bundle(run: Path, camtool_: Command) -> None:
    result = camtool_("report", "out", "--bundle", "evidence.zip")
    assert result.code == 0
    assert result.out.splitlines()[-1] == f"The evidence is in evidence.zip, SHA-256 {hash_file(Path('evidence.zip'))}"
    told = json.loads(camtool_("report", "out", "--bundle", "again.zip", "--json").out)
    assert told["bundle"]["path"] == "again.zip"
    assert told["bundle"]["sha256"] == hash_file(Path("evidence.zip"))
    assert "bundle" not in json.loads(camtool_("report", "out", "--json").out)


ODD_VALUES = [None, 5, "\0", [5], [[5]], {"a": {"a": [5]}}, 10**300]
"""Values of all types of JSON."""


def iterate_changes(value: Any) -> Iterator[Any]:
    """Yield the value with each value in it replaced by each odd one."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from ({**value, name: changed} for changed in iterate_changes(entry))
    if isinstance(value, list):
        for place, entry in enumerate(value):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in iterate_changes(entry))
    yield from ODD_VALUES


def test_any_type_in_the_description_gives_a_bundle_or_an_error_of_camtool(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "bootstrap_mean", lambda values: (0.5, 0.4, 0.6))  # it takes most of the time
    path, taken = run / "run.json", 0
    for changed in iterate_changes(json.loads(path.read_text())):
        path.write_text(json.dumps(changed))
        with suppress(CamtoolError):
            writing.encode_json(evidence := gather_evidence(run))
            taken += bool(write_card(evidence))
    assert taken > 50
