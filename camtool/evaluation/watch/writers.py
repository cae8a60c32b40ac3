"""Writers of a watch: to a folder, TensorBoard, W&B, MLflow, or a logger of Lightning."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camtool.arguments.libraries import import_library
from camtool.errors import MetricError
from camtool.rendering.image_writing import remove_temporary_files, write_image
from camtool.rendering.written_files import SECONDS_TO_WRITE

LOG_NAME, _DEFAULT_FOLDER = "watch.jsonl", "watch"

Pixels = NDArray[np.uint8]
NAMES = ("tensorboard", "wandb", "mlflow")


class WrittenLook(NamedTuple):
    """What is kept of a look: its step, numbers by name, a picture, and what it says in words."""

    step: int
    scalars: Mapping[str, float]
    sheet: Pixels
    sentences: list[str]


Writer: TypeAlias = Callable[[WrittenLook], None]


def open_folder(folder: Path) -> Writer:
    """Make the folder, and return the writer of a line of JSON and a picture for each look."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_temporary_files([folder], least_age=SECONDS_TO_WRITE)  # other trainings may write to it, too
    return partial(_write_to_folder, folder)


def _write_to_folder(folder: Path, look: WrittenLook) -> None:
    name = f"step-{look.step:08}.png"
    write_image(folder / name, look.sheet)
    # JSON has no NaN.
    numbers = {key: value if np.isfinite(value) else None for key, value in look.scalars.items()}
    line = json.dumps({"step": look.step, "sheet": name, **numbers, "sentences": look.sentences})
    with (folder / LOG_NAME).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _write_to_tensorboard(summary: Any, look: WrittenLook) -> None:
    """Write with a ``SummaryWriter``."""
    for key, value in _name(look.scalars).items():
        summary.add_scalar(key, value, look.step)
    summary.add_image("camtool/maps", look.sheet, look.step, dataformats="HWC")
    for sentence in look.sentences:
        summary.add_text("camtool/alarm", sentence, look.step)


def _write_to_wandb(run: Any, look: WrittenLook) -> None:
    """Write to a run of W&B, by a step of its own, as the run's own step belongs to the training."""
    texts = {"camtool/alarm": " ".join(look.sentences)} if look.sentences else {}
    image = import_module("wandb").Image(look.sheet)
    run.log({**_name(look.scalars), "camtool/step": look.step, "camtool/maps": image, **texts})


def _write_metrics(logger: Any, look: WrittenLook) -> None:
    """Write with what has ``log_metrics(metrics, step=)``: the module ``mlflow``, or a logger of Lightning.

    The picture is written if the logger takes one.
    """
    logger.log_metrics(_name(look.scalars), step=look.step)
    name = f"camtool/step-{look.step:08}.png"
    if hasattr(logger, "run_id") and hasattr(logger.experiment, "log_image"):  # MLFlowLogger
        logger.experiment.log_image(logger.run_id, look.sheet, name)
    elif hasattr(logger, "experiment") and hasattr(logger, "log_image"):  # WandbLogger
        logger.log_image(key="camtool/maps", images=[look.sheet])
    elif hasattr(logger, "log_image"):
        logger.log_image(look.sheet, name)


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
    writers = [make_writer(entry, folder) for entry in entries]
    if folder is not None or not writers:
        writers.append(open_folder(folder or _find_free(Path(_DEFAULT_FOLDER))))
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
        return partial(_write_to_tensorboard, entry if hasattr(entry, "add_scalar") else experiment)
    if hasattr(entry, "define_metric"):
        entry.define_metric("camtool/*", step_metric="camtool/step")
        return partial(_write_to_wandb, entry)
    if hasattr(entry, "log_metrics"):
        return partial(_write_metrics, entry)
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
