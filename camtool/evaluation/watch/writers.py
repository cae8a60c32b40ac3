"""Writers of a watch: to a folder, TensorBoard, W&B, MLflow, or a logger of Lightning."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.libraries import import_library
from camtool.errors import MetricError
from camtool.rendering.image_writing import remove_temporary_files, write_image
from camtool.rendering.written_files import SECONDS_TO_WRITE

LOG_NAME, _DEFAULT_FOLDER = "watch.jsonl", "watch"

Pixels = NDArray[np.uint8]
NAMES = ("tensorboard", "wandb", "mlflow")


class Writer(Protocol):
    """Something that keeps looks."""

    def write(self, step: int, scalars: Mapping[str, float], sheet: Pixels, sentences: Sequence[str]) -> None:
        """Keep the numbers and the picture of a look, and what it says in words."""


class FolderWriter:
    """Writes a line of JSON and a picture for each look.

    Args:
        folder: The folder; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporary_files([folder], least_age=SECONDS_TO_WRITE)  # other trainings may write to it, too

    def write(self, step: int, scalars: Mapping[str, float], sheet: Pixels, sentences: Sequence[str]) -> None:
        """Append a line to the log, and write the picture."""
        name = f"step-{step:08}.png"
        write_image(self._folder / name, sheet)
        # JSON has no NaN.
        numbers = {key: value if np.isfinite(value) else None for key, value in scalars.items()}
        line = json.dumps({"step": step, "sheet": name, **numbers, "sentences": [*sentences]})
        with (self._folder / LOG_NAME).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class TensorBoardWriter:
    """Writes with a ``SummaryWriter``."""

    def __init__(self, summary: Any) -> None:
        self._summary = summary

    def write(self, step: int, scalars: Mapping[str, float], sheet: Pixels, sentences: Sequence[str]) -> None:
        """Add scalars, an image and texts."""
        for key, value in _name(scalars).items():
            self._summary.add_scalar(key, value, step)
        self._summary.add_image("camtool/maps", sheet, step, dataformats="HWC")
        for sentence in sentences:
            self._summary.add_text("camtool/alarm", sentence, step)


class WandbWriter:
    """Writes to a run of W&B, by a step of its own, as the run's own step belongs to the training."""

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("camtool/*", step_metric="camtool/step")

    def write(self, step: int, scalars: Mapping[str, float], sheet: Pixels, sentences: Sequence[str]) -> None:
        """Log scalars, an image and texts at once."""
        texts = {"camtool/alarm": " ".join(sentences)} if sentences else {}
        image = import_module("wandb").Image(sheet)
        self._run.log({**_name(scalars), "camtool/step": step, "camtool/maps": image, **texts})


class MetricsWriter:
    """Writes with what has ``log_metrics(metrics, step=)``: the module ``mlflow``, or a logger of Lightning."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, step: int, scalars: Mapping[str, float], sheet: Pixels, sentences: Sequence[str]) -> None:
        """Log scalars, and the picture if the logger takes one."""
        logger, name = self._logger, f"camtool/step-{step:08}.png"
        logger.log_metrics(_name(scalars), step=step)
        if hasattr(logger, "run_id") and hasattr(logger.experiment, "log_image"):  # MLFlowLogger
            logger.experiment.log_image(logger.run_id, sheet, name)
        elif hasattr(logger, "experiment") and hasattr(logger, "log_image"):  # WandbLogger
            logger.log_image(key="camtool/maps", images=[sheet])
        elif hasattr(logger, "log_image"):
            logger.log_image(sheet, name)


def _name(scalars: Mapping[str, float]) -> dict[str, float]:
    return {f"camtool/{key}": value for key, value in scalars.items() if np.isfinite(value)}


def find_writers(to: Any, folder: Path | None) -> list[Writer]:
    """Return the writers for what the user gave, or else for runs that are active, or else for a folder.

    Args:
        to: A name in :data:`NAMES`, an object, a list of these, or None.
        folder: The folder, or None. If it holds the looks of another training, those of this one get a folder in it.

    Raises:
        MetricError: An entry of ``to`` is nothing that can be written to.
    """
    folder = None if folder is None else _find_free(folder)
    if to is None:
        to = []
    entries = [*to] if isinstance(to, (list, tuple)) else [to]
    if not entries and folder is None:
        entries = _list_active_runs()
    writers: list[Writer] = [make_writer(entry, folder) for entry in entries]
    if folder is not None or not writers:
        writers.append(FolderWriter(folder or _find_free(Path(_DEFAULT_FOLDER))))
    return writers


def _find_free(folder: Path) -> Path:
    """Return the folder, or the first one of ``run-2``, ``run-3``, ... in it without looks, or files of their names."""
    runs = (folder / f"run-{number}" if number > 1 else folder for number in count(1))
    free = next(run for run in runs if not ((run / LOG_NAME).exists() or any(run.glob("step-*.png"))))
    if free != folder:
        warnings.warn(f"{folder} holds the looks of another training; those of this one are in {free}.", stacklevel=5)
    return free


def _list_active_runs() -> list[Any]:
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    runs = [run for run in (getattr(wandb, "run", None),) if run is not None]
    return runs + ([mlflow] if mlflow is not None and mlflow.active_run() is not None else [])


def make_writer(entry: Any, folder: Path | None) -> Writer:
    """Return the writer for a name or an object, see :func:`find_writers`."""
    if isinstance(entry, str):
        entry = _open_by_name(entry, folder)
    experiment = getattr(entry, "experiment", None)
    if hasattr(entry, "add_scalar") or hasattr(experiment, "add_scalar"):
        return TensorBoardWriter(entry if hasattr(entry, "add_scalar") else experiment)
    if hasattr(entry, "define_metric"):
        return WandbWriter(entry)
    if hasattr(entry, "log_metrics"):
        return MetricsWriter(entry)
    raise MetricError(
        f"to: a {type(entry).__name__} is nothing to write to; give {', '.join(map(repr, NAMES))}, a SummaryWriter, a "
        "run of W&B, the module mlflow, or a logger of Lightning."
    )


def _open_by_name(name: str, folder: Path | None) -> Any:
    if name not in NAMES:
        raise MetricError(f"to: {name!r} is unknown; give {', '.join(map(repr, NAMES))}, or objects. out= is a folder.")
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    library = import_library(module, f"to: {name!r} needs a library", name, MetricError)
    if name == "tensorboard":
        return library.SummaryWriter(None if folder is None else str(folder))
    if name == "wandb" and library.run is None:
        raise MetricError("to: no run of W&B is active; call wandb.init() before, or give the run.")
    return library.run if name == "wandb" else library
