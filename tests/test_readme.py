"""README's blocks run as they stand, without the network, and its figures are those of the code."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import camtool
from camtool import Explanation
from camtool.methods import METHODS
from camtool.methods.registry import find_method
from tests.helpers import readme_world

TEXT = "\n".join(page.read_text(encoding="utf-8") for page in readme_world.PAGES)
COMMANDS = [
    command.partition("#")[0].strip()
    for _, _, block in readme_world.list_blocks("bash")
    for line in block.splitlines()
    for command in line.split(" && ")
    if command.startswith("python -m camtool") and readme_world.is_run(command)
]
SECONDS = 1200  # it ends a test that hangs


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders with random weights; they are large, so they are not left to pytest, which keeps some of its folders."""
    for needed in ("timm", "transformers", "matplotlib.font_manager", "tests.helpers.keras_models"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("cache")
    readme_world.fill_caches(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def furnished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    readme_world.furnish(folder)
    return folder


def ran(command: list[str] | str, folder: Path, cache: Path) -> str:
    """Run a command in the folder, without the network, and return what it printed."""
    finished = subprocess.run(
        ["bash", "-c", command] if isinstance(command, str) else command,
        cwd=folder,
        env=readme_world.sealed(cache),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


def test_the_python_blocks_run_as_they_stand(furnished: Path, cache: Path) -> None:
    for library in ("pytorch_grad_cam", "torchcam", "captum"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install 'camtool[dev]'")
    program = Path(readme_world.__file__)
    # The blocks may print, too, e.g. what check() finds in random weights.
    names = json.loads(ran([sys.executable, str(program)], furnished, cache).splitlines()[-1])
    assert {"model", "result", "clip", "explainer", "results", "mine", "recorder", "answer", "figure"} <= {*names}
    assert all((furnished / name).is_file() for name in ("where.png", "concepts.png", "methods.pdf"))


def test_the_python_blocks_of_the_readme_run_after_its_own_install_line(furnished: Path, cache: Path) -> None:
    assert "```bash\npip install -e . && python -m camtool demo\n```" in readme_world.README.read_text(encoding="utf-8")
    extras = "matplotlib timm transformers open_clip ultralytics captum pandas gradio pyarrow av onnx onnxscript"
    extras += " onnxruntime openvino threadpoolctl pydicom nibabel openslide ray"
    blocks = [text for page, _, text in readme_world.list_blocks("python") if page == readme_world.README]
    assert len(blocks) == 2
    missing = f"import sys; sys.modules.update(dict.fromkeys({extras.split()}))"
    short = "from tests.helpers import readme_world\nreadme_world.shorten_resnet50()"
    ran([sys.executable, "-c", "\n".join([missing, short, *blocks])], furnished, cache)


def test_the_commands_run_as_they_stand(furnished: Path, cache: Path) -> None:
    program = [sys.executable, str(readme_world.__file__), *COMMANDS]
    results = json.loads(ran(program, furnished, cache).splitlines()[-1])
    assert [*results] == [*dict.fromkeys(COMMANDS)]
    assert {command: result for command, result in results.items() if result[0] != 0 or not result[1]} == {}


def test_what_does_not_run_is_there() -> None:
    assert [each for each in readme_world.NOT_RUN if each not in TEXT] == []


def test_the_network_is_closed_to_them(furnished: Path, cache: Path) -> None:
    asked = "import urllib.request\ntry: urllib.request.urlopen('https://pytorch.org')\nexcept OSError as e: print(e)"
    assert "the network is closed" in ran([sys.executable, "-c", asked], furnished, cache)


def test_there_are_blocks_and_commands() -> None:
    assert len(readme_world.list_blocks("python")) > 5
    assert {command.split()[3] for command in COMMANDS} >= {"demo", "methods", "layers", "features", "kernels"}


def test_the_number_of_methods_is_that_of_the_registry() -> None:
    count = len(METHODS)
    expected = [("", str(count - 1)), (str(count), ""), (str(count), "")]
    assert re.findall(r"(?:There are |^\* )(\d+) methods|Grad-CAM and (\d+) more", TEXT, re.MULTILINE) == expected


def test_the_answer_to_which_method_names_methods_and_public_functions() -> None:
    paragraph = re.search(r"^\*\*Which method\?\*\*.*?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert paragraph is not None
    names = re.findall(r"`(?:camtool\.)?([\w+-]+)(?:\(.*?\))?`", paragraph[0])
    assert len(names) == paragraph[0].count("`") // 2 - 1, "all but the command"
    assert "`camtool methods`" in paragraph[0]
    assert {"gradcam", "tokens", "recommend"} <= {*names}
    assert [name for name in names if name not in METHODS and name not in camtool.__all__] == []


def test_what_comes_back_has_what_the_table_lists() -> None:
    rows = re.findall(r"^\| (`result\..*?) \|", TEXT, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(?:result)?\.(\w+)(?:\(\))?`", row)]
    assert len(names) > 10
    fields = {field.name for field in dataclasses.fields(Explanation)}
    assert [name for name in names if name not in fields and not hasattr(Explanation, name)] == []


def test_the_methods_to_begin_with_are_registered() -> None:
    page = (readme_world.README.parent / "docs" / "index.md").read_text(encoding="utf-8")
    section = page.partition("## Which method should I use?")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z]+)`", section)
    assert len({*names}) > 5
    assert all(find_method(name).name == name for name in names)


@pytest.mark.parametrize("page", readme_world.PAGES, ids=lambda page: page.name)
def test_a_link_to_a_file_is_not_broken(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    files = [link for link in links if not link.startswith("http")]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(readme_world.README.read_text(encoding="utf-8").splitlines()) < 120
