"""``camtool doctor``."""

from __future__ import annotations

import json
import platform
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import camtool
from camtool.demo import camnet
from camtool.demo.shapes import LABELS
from tests.cli.test_commands import Command

METADATA = """Metadata-Version: 2.1
Name: camtool
Version: 0.1.0
Requires-Dist: typer
Provides-Extra: there
Requires-Dist: pillow; extra == "there"
Requires-Dist: no-such-library; sys_platform == "another" and extra == "there"
Provides-Extra: absent
Requires-Dist: pillow; extra == "absent"
Requires-Dist: no-such-library>=3; extra == "absent"
Provides-Extra: old
Requires-Dist: pillow<2; extra == "old"
Provides-Extra: test
Requires-Dist: no-such-library; extra == "test"
"""


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put metadata of another camtool first on the module path."""
    folder = tmp_path / "site" / "camtool-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(folder.parent)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill the folders in which models and graphs are kept: 3 bytes of graphs, 5 of torchvision, 7 of Hugging Face."""
    folder = tmp_path / "caches"
    variables = {"CAMTOOL_CACHE": folder / "graphs", "TORCH_HOME": folder / "torch", "HF_HOME": folder / "hf"}
    for size, file in ((3, "graphs/engines/a/g.onnx"), (5, "torch/hub/checkpoints/a.pth"), (7, "hf/hub/blobs/x")):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_bytes(bytes(size))
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    return folder


def test_it_tells_versions_devices_extras_and_caches(camtool_: Command, caches: Path, distribution: None) -> None:
    camtool_json = camtool_("doctor", "--json")
    assert (camtool_json.code, camtool_json.err) == (0, "")
    told = json.loads(camtool_json.out)
    assert told["versions"]["python"] == platform.python_version()
    assert told["versions"]["camtool"] == camtool.__version__
    assert told["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {name: extra["missing"] for name, extra in told["extras"].items()} == {
        "there": [],
        "absent": ["no-such-library>=3"],
        "old": ["pillow<2"],
    }
    assert told["extras"]["absent"]["install"] == 'pip install "camtool[absent]"'
    assert told["engines"]["onnxruntime"] is None, "the extra is not among those of this distribution"
    assert [
        (Path(cache["path"]).relative_to(caches).as_posix(), cache["bytes"]) for cache in told["caches"].values()
    ] == [
        ("graphs", 3),
        ("torch/hub/checkpoints", 5),
        ("hf/hub", 7),
    ]
    assert told["self_test"]["cpu"] is None


@pytest.mark.parametrize(("is_wrong", "result"), [(True, "wrong gradients"), (False, "right gradients")])
def test_it_tells_whether_torch_has_the_fault_of_batch_norms(
    camtool_: Command, monkeypatch: pytest.MonkeyPatch, is_wrong: bool, result: str
) -> None:
    monkeypatch.setattr("camtool.hooks.norm_gradients.has_wrong_norm_gradients", lambda: is_wrong)
    assert json.loads(camtool_("doctor", "--json").out)["torch"]["batch norm"].startswith(result)


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_on_a_terminal(on_screen, distribution: None, caches: Path, monkeypatch, width: int) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = on_screen(width)("doctor")
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= width
    words = " ".join(result.out.split())
    assert "installed there absent needs no-such-library>=3:" in words
    assert "torch.compile needs a C++ compiler onnxruntime needs the extra onnxruntime" in words
    assert words.endswith("Self-test cpu the heat is on the heart")


def exchange_answers(head: nn.Linear) -> None:
    head.weight.data.neg_()


def move_heat(head: nn.Linear) -> None:
    """Let the bias alone decide for the heart, so that the answer is right; its weights prefer the background."""
    heart = LABELS.index("heart")
    head.weight.data[heart].neg_()
    head.bias.data[heart] = 100


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (exchange_answers, r"failed: the demo model answers '\w+' for a heart"),
        (move_heat, r"failed: [0-5]?\d% of the heat is on the heart, instead of 60%"),
    ],
)
def test_a_wrong_answer_and_a_wrong_map_fail_the_test(camtool_: Command, monkeypatch, damage, reason: str) -> None:
    load = camnet.load_bundled_model

    def load_damaged(*args: object, **options: object) -> camtool.Loaded:
        loaded = load(*args, **options)
        damage(loaded.model.head)
        return loaded

    monkeypatch.setattr(camnet, "load_bundled_model", load_damaged)
    result = camtool_("doctor")
    assert result.code == 1
    assert re.search(reason, " ".join(result.out.split()))


def test_a_crash_fails_the_test_and_is_told(camtool_: Command, monkeypatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("the disk is [gone]")

    monkeypatch.setattr(camnet, "load_bundled_model", refuse)
    result = camtool_("doctor", "--json")
    assert result.code == 1
    assert json.loads(result.out)["self_test"] == {"cpu": "OSError: the disk is [gone]"}
    assert "the disk is [gone]" in camtool_("doctor").out
