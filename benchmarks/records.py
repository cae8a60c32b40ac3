"""Time and memory of a run's records: ``python -m benchmarks records``.

Runs of 100 to 10,000 small generated images with the demo model, each in a process of its own: milliseconds an image,
the largest memory, and the seconds until a finished run that is started again says so, after a clean end and after a
kill (then the hashes of all files are compared). Run nothing else meanwhile.
"""

from __future__ import annotations

from camtool.runs.process_settings import tune_process

tune_process()  # as `camtool run` does, before torch starts its threads

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import camtool
from benchmarks.faults import write_images
from benchmarks.paired import describe_machine
from camtool.runs.executor import run_jobs
from camtool.runs.job_list import plan_run
from camtool.runs.run_folder.description import describe_run
from camtool.runs.run_folder.photo_records import JOURNAL
from camtool.runs.run_folder.resumable_folder import RunStart
from camtool.runs.save_kinds import OutputSettings
from camtool.targets import Top

_COUNTS = (100, 1000, 10_000)
_OUT = Path(__file__).with_suffix(".json")


def main(
    counts: Annotated[list[int] | None, typer.Option("--count", help="Images in a run; may be repeated.")] = None,
    one: Annotated[bool, typer.Option("--one", hidden=True)] = False,  # noqa: FBT002
) -> None:
    """Measure, print, and write the numbers to a JSON file."""
    if one:
        print(json.dumps(_measure((counts or _COUNTS)[0])))
        return
    rows = {}
    for count in counts or _COUNTS:
        command = [sys.executable, "-m", "benchmarks", "records", "--one", "--count", str(count)]
        rows[str(count)] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"{count:6} images: {rows[str(count)]}", flush=True)
    result = {"machine": describe_machine(1), "rows": rows}
    _OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _measure(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        images, out = Path(folder) / "images", Path(folder) / "out"
        write_images(images, count)
        loaded = camtool.load("demo")
        explainer = camtool.Explainer(loaded)
        _run(loaded, explainer, images, Path(folder) / "warm", count=8)
        before = _get_peak()
        seconds = _run(loaded, explainer, images, out)
        found = {"milliseconds an image": round(1000 * seconds / count, 2), "peak MiB": _get_peak()}
        found |= {"peak MiB before": before, "seconds, finished": round(_run(loaded, explainer, images, out), 2)}
        (out / JOURNAL).touch()  # as a kill leaves it
        found["seconds, finished, after a kill"] = round(_run(loaded, explainer, images, out), 2)
        return found | {"peak MiB at the end": _get_peak()}


def _run(loaded: Any, explainer: Any, images: Path, out: Path, count: int | None = None) -> float:
    started = time.perf_counter()
    start = RunStart(describe_run(loaded, ["gradcam"], {}, {"paths": [str(images)]}))
    jobs = plan_run([str(images)]).jobs[:count]
    for _ in run_jobs(explainer, jobs, [Top(1)], OutputSettings(out, enlarge=False), start=start):
        pass
    return time.perf_counter() - started


def _get_peak() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    typer.run(main)
