"""The notebooks: each runs from top to bottom in a fresh kernel without a word of complaint, and is committed unrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = [pytest.param(path, id=path.stem) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
SECONDS_A_CELL = 120
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

# What the machinery says of itself, in this process, is not the notebooks' fault.
pytestmark = pytest.mark.filterwarnings(r"ignore:::(ipykernel|jupyter_client|jupyter_core|nbclient|nbformat|zmq)(\.|$)")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A function that runs sources, one a cell, in a fresh kernel, and gives each cell's outputs.

    The kernel works in an empty folder and imports this tree's camtool. An error in a cell is raised.
    """
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install nbclient ipykernel")
    # Where it is new, matplotlib looks through the typefaces, and says so: here, and not in a notebook.
    pytest.importorskip("matplotlib.font_manager", reason="needs matplotlib: pip install 'camtool[figures]'")
    from nbformat import v4

    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(sources):
        notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources])
        place = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=SECONDS_A_CELL, kernel_name="python3", resources=place).execute()
        return [cell.outputs for cell in notebook.cells]

    return run


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def cells_of(path):
    return read(path)["cells"]


def complaints(outputs):
    """What was written to stderr, as warnings are."""
    return [output.text for output in outputs if output.get("name") == "stderr"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_is_committed_unrun(path):
    for cell in cells_of(path):
        assert not cell.get("outputs"), f"cell {cell['id']!r} has outputs: clear them before you commit"
        assert cell.get("execution_count") is None, f"cell {cell['id']!r} has a number: clear it before you commit"


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_tells_nothing_of_the_machine_on_which_it_was_written(path):
    assert read(path)["metadata"] == METADATA
    assert all(cell["metadata"] == {} for cell in cells_of(path))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_runs_without_complaint(path, kernel, tmp_path):
    sources = ["".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "code"]
    for source, outputs in zip(sources, kernel(sources), strict=True):
        assert complaints(outputs) == [], f"after\n{source}"
    assert list(tmp_path.iterdir()) == []  # it leaves nothing in the folder in which it was opened


@pytest.mark.slow
def test_a_complaint_is_found(kernel):
    fine, warned = kernel(["1", "import warnings\nwarnings.warn('beware')"])
    assert complaints(fine) == []
    assert "UserWarning: beware" in complaints(warned)[0]
