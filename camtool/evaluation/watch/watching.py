"""``watch()``: look at a fixed set of images every k steps of a training, and raise an alarm for a shortcut."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from camtool.arguments.checks import check_count, check_number
from camtool.arguments.explain_arguments import to_list
from camtool.arguments.libraries import import_library, import_optional
from camtool.arguments.message_parts import format_count, format_points
from camtool.errors import MetricError, raise_interrupt
from camtool.evaluation.audit.trials import PROBABILITY_FLOOR
from camtool.evaluation.subject import Subject
from camtool.evaluation.watch.probe import LEAST_P, Alarm, Look, Place, Probe, compute_weight
from camtool.models import Loaded, Transform
from camtool.rendering.image_writing import remove_temporary_files, write_image
from camtool.rendering.written_files import SECONDS_TO_WRITE, replace_infinite

LOG_NAME, _DEFAULT_FOLDER = "watch.jsonl", "watch"

# What to do about alarms, as the last line of a watch.
_REPAIR = (
    "If that is a shortcut, audit = camtool.audit(model, photos, labels) tests more, and camtool.repair(model, photos, "
    "labels, audit) fits the last layer again without it."
)

Pixels = NDArray[np.uint8]
NAMES = ("tensorboard", "wandb", "mlflow")


class WrittenLook(NamedTuple):
    """The record of a look: its step, numbers by name, a picture, and sentences."""

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
    line = json.dumps({"step": look.step, "sheet": name, **replace_infinite(look.scalars), "sentences": look.sentences})
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
    entries = [] if to is None else to_list(to)
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


class ShortcutWarning(UserWarning):
    """A class is recognized by a place of the image."""


def watch(
    model: nn.Module | Loaded,
    images: Sequence[Any] | Tensor,
    labels: Sequence[int | str] | None = None,
    *,
    every: int = 100,
    out: str | os.PathLike[str] | None = None,
    to: Any = None,
    level: float = 0.05,
    most_time: float | None = 0.03,
    method: str = "gradcam",
    transform: Transform | None = None,
    class_names: Sequence[str] | None = None,
    device: Any = None,
    seed: int = 0,
) -> Watch:
    """Look at a fixed set of images every k steps of a training; the training is the same without it, bit for bit.

        with camtool.watch(model, photos, labels, every=100, out="watch") as watch:
            for batch in loader:
                ...
                optimizer.step()
                watch.step()
        print(watch.alarm)

    Numbers and maps of each look are written. An alarm is raised if a class is recognized by a place of the image; in
    a whole training without a cause at most with probability ``level``. See docs/watch.md for what it cannot see.

    Args:
        model: The classifier that is trained, also in ``DistributedDataParallel``: then rank 0 alone looks.
        images: 1 to 32 images, as the model will meet them. Eight for each of four classes are a good choice.
        labels: The class of each, by index or by name. Without them there is no alarm, and the maps are those of the
            model's first answers.
        every: Steps between two looks.
        out: A folder for ``watch.jsonl`` and the pictures. A second training gets the folder ``run-2`` in it.
        to: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, a ``SummaryWriter``, a run, a logger, or a list of these. By
            default the run of W&B or MLflow that is active, else the folder ``watch``.
        level: The probability of a false alarm in the whole training.
        most_time: The largest share of the time of the training: a look that would exceed it is postponed. None for no
            limit.
        method: The method of the maps, a formula of activations and gradients.
        transform: From a PIL image to the model's input, if ``model`` does not bring it.
        class_names: The names of the classes, if ``model`` does not bring them.
        device: The device of the inputs; by default the model's.
        seed: The seed of permutations and controls. No global generator is used.

    Raises:
        MetricError: An argument does not fit, or the model is no classifier.
    """
    check_count("every", every, error=MetricError)
    check_number("level", level, above=0, below=1, error=MetricError)
    check_number("most_time", most_time, above=0, most=1, optional=True, error=MetricError)
    subject = Subject(model, transform, class_names, device)
    probe = Probe(subject, images, labels, method) if _is_first_rank() else None
    return Watch(probe, every, None if out is None else Path(out), to, level, most_time, seed)


class Watch:
    """Looks at images during a training; made by :func:`camtool.watch`.

    Attributes:
        steps: Steps so far.
        looks: Looks so far.
        postponed: Looks that were due and would have taken too much time; each was made up for later.
        seconds: The time of all looks, and that of the training without them.
        alarms: The alarms, at most one for each class.
        not_tested: The classes that cannot raise an alarm, and why; after an error, the step at which the looks ended.
    """

    def __init__(
        self,
        probe: Probe | None,
        every: int,
        folder: Path | None,
        to: Any,
        level: float,
        most_time: float | None,
        seed: int,
    ) -> None:
        self._every, self._folder, self._to, self._seed = every, folder, to, seed
        self._level, self._most_time = level, most_time
        self.steps = self.looks = self.postponed = 0
        self.seconds = {"looks": 0.0, "training": 0.0}
        self.alarms: list[Alarm] = []
        self.not_tested: list[str] = []
        self._evidence: dict[int, float] = {}
        self._writers: list[Writer] = []
        self._last_due, self._is_waiting = 0, False
        self._epoch: int | None = None
        self._quickest, self._resumed_at = 0.0, time.perf_counter()
        self._probe = probe
        if probe is not None:
            self._prepare_classes(probe)

    def _prepare_classes(self, probe: Probe) -> None:
        self._evidence = dict.fromkeys(probe.tested, 0.0)
        untested = [f"'{probe.name_class(target)}'" for target in probe.classes if target not in self._evidence]
        if not probe.has_labels:
            self.not_tested = ["There are no labels, so there is no alarm."]
        elif len(probe.classes) == 1:
            self.not_tested = [f"All images are of one class, {untested[0]}, so there is no alarm; add other classes."]
        elif untested:
            text = f"{', '.join(untested)}: too few images for an alarm. Labels of {len(probe.targets)} images"
            text += f" permuted at random give p > {LEAST_P}; eight images for each of four classes are enough."
            self.not_tested = [text]
        for text in self.not_tested:
            warnings.warn(text, stacklevel=4)

    @property
    def alarm(self) -> Alarm | None:
        """The first alarm; None if there is none."""
        return self.alarms[0] if self.alarms else None

    @property
    def share_of_time(self) -> float:
        """The time of the looks, relative to that of the training without them."""
        return self.seconds["looks"] / max(self.seconds["training"], 1e-9)

    def __repr__(self) -> str:
        alarms = [*(alarm.sentence for alarm in self.alarms), _REPAIR] if self.alarms else ["no alarm"]
        return "\n".join([f"<Watch: {format_count(self.looks, 'look')}>", *alarms, *self.not_tested])

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, loggers: Iterable[Any] = (), folder: Path | None = None) -> None:
        """Open the writers, and look before the first step, which takes no time from the training.

        Args:
            loggers: Loggers to write to beside ``folder``, if the user gave nothing.
            folder: The folder, if the user gave nothing.
        """
        if self._probe is None:
            return
        if self._to is None and self._folder is None and folder is not None:
            self._writers = find_writers([*loggers], folder)
        else:
            self._writers = find_writers(self._to, self._folder)
        self._look(self._probe)
        self.seconds["looks"] = 0.0
        self._resumed_at = time.perf_counter()

    def stop(self) -> None:
        """Look once more if a look waits and its time is there, and end."""
        if self._probe is not None and self._is_waiting:
            self._look_if_quick(self._probe)
        self._is_waiting = False

    def step(self, step: int | None = None, epoch: int | None = None) -> None:
        """Count a step of the training, and look if it is time to.

        Args:
            step: The number of steps so far; by default one more.
            epoch: The epoch, for the log and the alarm.
        """
        self.steps = self.steps + 1 if step is None else step
        self._epoch = self._epoch if epoch is None else epoch
        if self._probe is None or not (self._is_waiting or self.steps - self._last_due >= self._every):
            return
        if not self._is_waiting:
            self._last_due = self.steps
        self._look_if_quick(self._probe)

    def _look_if_quick(self, probe: Probe) -> None:
        """Look if the time is there, or else let the look wait."""
        self._pause()
        allowed = None if self._most_time is None else self._most_time * self.seconds["training"]
        if allowed is None or self.seconds["looks"] + self._quickest <= allowed:
            self._is_waiting = False
            self._look(probe)
        else:
            self.postponed += not self._is_waiting
            self._is_waiting = True

    def _pause(self) -> None:
        """Add the time since the last call to that of the training."""
        now = time.perf_counter()
        self.seconds["training"] += now - self._resumed_at
        self._resumed_at = now

    def _look(self, probe: Probe) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # what is queued belongs to the training
        self._pause()
        begin = time.perf_counter()
        is_first, sentences = self.looks == 0, list[str]()
        try:
            sentences = self._record(probe, probe.look())
        except Exception as error:
            raise_interrupt(error)
            # The training is worth more than a look at it; the first look tells about wrong arguments.
            if is_first:
                raise
            self._probe = None
            text = f"The looks ended at step {self.steps}, so no alarm follows: {type(error).__name__}: {error}"
            self.not_tested.append(text)
            warnings.warn(text, stacklevel=4)
        spent = time.perf_counter() - begin
        self.seconds["looks"] += spent
        self._quickest = min(self._quickest or spent, spent)
        self._resumed_at = time.perf_counter()
        for sentence in sentences:
            warnings.warn(sentence, ShortcutWarning, stacklevel=4)

    def _record(self, probe: Probe, look: Look) -> list[str]:
        """Write a look, and return a sentence for each new alarm."""
        self.looks += 1
        weight, raised, scalars = compute_weight(self.looks), list[Alarm](), dict(look.scalars)
        for target, before in self._evidence.items():
            has_alarm = any(alarm.target == target for alarm in self.alarms)
            z, place = probe.test(look, target, self._seed + self.looks, has_alarm=has_alarm)
            scalars[f"place/{target}"] = z
            if place is not None and max(place.removal, place.transplant) >= PROBABILITY_FLOOR:
                self._evidence[target] = before + weight / LEAST_P
                if self._evidence[target] >= self._needed > before:
                    raised.append(self._make_alarm(probe, target, place))
            scalars[f"evidence/{target}"] = self._evidence[target] / self._needed
        self.alarms += raised
        epoch = {} if self._epoch is None else {"epoch": float(self._epoch)}
        scalars |= {"look": self.looks, "share_of_time": self.share_of_time, "postponed": self.postponed} | epoch
        written = WrittenLook(self.steps, scalars, probe.draw(look), [alarm.sentence for alarm in raised])
        for write in self._writers:
            write(written)
        return written.sentences

    @property
    def _needed(self) -> float:
        """The evidence of an alarm: the level is shared by the classes."""
        return len(self._evidence) / self._level

    def _make_alarm(self, probe: Probe, target: int, place: Place) -> Alarm:
        epoch, name = self._epoch, probe.name_class(target)
        when = f"Step {self.steps}" if epoch is None else f"Epoch {epoch}, step {self.steps}"
        count, shares = format_count(int(probe.is_of(target).sum()), "image"), place.shares
        sentence = (
            f"{when}: '{name}' is recognized by {place.name}: {shares[0]:.0%} of the heat of {count}, "
            f"{shares[1]:.0%} of that of other classes (p = {place.p:.2g}). Covering it changes the probability by "
            f"{format_points(-place.removal)} beyond covering other places; pasting it changes that of other images by "
            f"{format_points(place.transplant)}. Is it the object?"
        )
        evidence = self._evidence[target]
        effects = place.removal, place.transplant
        return Alarm(self.steps, epoch, target, name, place.name, place.p, evidence, *effects, sentence)

    def make_lightning_callback(self) -> Any:
        """Return a callback for ``lightning.Trainer(callbacks=[...])``; it writes to the trainer's loggers by default.

        Raises:
            MetricError: Neither lightning nor pytorch_lightning is installed, or the import of the one that is fails.
        """
        need = "the callback needs Lightning", "lightning", MetricError
        lightning = (
            import_optional("lightning.pytorch", *need)
            or import_optional("pytorch_lightning", *need)
            or import_library("lightning.pytorch", *need)
        )
        base: Any = lightning.Callback
        watch = self

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

    def make_hugging_face_callback(self) -> Any:
        """Return a callback for ``transformers.Trainer(callbacks=[...])``.

        Raises:
            MetricError: transformers is not installed.
        """
        transformers = import_library("transformers", "the callback needs transformers", "transformers", MetricError)
        base: Any = transformers.TrainerCallback
        watch = self

        class WatchCallback(base):  # type: ignore[misc]  # the library may be missing
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.start((), Path(args.output_dir) / "watch")

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.step(state.global_step, int(state.epoch or 0))

            def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch.stop()

        return WatchCallback()


def _is_first_rank() -> bool:
    """Return True without distributed training, and on rank 0."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
