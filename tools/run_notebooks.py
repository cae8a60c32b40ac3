"""Run the notebooks and store them with their outputs: ``python tools/run_notebooks.py [NOTEBOOK ...]``.

GitHub shows stored outputs, so a reader sees the pictures without running anything. Pictures are stored small.
``tests/test_notebooks.py`` runs the notebooks again and compares the outputs.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# A GitHub page shows a notebook about 800 pixels wide; half of that is enough to follow a lesson.
WIDEST = 720
SECONDS_A_CELL = 1200


def run_cells(sources: list[str], folder: Path) -> list[list[Any]]:
    """Run cells in a fresh kernel that imports this checkout's camtool, and return the outputs of each.

    Args:
        sources: The code of each cell.
        folder: The working directory of the kernel.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    place = {"metadata": {"path": str(folder)}}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Joined streams are what a reader sees at the end: a line of progress that was written over is gone.
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS_A_CELL, kernel_name="python3", resources=place, coalesce_streams=True
    )
    asyncio.run(client.async_execute(env=environment))  # closes its event loop, which client.execute leaves open
    return [[clean_output(output) for output in cell.outputs if not is_blank(output)] for cell in notebook.cells]


def is_blank(output: Any) -> bool:
    """Return True for a stream of white space alone, which progress leaves when it is done."""
    return output.output_type == "stream" and not output.text.strip()


def clean_output(output: Any) -> Any:
    """Return an output as it is stored: no execution count, no metadata of the machine, pictures as small JPEG."""
    output.pop("execution_count", None)
    if output.output_type == "execute_result":
        output.output_type = "display_data"  # an execute_result needs a count, which changes with each run
    if "metadata" in output:
        output.metadata = {}
    data = output.get("data", {})
    if "image/png" in data:
        data["image/jpeg"] = base64.b64encode(shrink_picture(base64.b64decode(data.pop("image/png")))).decode()
        # What stands for the picture in text may hold an address in memory; a card holds bytes that differ by machine.
        data.pop("text/plain", None)
        data.pop("text/html", None)
    return output


def shrink_picture(png: bytes) -> bytes:
    """Return a PNG as a JPEG of at most ``WIDEST`` pixels across."""
    picture = Image.open(BytesIO(png)).convert("RGB")
    if picture.width > WIDEST:
        size = WIDEST, round(picture.height * WIDEST / picture.width)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    stream = BytesIO()
    picture.save(stream, "JPEG", quality=80, optimize=True)
    return stream.getvalue()


def store_outputs(path: Path) -> None:
    """Run a notebook in an empty folder and write it back with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with tempfile.TemporaryDirectory() as folder:
        outputs = run_cells([cell.source for cell in code], Path(folder))
    for number, (cell, stored) in enumerate(zip(code, outputs, strict=True), 1):
        cell.outputs, cell.execution_count, cell.metadata = stored, number, {}
    notebook.metadata = METADATA
    nbformat.write(notebook, path)


def main() -> None:
    """Store the outputs of the notebooks that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS)
    for path in parser.parse_args().notebooks:
        store_outputs(path)


if __name__ == "__main__":
    main()
