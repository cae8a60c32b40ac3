"""Callbacks of Lightning and of Hugging Face's Trainer that look while they train."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from camtool.arguments.libraries import import_library, import_optional
from camtool.errors import MetricError


class Steps(Protocol):
    """Receiver of the steps of a training: a :class:`camtool.Watch`."""

    def start(self, loggers: Iterable[Any], folder: Path) -> None:
        """Begin before the first step."""

    def step(self, step: int, epoch: int) -> None:
        """Count a step."""

    def stop(self) -> None:
        """End after the last step."""


def make_lightning_callback(watch: Steps) -> Any:
    """Return a ``Callback`` of Lightning that counts optimizer steps and writes to the trainer's loggers."""
    base: Any = _import_lightning().Callback

    class WatchCallback(base):  # type: ignore[misc]  # the library may be missing
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            watch.start(trainer.loggers, Path(trainer.default_root_dir) / "watch")

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            watch.step(trainer.global_step, trainer.current_epoch)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            watch.stop()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            watch.stop()

    return WatchCallback()


def make_hugging_face_callback(watch: Steps) -> Any:
    """Return a ``TrainerCallback`` of transformers that counts optimizer steps."""
    base: Any = import_library(
        "transformers", "the callback needs transformers", "transformers", MetricError
    ).TrainerCallback

    class WatchCallback(base):  # type: ignore[misc]  # the library may be missing
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.start((), Path(args.output_dir) / "watch")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.step(state.global_step, int(state.epoch or 0))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.stop()

    return WatchCallback()


def _import_lightning() -> Any:
    """Return Lightning, under its new name or its old one.

    Raises:
        MetricError: Neither is installed, or the import of the one that is fails.
    """
    need = "the callback needs Lightning", "lightning", MetricError
    return (
        import_optional("lightning.pytorch", *need)
        or import_optional("pytorch_lightning", *need)
        or import_library("lightning.pytorch", *need)
    )
