"""True classes and metadata of photos, read from CSV files; and the photos that their rows and masks mean."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeAlias, TypeVar

from camtool.arguments.message_parts import format_count, suggest_names
from camtool.arguments.regular_files import read_regular
from camtool.errors import CamtoolError, RaiseAs
from camtool.runs.job_list import Plan

_IMAGE, _LABEL, _INDEX = "image", "label", "index"
# Names that tables of other tools give the column of the images; one of them counts if no column is called so.
_ALIASES = ("file", "filename", "file_name", "path")
# Spreadsheets write semicolons in countries with a decimal comma.
_DELIMITERS = ",;\t"

_T = TypeVar("_T")
# The line's number, the photo, and the class.
_Row: TypeAlias = tuple[int, str, str]


@dataclass(frozen=True)
class TrueClass:
    """The true class of a photo: its index and its label."""

    index: int
    label: str


@dataclass(frozen=True)
class TrueClasses:
    """The true classes of the photos of a plan.

    Attributes:
        path: The file that they come from; None if there is none.
        by_photo: Path or URL of the photo → its class.
        unused_rows: The number of rows about no photo of the plan.
    """

    path: Path | None
    by_photo: Mapping[Path | str, TrueClass]
    unused_rows: int

    def describe_gaps(self, plan: Plan) -> list[str]:
        """Return what to tell the user: photos of the plan without a row, and rows without a photo."""
        if self.path is None:
            return []
        missing = sum(job.source not in self.by_photo for job in plan.jobs)
        notes = [f"{format_count(missing, 'photo')} without a row in {self.path}."] if missing else []
        if self.unused_rows:
            notes.append(f"{format_count(self.unused_rows, 'row')} of {self.path} about no photo.")
        return notes


def read_truth_table(path: Path, plan: Plan, labels: Sequence[str] | None, class_count: int | None) -> TrueClasses:
    """Read the true classes of a plan's photos.

    The file is UTF-8, with a header. Column ``image`` holds the path of a photo, relative to the folder of the photos,
    or its file name if no other photo has it. Column ``label`` holds a class name or an index; if the names of the
    classes are numbers themselves, a column ``index`` says that indices are meant.

    Args:
        path: The CSV file.
        plan: The photos.
        labels: The names of the classes.
        class_count: The number of classes, if it is known without the names.

    Raises:
        CamtoolError: The file is no such table, a row names an unknown class or an ambiguous photo, or no row is about
            a photo of the plan.
    """
    rows, is_index = _read_rows(path)
    find_class = _ClassFinder(labels, class_count, is_index=is_index)
    find_photo = _PhotoFinder(plan)
    by_photo: dict[Path | str, tuple[int, TrueClass]] = {}
    unused = 0
    for line, image, label in rows:
        place = f"--truth {path}, line {line}"
        true_class = _prefix_errors(place, find_class, label)
        photo = _prefix_errors(place, find_photo, image)
        if photo is None:
            unused += 1
            continue
        first, known = by_photo.setdefault(photo, (line, true_class))
        if known != true_class:
            raise CamtoolError(f"{place}: {image!r} is {true_class.label!r}, but line {first} says {known.label!r}.")
    if not by_photo:
        raise CamtoolError(
            f"--truth {path}: no row is about a photo of the run; the column image holds paths relative to the "
            "folder of the photos, or file names."
        )
    return TrueClasses(path, {photo: true_class for photo, (_, true_class) in by_photo.items()}, unused)


def match_photos(plan: Plan, names: Sequence[str], place: str) -> list[Path | str | None]:
    """Return the photo of a plan that each path or file name means, as in :func:`read_truth_table`; None for none.

    Raises:
        CamtoolError: A file name is that of several photos.
    """
    find_photo = _PhotoFinder(plan)
    return [_prefix_errors(place, find_photo, name) for name in names]


def read_metadata(path: Path, plan: Plan) -> dict[str, list[str | None]]:
    """Return the columns of a table but for image, label and index, in the order of the photos; None without a row.

    Raises:
        CamtoolError: The file is no table with a column image, a name is that of several photos, two rows about a photo
            differ, or none is about one.
    """
    place = f"--metadata {path}"
    refusal = CamtoolError(f"{place} is no text; give a CSV file with a column image.")
    with RaiseAs(lambda _: refusal, UnicodeDecodeError, csv.Error):
        text, delimiter = _open_table(path)
        reader = csv.DictReader(text, delimiter=delimiter)
        rows = [*reader]
    names = [*dict.fromkeys(reader.fieldnames or ())] if rows else []
    image = find_image_column(names)
    if image is None:
        columns_found = f"the columns {', '.join(map(repr, names))}" if rows else "no rows"
        raise CamtoolError(f"{place} has {columns_found}; it needs a column 'image' with paths or names of photos.")
    by_photo = _join_rows(plan, rows, names[image], place)
    rows_of_jobs = [by_photo.get(job.source, {}) for job in plan.jobs]
    columns = [name for name in names if name not in (names[image], _LABEL, _INDEX)]
    return {column: [row.get(column) or None for row in rows_of_jobs] for column in columns}


def _join_rows(
    plan: Plan, rows: Sequence[dict[str, str]], image_column: str, place: str
) -> dict[Path | str, dict[str, str]]:
    """Return the row of each photo that has one.

    Raises:
        CamtoolError: Two rows about a photo differ, or none is about one.
    """
    by_photo: dict[Path | str, dict[str, str]] = {}
    photos = match_photos(plan, [row[image_column] or "" for row in rows], place)
    for photo, row in zip(photos, rows, strict=True):
        if photo is not None and by_photo.setdefault(photo, row) != row:
            raise CamtoolError(f"{place} has two different rows about {photo}; leave one there.")
    if not by_photo:
        raise CamtoolError(f"{place}: no row is about a photo; give paths in the folder of the photos, or file names.")
    return by_photo


def match_masks(folder: Path, plan: Plan, place: str) -> dict[Path | str, Path]:
    """Return photo → mask: the file in a folder whose path there is that of the photo in its folder, without endings.

    The name alone is enough if no other photo has it. Photos that differ in their endings alone have masks with the
    whole name, e.g. ``a.jpg.png``.

    Raises:
        CamtoolError: A mask fits several photos, or a photo has several masks.
    """
    finders = _PhotoFinder(plan), _PhotoFinder(plan, is_bare=True)
    matched: dict[Path | str, Path] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = _remove_ending(str(path.relative_to(folder)))
        found = (_prefix_errors(f"{place}, mask {path}", find, name) for find in finders)
        photo = next((photo for photo in found if photo is not None), None)
        if photo is not None and matched.setdefault(photo, path) != path:
            raise CamtoolError(f"{place} has two masks of {photo}, {matched[photo]} and {path}; leave one there.")
    return matched


def _prefix_errors(place: str, find: Callable[[str], _T], text: str) -> _T:
    with RaiseAs(lambda error: CamtoolError(f"{place}: {error}"), _RowError):
        return find(text)


class _RowError(Exception):
    """A row is wrong; the message lacks the place."""


# -------------------------------------------------------------------------------------------------------- the table


def _open_table(path: Path) -> tuple[io.StringIO, str]:
    """Return the text of a table, and what separates its cells.

    Raises:
        UnicodeDecodeError: It is no text.
    """
    text = read_regular(path).decode("utf-8-sig")
    return io.StringIO(text, newline=""), max(_DELIMITERS, key=text.partition("\n")[0].count)


def _read_rows(path: Path) -> tuple[list[_Row], bool]:
    """Return the rows, and whether their classes are indices in any case."""
    with RaiseAs(lambda error: CamtoolError(f"--truth {path} cannot be read: {error}."), UnicodeDecodeError, csv.Error):
        text, delimiter = _open_table(path)
        reader = csv.reader(text, delimiter=delimiter)
        image, label, is_index = _find_columns(path, next(reader, []))
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    for line, row in rows:
        if len(row) <= max(image, label) or not row[image].strip() or not row[label].strip():
            raise CamtoolError(f"--truth {path}, line {line}: the row has no image or no label.")
    return [(line, row[image].strip(), row[label].strip()) for line, row in rows], is_index


def _find_columns(path: Path, header: Sequence[str]) -> tuple[int, int, bool]:
    """Return the places of the image and of the class in a row, and whether the class is an index in any case."""
    names = [name.strip().casefold() for name in header]
    image = find_image_column(header)
    columns = [name for name in (_INDEX, _LABEL) if name in names]
    if image is None or not columns:
        missing = _IMAGE if image is None else _LABEL
        raise CamtoolError(
            f"--truth {path}, line 1: there is no column {missing!r}. The first line must name the columns image "
            f"and label; found: {', '.join(map(repr, names)) or 'nothing'}."
        )
    return image, names.index(columns[0]), columns[0] == _INDEX


def find_image_column(header: Sequence[str]) -> int | None:
    """Return the place of the column ``image``, or of the only one with another name for it; None without one."""
    names = [name.strip().casefold() for name in header]
    aliases = [_IMAGE] if _IMAGE in names else [name for name in _ALIASES if name in names]
    return names.index(aliases[0]) if len(aliases) == 1 else None


# ------------------------------------------------------------------------------------------------------ the classes


class _ClassFinder:
    """Finds the class that a text means: a name, or an index."""

    def __init__(self, labels: Sequence[str] | None, class_count: int | None, *, is_index: bool) -> None:
        self._labels = None if labels is None else [str(label) for label in labels]
        self._count = class_count if labels is None else len(labels)
        self._is_index = is_index
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for index, label in enumerate(self._labels or ()):
            self._by_name[_fold(label)].append(index)

    def __call__(self, text: str) -> TrueClass:
        index = self._find_index(text)
        return TrueClass(index, f"class {index}" if self._labels is None else self._labels[index])

    def _find_index(self, text: str) -> int:
        named = [] if self._is_index else self._by_name.get(_fold(text), [])
        if text.isascii() and text.isdecimal():
            return self._check_number(int(text), text, named)
        if not named:
            raise self._build_unknown_error(text)
        if len(named) > 1:
            raise _RowError(f"label {text!r} names the classes {', '.join(map(str, named))}; give one of the indices.")
        return named[0]

    def _check_number(self, number: int, text: str, named: Sequence[int]) -> int:
        """Return the index that a number means, which is also the name of these classes."""
        if named and [*named] != [number]:
            raise _RowError(
                f"label {text!r} is the name of class {named[0]} and the index of another; give indices in a column "
                "'index' instead of 'label'."
            )
        if self._count is not None and number >= self._count:
            raise _RowError(f"class {number} does not exist: the model has {self._count}, 0 to {self._count - 1}.")
        return number

    def _build_unknown_error(self, text: str) -> _RowError:
        if self._is_index:
            return _RowError(f"index {text!r} is not a number of a class.")
        if self._labels is None:
            return _RowError(f"label {text!r} is a name, but no class names are known; give them with --labels FILE.")
        suggestion = suggest_names(text, self._labels)
        return _RowError(f"label {text!r} is not among the {len(self._labels)} classes.{suggestion}")


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


# ------------------------------------------------------------------------------------------------------- the photos


class _PhotoFinder:
    """Finds the photo that a text means: its path, its path below a folder, or its file name.

    Args:
        plan: The photos.
        is_bare: Texts have no ending, as the names of masks have another one.
    """

    def __init__(self, plan: Plan, *, is_bare: bool = False) -> None:
        paths, below, names = (defaultdict[str, dict[Path | str, None]](dict) for _ in range(3))
        to_key = _remove_ending if is_bare else _normalize
        for job in plan.jobs:
            source = job.source
            paths[to_key(str(source))][source] = None
            names[to_key(job.name)][source] = None
            for folder in plan.folders:
                relative = _find_relative(source, folder)
                if relative is not None:
                    below[to_key(relative)][source] = None
            if isinstance(source, Path):
                paths[to_key(str(source.parent.resolve() / source.name))][source] = None
        self._tables = (below, paths, names)
        self._advice = "give its path in the folder"
        if is_bare:
            self._advice = "give the mask the path of its photo in the folder, or its whole name, e.g. a.jpg.png"

    def __call__(self, text: str) -> Path | str | None:
        """Return the photo; None if the plan has no such photo."""
        # The paths of a plan may be absolute, and those of the table relative to the working directory.
        texts = [text, text.replace("\\", "/"), str(Path(text).absolute())]
        for key in dict.fromkeys(map(_normalize, texts)):
            for table in self._tables:
                matches: list[Path | str] = [*table.get(key, ())]
                if len(matches) > 1:
                    raise _RowError(
                        f"image {text!r} is the name of {len(matches)} photos, e.g. {matches[0]} and {matches[1]}; "
                        f"{self._advice}."
                    )
                if matches:
                    return matches[0]
        return None


def _find_relative(source: Path | str, folder: Path | str) -> str | None:
    """Return the path of a photo below a folder, or its URI below that of a folder; None if it is not below."""
    if isinstance(source, str):
        start = f"{folder}/"
        return source[len(start) :] if isinstance(folder, str) and source.startswith(start) else None
    return str(source.relative_to(folder)) if isinstance(folder, Path) and source.is_relative_to(folder) else None


def _normalize(path: str) -> str:
    # Systems differ in how they write accents in file names.
    return unicodedata.normalize("NFC", PurePath(path).as_posix())


def _remove_ending(path: str) -> str:
    whole = PurePath(_normalize(path))
    return (whole.parent / whole.stem).as_posix()
