"""``watch()``: look at a fixed set of images every k steps of a training, and raise an alarm for a shortcut."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from camtool.arguments.checks import check_count, check_number
from camtool.arguments.libraries import import_library, import_optional
from camtool.arguments.messages import format_count, format_points
from camtool.errors import MetricError, raise_interrupt
from camtool.evaluation.audit.trials import PROBABILITY_FLOOR
from camtool.evaluation.subject import Subject
from camtool.evaluation.watch.probe import LEAST_P, Alarm, Look, Place, Probe, compute_weight
from camtool.evaluation.watch.writers import Writer, WrittenLook, find_writers
from camtool.models import Loaded, Transform


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
        self._last_due = self._epoch = 0
        self._has_epoch = self._is_waiting = False
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
        alarms = [alarm.sentence for alarm in self.alarms] or ["no alarm"]
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
        if epoch is not None:
            self._epoch, self._has_epoch = epoch, True
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
        epoch = {"epoch": float(self._epoch)} if self._has_epoch else {}
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
        epoch, name = (self._epoch if self._has_epoch else None), probe.name_class(target)
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
        base, watch = lightning.Callback, self

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
        base, watch = transformers.TrainerCallback, self

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
