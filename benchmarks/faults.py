"""Bytes of folder runs that are killed and continued: ``python -m benchmarks faults``.

A server process loads torch and the demo model once and forks a process for each start of a run, so that a start costs
little. Each round kills a new run of 200 small images at a random moment; every third round kills some of the starts
that continue it as well. The last start ends by itself. Then the folder must hold the files of an uninterrupted run,
byte for byte, and nothing else. ``--renames`` kills at each rename, in turn, instead of at random moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image

_OUT = Path(__file__).with_suffix(".json")
_BATCH = 8
_KILLED = -int(signal.SIGKILL)


def main(
    moments: Annotated[int, typer.Option(help="Random moments.")] = 50,
    images: Annotated[int, typer.Option(help="Images in a run.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 0,
    renames: Annotated[bool, typer.Option("--renames", help="Kill at each rename instead.")] = False,  # noqa: FBT002
    serve: Annotated[bool, typer.Option("--serve", hidden=True)] = False,  # noqa: FBT002
) -> None:
    """Kill, continue, compare, print, and write the result to a JSON file."""
    if serve:
        _serve()
        return
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "images", images)
        with Server(Path(folder) / "images") as server:
            if renames:
                found = kill_at_renames(server, Path(folder))
            else:
                found = kill_at_moments(server, Path(folder), moments, seed)
    found |= {"images": images, "seed": seed, "minutes": round((time.perf_counter() - started) / 60, 1)}
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}, indent=1))
    stored = json.loads(_OUT.read_text(encoding="utf-8")) if _OUT.exists() else {}
    stored["renames" if renames else "moments"] = found
    _OUT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if found["identical"] == found["rounds in all"] else 1)


def write_images(folder: Path, count: int) -> None:
    """Write small images of noise; each 29th is cut short."""
    folder.mkdir()
    numbers = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number:04}.png"
        Image.fromarray(numbers.integers(0, 255, (24, 32, 3), dtype=np.uint8)).save(path)
        if number % 29 == 28:
            path.write_bytes(path.read_bytes()[:900])


def kill_at_moments(server: Server, folder: Path, moments: int, seed: int) -> dict[str, Any]:
    """Kill runs at random moments until so many were killed; return how many of the continued runs are identical."""
    whole, seconds = _run_whole(server, folder)
    numbers, rounds, killed = random.Random(seed), [], 0
    while killed < moments:
        out = folder / f"round{len(rounds)}"
        kills = []
        for _ in range(min(moments - killed, 4 if len(rounds) % 3 == 2 else 1)):
            delay = numbers.uniform(0, seconds)
            if server.start(out, kill_after=delay)["status"] == _KILLED:
                kills.append({"seconds": round(delay, 3), "photos done": count_done(out)})
        killed += len(kills)
        rounds.append({"kills": kills, "identical": _finish(server, out, whole)})
    return {"killed": killed} | _sum_up(rounds)


def kill_at_renames(server: Server, folder: Path) -> dict[str, Any]:
    """Kill a run at its first rename, then continue it and kill it at the second of that start, and so on."""
    whole, _ = _run_whole(server, folder)
    rounds: list[dict[str, Any]] = []
    for is_after in (False, True):
        number, status = 0, _KILLED
        while status == _KILLED:
            number += 1
            out = folder / f"rename{number}{is_after}"
            status = server.start(out, kill_at=number, is_after=is_after)["status"]
            if status == _KILLED:
                rounds.append({"rename": number, "after": is_after, "identical": _finish(server, out, whole)})
    return _sum_up(rounds)


def _run_whole(server: Server, folder: Path) -> tuple[dict[str, bytes], float]:
    # The first start is not timed: it reads the images from the disk.
    server.start(folder / "first")
    seconds = server.start(folder / "whole")["seconds"]
    return read_files(folder / "whole"), seconds


def _finish(server: Server, out: Path, whole: dict[str, bytes]) -> bool:
    return server.start(out)["status"] == 0 and read_files(out) == whole


def _sum_up(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    identical = sum(each["identical"] for each in rounds)
    return {"rounds in all": len(rounds), "identical": identical, "rounds": rounds}


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def count_done(out: Path) -> int:
    """Return how many photos the journal of a killed run holds."""
    journal = out / ".photos.jsonl.part"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


# -------------------------------------------------------------------------------------------------------- processes


class Server:
    """A process that starts runs in processes of their own, by a fork.

    Attributes:
        images: The folder of images of the next runs.
    """

    def __init__(self, images: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.faults", "--serve"]
        # A fork has one thread only, so torch must have no others.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        root = Path(__file__).parents[1]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=root)
        self.images = images

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout  # noqa: PT018
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def start(
        self, out: Path, *, kill_after: float | None = None, kill_at: int | None = None, is_after: bool = False
    ) -> dict[str, Any]:
        """Start a run in a folder, or continue it; return its ``status`` and the ``seconds`` that it took.

        Args:
            out: The folder.
            kill_after: Kill the process after so many seconds, if it still runs.
            kill_at: Kill the process at this rename, counted from 1.
            is_after: Kill it after the rename, not before.
        """
        assert self._process.stdin and self._process.stdout  # noqa: PT018
        asked = {"images": str(self.images), "out": str(out), "kill_after": kill_after}
        print(json.dumps(asked | {"kill_at": kill_at, "is_after": is_after}), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _serve() -> None:
    """Answer each line of standard input by a run, whose process finds all that it imports."""
    import cv2  # noqa: F401  # draws overlays
    import torch

    import camtool
    import camtool.runs.executor

    Image.init()
    torch.set_num_threads(1)
    loaded = camtool.load("demo")
    explainer = camtool.Explainer(loaded)
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.perf_counter()
        process = os.fork()
        if process == 0:
            _run(loaded, explainer, asked)
        status = _wait(process, asked["kill_after"])
        print(json.dumps({"status": status, "seconds": time.perf_counter() - started}), flush=True)


def _wait(process: int, kill_after: float | None) -> int:
    """Wait for a process, and return its exit code; of a killed one minus the signal."""
    if kill_after is not None:
        time.sleep(kill_after)
        # It is not waited for yet, so its number is still its own.
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _run(loaded: Any, explainer: Any, asked: dict[str, Any]) -> None:
    """Run in this process, and end it."""
    from camtool.runs.executor import run_jobs
    from camtool.runs.job_list import plan_run
    from camtool.runs.run_folder.description import describe_run
    from camtool.runs.run_folder.resumable_folder import RunStart
    from camtool.runs.save_kinds import OutputSettings
    from camtool.targets import Top

    if asked["kill_at"] is not None:
        _kill_at_rename(asked["kill_at"], is_after=asked["is_after"])
    try:
        description = describe_run(loaded, ["gradcam"], {}, {"paths": [asked["images"]]})
        jobs = plan_run([asked["images"]]).jobs
        output = OutputSettings(Path(asked["out"]), ("overlay", "raw"), enlarge=False)
        start = RunStart(description)
        for _ in run_jobs(explainer, jobs, [Top(1)], output, batch_size=_BATCH, workers=2, start=start):
            pass
    except BaseException as error:  # noqa: BLE001  the process must not return to the loop of the server
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _kill_at_rename(number: int, *, is_after: bool) -> None:
    real, count = Path.replace, iter(range(1, 1_000_000))

    def replace(self: Path, target: Path) -> Path:
        is_last = next(count) == number
        if is_last and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        moved = real(self, target)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    Path.replace = replace  # type: ignore[method-assign]


if __name__ == "__main__":
    typer.run(main)
