"""Exact centers of networks whose measured ones differ: ``python -m benchmarks centers_exact``.

``python -m benchmarks centers`` names networks whose measured centers lie further from the read ones than its bar. Is
the reading wrong, or does the border cut off what a cell sees? Here each convolution and pooling of these networks
averages its window, and norms, activations and gates are left out. So a cell is a mean of pixels with positive weights,
whose centroid is exact. On a wide image it is the center that should be read; on the image of the list, it lies where
the border alone moves it. What is left of a measured difference is the chance of a few draws of random weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.centers import RESULTS as MEASURED
from tests.zoo.averaging import average, build_trunk, find_exact_center

RESULTS = Path(__file__).with_suffix(".json")

TRUNKS = {
    "nasnetalarge": ("nasnetalarge", 128),
    "pnasnet5large": ("pnasnet5large", 128),
    "efficientnet_b3": ("efficientnet_b3", 128),
    "mobilenetv3_small_050": ("mobilenetv3_small_050", 224),
    "fasterrcnn_mobilenet_v3_large_320_fpn": ("mobilenet_v3_large", 128),
    "fasterrcnn_mobilenet_v3_large_fpn": ("mobilenet_v3_large", 128),
}
"""Name in ``benchmarks/centers.json`` → the network up to a layer with its centers, and the list's side."""

WIDER = 4
"""How many times as long the sides of the wide image are."""


def main(
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 1,
    only: Annotated[str, typer.Option(help="Only networks whose name contains this; writes no file.")] = "",
) -> None:
    """Compute, print and write the numbers to a JSON file in this folder."""
    torch.set_num_threads(threads)
    rows = []
    for row in iterate_rows(only):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if not only:
        RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


def iterate_rows(only: str = "") -> Iterator[dict[str, Any]]:
    """Yield for each network the measured and the exact distance from the read center, in cells."""
    measured = {row["name"]: row for row in json.loads(MEASURED.read_text(encoding="utf-8"))["networks"]}
    for name, (trunk, side) in TRUNKS.items():
        if only in name:
            network = average(build_trunk(trunk))
            exact, wide = (find_exact_center(network, pixels) for pixels in (side, WIDER * side))
            yield {
                "network": name,
                "side": side,
                "measured": {key: measured[name][key] for key in ("difference", "error")},
                "exact": round(exact.difference, 3) + 0.0,
                "wide_side": WIDER * side,
                "exact_wide": round(wide.difference, 3) + 0.0,  # no -0.0
            }


if __name__ == "__main__":
    typer.run(main)
