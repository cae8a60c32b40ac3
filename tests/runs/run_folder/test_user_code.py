"""The user's own source files in the description of a run: which ones count, and what a change of them does."""

# ruff: noqa: F401, F811  fixtures of other files are used by name

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from camtool.runs.run_folder.hashes import hash_user_code
from tests.cli.test_commands import Command, camtool_, photos
from tests.runs.run_folder.test_resumable_folder import read_files

FILES = {
    "zoo/__init__.py": "",
    "zoo/models/__init__.py": "from .nets import make",
    "zoo/models/nets.py": "from ..layers import Block\nimport zoo.tools.colors as colors\ndef make(): import lazy",
    "zoo/layers.py": "import torch, json\nclass Block: pass",
    "zoo/tools/__init__.py": "",
    "zoo/tools/colors.py": "from camtool import explain",
    "zoo/unused.py": "",
    "lazy.py": "from . import nothing\nfrom beside import *",
    "beside.py": "import lazy",  # a circle
    "unused.py": "",
}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder with a package and two modules, which can be imported."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("zoo", "lazy", "beside"):
            del sys.modules[name]


def test_the_files_are_those_that_the_module_imports_from_its_folder(project):
    importlib.import_module("zoo.models.nets")
    used = {name for name in FILES if "unused" not in name}
    assert set(hash_user_code(["zoo.models.nets:make", None])) == used
    assert hash_user_code(["zoo.models.nets:make"]) == hash_user_code(["zoo.models:make"])


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_used_file_changes_its_own_hash_and_no_other(project, name):
    importlib.import_module("zoo.models.nets")
    before = hash_user_code(["zoo.models.nets:make"])
    (project / name).write_text(f"{FILES[name]}\n# changed\n")
    after = hash_user_code(["zoo.models.nets:make"])
    changed = {each for each in before if before[each] != after[each]}
    assert changed == (set() if "unused" in name else {name})


@pytest.mark.parametrize(
    "name", ["resnet50", "timm:resnet18", "torch:float32", "zoo.models:no", "sys:exit", "math:sqrt", "camtool.demo:x"]
)
def test_other_names_have_no_code_of_the_user(project, name):
    importlib.import_module("zoo.models")
    assert hash_user_code([name]) == {}


def test_of_an_installed_library_only_the_module_counts():
    import torchvision.models.resnet

    found = hash_user_code(["torchvision.models.resnet:resnet18"])
    assert [*found] == ["torchvision/models/resnet.py"]


MODEL = """
from torch import nn
import parts

def make():
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    return nn.Sequential(*layers).eval()
"""

PREPARE = """
from torchvision.transforms.v2.functional import pil_to_tensor

def prepare(image):
    return pil_to_tensor(image.resize((32, 32))) / 255
"""


@pytest.fixture
def start(camtool_, photos) -> Iterator[Command]:
    """Start a run with a model and a transform in files. The weights are in a file, so that only the code changes."""
    for file, text in {"ownnets.py": MODEL, "parts.py": "", "ownsteps.py": PREPARE}.items():
        Path(file).write_text(text)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    torch.save(nn.Sequential(*layers).state_dict(), "w.pt")
    names = ("--model", "ownnets:make", "--transform", "ownsteps:prepare", "--weights", "w.pt", "--no-report")
    yield lambda *options: camtool_("photos", *names, *options)
    for name in ("ownnets", "parts", "ownsteps"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["ownnets.py", "parts.py", "ownsteps.py"])
def test_a_run_whose_code_has_changed_is_not_continued(start, name):
    assert start().code == 0
    before = read_files(Path("out"))
    same = start()
    assert (same.code, "Nothing to do" in same.out) == (0, True)
    with Path(name).open("a") as file:
        file.write("# changed\n")
    changed = start()
    assert (changed.code, read_files(Path("out"))) == (2, before)
    sentence = f"code of --model or --transform: the file {name} has changed since the run"
    assert all(text in changed.err for text in (sentence, "--out", "--overwrite"))
    assert start("--overwrite").code == 0
