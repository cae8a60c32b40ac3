"""Notebooks: each runs in a fresh kernel without warnings, and its stored outputs are those of a fresh run."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install nbclient ipykernel")

from tools import run_notebooks

NOTEBOOKS = [pytest.param(path, id=path.stem) for path in run_notebooks.NOTEBOOKS]

TRAINS = {"05-train-it-to-look"}
"""Notebooks that train for minutes, which is nothing to wait for with each change."""
RUN_ANEW = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.nightly] * (path.stem in TRAINS))
    for path in run_notebooks.NOTEBOOKS
]

# The mean difference per channel, of 255. Another CPU rounds differently, which moves edges of a picture by less;
# a map of another class differs by more than 10.
SIMILAR = 4.0

# Warnings of the notebook machinery in this process are not the notebooks' fault.
pytestmark = pytest.mark.filterwarnings(r"ignore:::(ipykernel|jupyter_client|jupyter_core|nbclient|nbformat|zmq)(\.|$)")


def read_notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def read_code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]


def list_warnings(outputs: list[Any]) -> list[str]:
    """Return what a cell wrote to stderr, as warnings are."""
    return ["".join(output["text"]) for output in outputs if output.get("name") == "stderr"]


def join_text(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value)


def read_texts(outputs: list[Any]) -> list[str]:
    """Return all text of a cell's outputs, in order."""
    texts = []
    for output in outputs:
        texts += [join_text(output["text"])] if "text" in output else []
        texts += [join_text(value) for kind, value in sorted(output.get("data", {}).items()) if "image/" not in kind]
    return texts


def read_pictures(outputs: list[Any]) -> list[np.ndarray]:
    encoded = [join_text(output["data"]["image/jpeg"]) for output in outputs if "image/jpeg" in output.get("data", {})]
    return [np.asarray(Image.open(BytesIO(base64.b64decode(text))), np.float64) for text in encoded]


def describe_difference(stored: list[Any], fresh: list[Any]) -> str:
    """Return how the stored outputs of a cell differ from fresh ones, or an empty string."""
    if read_texts(stored) != read_texts(fresh):
        return f"text: {read_texts(stored)} is stored, {read_texts(fresh)} came"
    before, after = read_pictures(stored), read_pictures(fresh)
    if [each.shape for each in before] != [each.shape for each in after]:
        return f"pictures of {[each.shape for each in before]} are stored, {[each.shape for each in after]} came"
    differences = [float(np.abs(a - b).mean()) for a, b in zip(before, after, strict=True)]
    return "" if max(differences, default=0) < SIMILAR else f"pictures differ by {differences} of 255"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_has_no_trace_of_the_machine(path: Path) -> None:
    assert read_notebook(path)["metadata"] == run_notebooks.METADATA
    assert all(cell["metadata"] == {} for cell in read_notebook(path)["cells"])


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebook_is_stored_with_its_outputs_and_small(path: Path) -> None:
    cells = read_code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run tools/run_notebooks.py"
    assert any(read_pictures(cell["outputs"]) for cell in cells)
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("path", RUN_ANEW)
def test_stored_outputs_equal_those_of_a_fresh_run(path: Path, tmp_path: Path) -> None:
    # A new matplotlib looks for fonts once and says so: here, not in a notebook.
    pytest.importorskip("matplotlib.font_manager", reason="needs matplotlib: pip install 'camtool[figures]'")
    cells = read_code_cells(path)
    fresh = run_notebooks.run_cells([join_text(cell["source"]) for cell in cells], tmp_path)
    for cell, outputs in zip(cells, fresh, strict=True):
        source = join_text(cell["source"])
        assert list_warnings(outputs) == [], f"after\n{source}"
        difference = describe_difference(cell["outputs"], outputs)
        assert not difference, f"run tools/run_notebooks.py; {difference}, after\n{source}"
    assert list(tmp_path.iterdir()) == [], "a notebook leaves no files"


def test_a_warning_in_a_cell_is_found(tmp_path: Path) -> None:
    fine, warned = run_notebooks.run_cells(["1", "import warnings\nwarnings.warn('beware')"], tmp_path)
    assert list_warnings(fine) == []
    assert "UserWarning: beware" in list_warnings(warned)[0]


def test_other_text_and_another_picture_are_found(tmp_path: Path) -> None:
    draw = "from PIL import Image; Image.new('RGB', (20, 20), {!r})"
    red, blue, one, two = run_notebooks.run_cells([draw.format("red"), draw.format("blue"), "1", "2"], tmp_path)
    assert describe_difference(red, red) == ""
    assert "pictures differ" in describe_difference(red, blue)
    assert "text" in describe_difference(one, two)


def test_progress_leaves_nothing_behind(tmp_path: Path) -> None:
    slow = (
        "import sys, time, camtool.progress as progress\n"
        "with progress.follow_step('Compiling'):\n    time.sleep(3)\nprint('done', file=sys.stderr)"
    )
    assert list_warnings(run_notebooks.run_cells([slow], tmp_path)[0]) == ["done\n"]
