"""Values of ``--truth``: folders named by the class, or a table of :mod:`camtool.runs.photo_tables`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from camtool.arguments.message_parts import suggest_names
from camtool.cli.options.model_options import LabelOptions
from camtool.errors import CamtoolError

if TYPE_CHECKING:
    from camtool.models import Loaded
    from camtool.runs.job_list import Plan
    from camtool.runs.photo_tables import TrueClasses

IMAGE_FOLDER = "imagefolder"

_TRUTH = (
    "True classes: 'imagefolder' if the photos are in folders named by their class, or a CSV file with the columns "
    "image and label."
)

Classes = Annotated[str | None, Option(metavar="TRUTH", help=f"{_TRUTH} Without it the answers are the classes.")]


@dataclass(frozen=True)
class TruthOptions(LabelOptions):
    """Options for the names of the classes, and for the true class of each photo.

    Attributes:
        only_wrong: Write only photos that are classified wrongly; needs --truth.
    """

    labels_csv: Annotated[
        str | None, Option("--truth", "--labels-csv", metavar="TRUTH", help=f"{_TRUTH} Adds right or wrong.")
    ] = None
    only_wrong: Annotated[bool, Option("--only-wrong")] = False

    @property
    def has_folders(self) -> bool:
        """True if folders name the classes, so that subfolders are read, too."""
        return self.labels_csv == IMAGE_FOLDER


def read_true_classes(
    truth: str | None, plan: Plan, loaded: Loaded, *, is_classifier: bool = False
) -> tuple[TrueClasses, Loaded]:
    """Return the true classes of the photos, none without ``truth``; and the model.

    Names of folders become the labels of a model that has none.

    Args:
        truth: The value of the option.
        plan: The photos.
        loaded: The model.
        is_classifier: Ask the model how many classes it has if it does not declare that.

    Raises:
        CamtoolError: The table cannot be read, names an unknown class, or the folders are not the model's classes.
    """
    from camtool.outputs.class_count import get_class_count
    from camtool.runs import photo_tables

    if truth is None:
        return photo_tables.TrueClasses(None, {}, 0), loaded
    is_asked = loaded.labels is None and (is_classifier or truth == IMAGE_FOLDER)
    count = _count_classes(loaded, plan) if is_asked else get_class_count(loaded.model)
    if truth == IMAGE_FOLDER:
        return _read_folders(plan, loaded, count)
    if not Path(truth).exists() or Path(truth).is_dir():
        raise CamtoolError(
            f"--truth {truth}: there is no such file; give imagefolder, or a table of image and label."
            f"{suggest_names(truth, [IMAGE_FOLDER])}"
        )
    return photo_tables.read_truth_table(Path(truth), plan, loaded.labels, count), loaded


def _read_folders(plan: Plan, loaded: Loaded, class_count: int | None) -> tuple[TrueClasses, Loaded]:
    from camtool.evaluation.annotations import find_classes
    from camtool.runs.photo_tables import TrueClass, TrueClasses

    photos = [Path(job.source) for job in plan.jobs]
    root = _find_root(plan, photos)
    classes = find_classes(photos, loaded.labels, root, class_count)
    names = sorted({photo.relative_to(root).parts[0] for photo in photos})
    if loaded.labels is None and not all(map(str.isdecimal, names)):
        loaded = replace(loaded, labels=names)
    labels = [f"class {index}" for index in range(max(classes) + 1)] if loaded.labels is None else loaded.labels
    by_index = {index: TrueClass(index, labels[index]) for index in {*classes}}
    by_photo = {job.source: by_index[index] for job, index in zip(plan.jobs, classes, strict=True)}
    return TrueClasses(root, by_photo, 0), loaded


def _find_root(plan: Plan, photos: list[Path]) -> Path:
    """Return the folder that all photos are in.

    Raises:
        CamtoolError: There are several.
    """
    root = next((Path(folder) for folder in plan.folders), photos[0].parent)
    if len(plan.folders) > 1 or not all(photo.is_relative_to(root) for photo in photos):
        raise CamtoolError("--truth imagefolder needs one folder with a folder for each class; give it as PATH alone.")
    return root


def list_true_classes(truth: str | None, plan: Plan, loaded: Loaded) -> tuple[list[int] | None, Loaded]:
    """Return the class of each photo of a folder, or None if the model's answers are the classes; and the model.

    Raises:
        CamtoolError: The classes cannot be read, or a photo has none.
    """
    if truth is None:
        return None, loaded
    known, loaded = read_true_classes(truth, plan, loaded, is_classifier=True)
    missing = [job.source for job in plan.jobs if job.source not in known.by_photo]
    if missing:
        raise CamtoolError(f"--truth {truth} has no row for {missing[0]}; add one, or leave the photo out.")
    return [known.by_photo[job.source].index for job in plan.jobs], loaded


def _count_classes(loaded: Loaded, plan: Plan) -> int | None:
    """Return the number of classes that a model declares, or else that of its answers to a photo that can be read."""
    from camtool.errors import ImageError
    from camtool.evaluation.subject import Subject
    from camtool.outputs.class_count import get_class_count

    count = get_class_count(loaded.model)
    for job in plan.jobs if count is None else ():
        with suppress(ImageError):  # the command lists it among those that could not be read
            subject = Subject(loaded)
            batch = next(subject.iterate_batches([str(job.source)], [None], 1))
            count = subject.score_classes(batch.images).shape[1]
            break
    return None if count is None else max(count, 2)  # a single logit tells two classes apart
