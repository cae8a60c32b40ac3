"""Description of a run: what makes the results, the same bytes each time, and what has changed."""

from __future__ import annotations

import json
import math
import os
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import nn

import camtool
from camtool.runs.run_folder.description import (
    check_directory,
    check_unchanged,
    describe_command,
    describe_run,
    find_changes,
    list_machine_changes,
    read_description,
    write_description,
)
from camtool.runs.run_folder.hashes import hash_file, hash_photo, hash_weights, remove_addresses
from camtool.runs.stored_files import ManifestLine, parse_row, to_row
from tests.runs.photos import posix


def build_loaded(bias: float = 0.0, labels: tuple[str, ...] = ("ant", "bee")) -> camtool.Loaded:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    nn.init.constant_(model[0].bias, bias)
    return camtool.Loaded(model.eval(), lambda image: image, labels, "mine")


def describe(loaded: camtool.Loaded | None = None, options: dict | None = None, **command: object) -> dict:
    given = {"paths": ["photos"], "engine": "eager", "method": ["rise"], **command}
    return describe_run(loaded or build_loaded(), ["rise", "gradcam"], options or {}, given)


def test_equal_runs_have_equal_descriptions():
    assert json.dumps(describe()) == json.dumps(describe())
    assert list(describe(a=1, b=2)["command"]) == list(describe(b=2, a=1)["command"])


def test_a_description_holds_what_makes_the_results():
    found = describe(options={"samples": 9})
    assert found["command"] == {"engine": "eager", "method": ["rise"], "paths": ["photos"]}
    assert (found["options"]["rise"]["samples"], found["options"]["gradcam"]) == (9, {})
    assert found["seeds"] == {"rise": found["options"]["rise"]["seed"]}
    assert (found["camtool"], found["engine"], found["device"]) == (camtool.__version__, "eager", "cpu")
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["model"]["name"] == "mine"
    assert " at 0x" not in json.dumps(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"method": ["gradcam"]}, "--method: rise then, gradcam now"),
        ({"batch_size": 4}, "--batch-size: none then, 4 now"),
        ({"paths": ["other"]}, "PATH: photos then, other now"),
        ({"options": {"samples": 7}}, "options rise samples: "),
        ({"loaded": build_loaded(bias=1.0)}, "model weights sha256: "),
        ({"loaded": build_loaded(labels=("ant", "wasp"))}, "model labels sha256: "),
    ],
)
def test_each_change_is_named_with_both_values(change, text):
    (found,) = find_changes(describe(), describe(**change))
    assert found.startswith(text)
    assert find_changes(describe(), describe()) == []


def test_another_version_is_a_change_and_another_machine_is_none(tmp_path):
    then, now = describe(), describe()
    then["versions"]["torch"], then["machine"]["processor"] = "1.0", "Z80"
    write_description(tmp_path, then)
    with pytest.raises(camtool.CamtoolError, match=r"version of torch: 1\.0 then, \S+ now\nGive another") as caught:
        check_unchanged(tmp_path, now)
    assert "Z80" not in str(caught.value)
    (machine,) = list_machine_changes(tmp_path, now)
    assert machine.startswith("machine processor: Z80 then, ")


def test_a_run_whose_heat_was_drawn_by_another_rule_is_not_continued(tmp_path):
    """Before the rule was noted, heat was repeated beyond the outermost cells."""
    then = describe()
    del then["drawing"]
    write_description(tmp_path, then)
    with pytest.raises(camtool.CamtoolError, match="drawing: heat is repeated up to the border then, cells cover"):
        check_unchanged(tmp_path, describe())


def test_a_file_that_an_option_names_is_hashed(tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("ant")
    then = describe_command({"labels": labels})
    labels.write_text("bee")
    (change,) = find_changes(then, describe_command({"labels": labels}))
    assert change.startswith("sha256 labels: ")


def test_weights_that_claim_more_than_the_disk_holds_are_not_hashed(tmp_path):
    weights = tmp_path / "w.pt"
    weights.write_bytes(bytes(1000))
    assert describe_command({"weights": weights})["sha256"] == {"weights": hash_file(weights)}
    os.truncate(weights, 2**36)
    assert describe_command({"weights": weights})["sha256"] == {}


def test_relative_paths_tie_a_run_to_its_directory(tmp_path, monkeypatch):
    for path, is_tied in (("photos", True), (str(tmp_path), False)):
        monkeypatch.chdir(tmp_path)
        then = describe_command({"paths": [path]})
        monkeypatch.chdir(tmp_path.parent)
        changes = find_changes(then, describe_command({"paths": [path]}))
        assert len(changes) == is_tied
        if is_tied:
            with pytest.raises(camtool.CamtoolError, match=r"relative to .*start the command there"):
                check_directory(then)
        else:
            check_directory(then)


MARKED = '{"format": "camtool run 1", "camtool": "0"'


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", "", "{}", "[" * 5000, '{"camtool": "1", "command": {}}', f'{MARKED}, "a": NaN}}'),
        *(f'{MARKED}, "{part}": 5}}' for part in ("command", "method", "engine", "format")),
    ],
)
def test_a_damaged_description_is_an_error(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(camtool.CamtoolError, match=r"run\.json .*--out"):
        read_description(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight.data.view(-1)[0].add_(1e-6),
        lambda model: model[1].running_mean.add_(1),
        lambda model: model.half(),
        lambda model: model.register_buffer("more", torch.zeros(1)),
    ],
)
def test_the_hash_of_the_weights_sees_each_value(change):
    model = build_loaded().model
    before = hash_weights(model)
    assert before == hash_weights(build_loaded().model)
    change(model)
    assert hash_weights(model) != before


def test_weights_of_all_types_are_hashed():
    model = nn.Module()
    values = [torch.zeros((), dtype=torch.bfloat16), torch.zeros(0), torch.zeros(2, dtype=torch.complex64)]
    for number, value in enumerate([*values, torch.zeros(3, dtype=torch.bool)]):
        model.register_buffer(f"b{number}", value)
    assert len(hash_weights(model)) == 64


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_the_hash_of_quantized_weights_sees_their_scale():
    hashes = []
    for scale in (0.1, 0.1, 0.2):
        model = nn.Module()
        model.register_buffer("w", torch.quantize_per_tensor(torch.zeros(3), scale, 0, torch.qint8))
        hashes.append(hash_weights(model))
    assert hashes[0] == hashes[1] != hashes[2]


@posix
def test_only_ordinary_files_are_hashed(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    assert hash_photo(tmp_path / "pipe.png") is hash_photo(tmp_path) is hash_photo(Path("none.png")) is None


def test_addresses_are_removed():
    assert remove_addresses("<function f at 0x7f1200>") == "<function f>"


def test_a_row_is_the_line_again():
    line = ManifestLine("a.png", "gradcam", "x", "cat", 1, 0.5, None, ("w",), (0.0, 1.0, 2.0, 3.0), {"overlay": "a"})
    assert parse_row(json.loads(json.dumps(to_row(line)))) == line
    assert to_row(ManifestLine("a", "m", "x", "l", None, math.inf, math.nan, (), None, {}))["score"] is None
    assert math.isnan(parse_row({**to_row(line), "score": None, "unknown": 3}).score)
