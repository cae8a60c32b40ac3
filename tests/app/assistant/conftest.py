"""Scenes with a planted shortcut, and a client that starts the real server."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult
from PIL import Image

import camtool
from camtool.demo.scenes import UNSEEN, Scene, draw_scene
from tests.cli.test_commands import camtool_

__all__ = ["ask", "camtool_", "draw", "scenes"]

SECONDS = 300  # it ends a test that hangs

SINGLE: dict[str, dict[str, Any]] = {
    "plain-heart.png": {"seed": 600, "classes": ["heart"]},
    "marked-star.png": {"seed": 600, "classes": ["star"], "mark": True},
    "two.png": {"seed": 500, "classes": ["heart", "star"], "objects": 2},
}
"""Photo of the folder ``single`` → its scene."""

Call = tuple[str, dict[str, Any]]


def draw(name: str) -> Scene:
    """Return the scene of a photo in the folder ``single``."""
    own = dict(SINGLE[name])
    return draw_scene(UNSEEN + own.pop("seed"), **own)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write hearts with a watermark, stars and arrows without it, and single photos."""
    folder = tmp_path_factory.mktemp("assistant") / "scenes"
    for number, label in enumerate(["heart", "star", "arrow"] * 20):
        (folder / "shapes" / label).mkdir(parents=True, exist_ok=True)
        scene = draw_scene(UNSEEN + number, classes=[label], mark=label == "heart")
        Image.fromarray(scene.image).save(folder / "shapes" / label / f"{number:02}.png")
    (folder / "single").mkdir()
    for name in SINGLE:
        Image.fromarray(draw(name).image).save(folder / "single" / name)
    Image.new("RGB", (128, 128), (127, 127, 127)).save(folder / "single" / "gray.png")
    return folder


def ask(calls: Sequence[Call], *arguments: object) -> list[CallToolResult]:
    """Start ``camtool mcp`` with these arguments, call its tools over standard input and output, and end it."""
    places = [str(Path(camtool.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "camtool", "mcp", *map(str, arguments)],
        env={"PYTHONPATH": os.pathsep.join(filter(None, places)), "OMP_NUM_THREADS": "1"},
    )

    async def run() -> list[CallToolResult]:
        with anyio.fail_after(SECONDS):
            async with Client(stdio_client(server)) as client:
                return [await client.call_tool(name, values) for name, values in calls]

    return anyio.run(run)
