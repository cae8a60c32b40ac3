"""A run over many photos: which to read, where each result goes, and one line about each. It prints nothing."""

from __future__ import annotations

import errno
import glob
import stat
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camtool import filenames, images, overlay
from camtool.errors import ImageError, MethodError, NothingFoundError, TargetError, refuse_url
from camtool.manifest import MANIFEST, Entry, Manifest, open_manifest

if TYPE_CHECKING:
    from PIL import Image

    from camtool.explanation import Explainer, Explanation

__all__ = ["KINDS", "MANIFEST", "Entry", "Failure", "Job", "Output", "Plan", "Skipped", "Success", "plan", "run"]

KINDS = ("overlay", "heatmap", "mask", "raw")
"""The kinds of files that can be saved: the photo with the heatmap over it; the heatmap in colors, transparent where
the model did not look, and for that reason as PNG where JPEG is asked for; the photo times the heatmap; the method's
own values as ``.npy``, which lie on what the model saw and on nothing else."""


# ---------------------------------------------------------------------------------------------------- planning


@dataclass(frozen=True)
class Job:
    """A photo to explain.

    Attributes:
        source: Where it is.
        stem: Where its results go, relative to the output folder; each result adds its own ending.
    """

    source: Path
    stem: Path


@dataclass(frozen=True)
class Skipped:
    """Something with the suffix of a picture, or a folder, that is neither opened nor entered.

    Attributes:
        path: Where it is.
        reason: What it is, e.g. ``"a named pipe"``.
    """

    path: Path
    reason: str


@dataclass(frozen=True)
class Plan:
    """The photos that paths stand for.

    Attributes:
        jobs: The photos, in a stable order, each once.
        skipped: What was left out and may be missed.
    """

    jobs: list[Job]
    skipped: list[Skipped]


def plan(paths: Sequence[str], *, recursive: bool = False, out: Path | None = None) -> Plan:
    """List the photos that paths stand for, and where the results of each go.

    Args:
        paths: Files, folders, or patterns such as ``"photos/**/*.jpg"``. A folder stands for the pictures in it; a
            file is taken whatever its suffix.
        recursive: Take folders with all that is below them. Links to folders are not followed.
        out: The output folder; pictures below it are results, not photos, and are left out.

    Returns:
        The photos and what was skipped. The output tree mirrors that of each folder or pattern; where several are
        given, each has a branch of its name.

    Raises:
        ImageError: A path does not exist, is no file or folder, nothing that it stands for is a picture, or it is the
            output folder.
    """
    branches = [_branch(path, recursive=recursive, out=out) for path in paths]
    folders = [branch.base for branch in branches if branch.base is not None]
    placed: dict[Path, Path] = {}
    known: set[Path] = set()
    for base, photos in ((branch.base, branch.photos) for branch in branches):
        for photo in photos:
            place = photo.parent.resolve() / photo.name  # however its path is spelled
            if place in known:
                continue
            known.add(place)
            below = photo.relative_to(base) if base is not None else Path(photo.name)
            branch = Path(base.resolve().name) if base is not None and len(folders) > 1 else Path()
            placed.setdefault(photo, branch / below)
    skipped = {each.path: each for branch in branches for each in branch.skipped}
    return Plan(_without_collisions(placed), [*skipped.values()])


@dataclass(frozen=True)
class _Branch:
    """The contents of one path: its photos, the folder that their results mirror, if any, and what is skipped."""

    base: Path | None
    photos: list[Path]
    skipped: list[Skipped]


def _branch(path: str, *, recursive: bool, out: Path | None) -> _Branch:
    refuse_url("path", path, ImageError)
    if Path(path).is_file():
        return _Branch(None, [Path(path)], [])
    is_folder = Path(path).is_dir()
    base, found = _in_folder(Path(path), recursive=recursive, out=out) if is_folder else _in_pattern(path)
    results = out if out is not None and out.resolve().is_relative_to(base.resolve()) else None
    photos = [photo for photo in found if _is_photo(photo, results)]
    is_entered = recursive and is_folder
    skipped = [Skipped(each, reason) for each in found if (reason := _skip_reason(each, is_entered=is_entered))]
    if not photos:
        hint = " Its subfolders are read with --recursive." if is_folder and not recursive else ""
        left_out = f" {skipped[0].path} is {skipped[0].reason}." if skipped else ""
        raise ImageError(f"path {path!r}: no pictures there.{left_out}{hint}")
    return _Branch(base, photos, skipped)


def _in_folder(base: Path, *, recursive: bool, out: Path | None) -> tuple[Path, list[Path]]:
    """Return the folder, and all in it that is not hidden."""
    if out is not None and base.resolve() == out.resolve():
        raise ImageError(f"path {str(base)!r} is the output folder too; give the results another folder with --out.")
    found = sorted(base.rglob("*") if recursive else base.glob("*"))
    return base, [each for each in found if not any(part.startswith(".") for part in each.relative_to(base).parts)]


def _in_pattern(pattern: str) -> tuple[Path, list[Path]]:
    """Return the folder that the pattern begins with, and all that the pattern matches."""
    if not glob.has_magic(pattern):
        raise ImageError(f"path {pattern!r}: {_describe_odd(Path(pattern)) or 'there is no such file or folder'}.")
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207  Path's takes no absolute one
    return Path(*_until_magic(Path(pattern).parts)), sorted(map(Path, matches))


def _skip_reason(path: Path, *, is_entered: bool) -> str | None:
    """Return what a found path is, if the user may take it for a photo or a folder of photos that is read."""
    if is_entered and path.is_symlink() and path.is_dir():
        return "a link to a folder, which is not followed"
    return _describe_odd(path) if path.suffix.lower() in images.SUFFIXES else None


def _describe_odd(path: Path) -> str | None:
    """Return what a path is that exists and is neither a file nor a folder; nothing for others."""
    try:
        return _ODD.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return "a broken link" if path.is_symlink() else None


_ODD = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def _until_magic(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        if glob.has_magic(part):
            return
        yield part


def _is_photo(path: Path, results: Path | None) -> bool:
    if path.suffix.lower() not in images.SUFFIXES or path.name.startswith(".") or not path.is_file():
        return False
    return results is None or not path.resolve().is_relative_to(results.resolve())


def _without_collisions(placed: dict[Path, Path]) -> list[Job]:
    """Name results after the photo without its suffix; with it, where two would meet; and then with a number."""
    bare = Counter(_key(place.with_suffix("")) for place in placed.values())
    wanted = [place.with_suffix("") if bare[_key(place.with_suffix(""))] == 1 else place for place in placed.values()]
    stems = filenames.distinct([stem.as_posix() for stem in wanted])
    return [Job(source, Path(stem)) for source, stem in zip(placed, stems, strict=True)]


def _key(path: Path) -> str:
    return filenames.fold(path.as_posix())


# ----------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Output:
    """What is written, and how.

    Attributes:
        folder: Where to.
        kinds: Of :data:`KINDS`.
        format: The suffix of pictures: png, jpg or webp.
        alpha: How much the colors cover; by default as in :func:`camtool.overlay.blend`.
        colormap: A name that :func:`camtool.overlay.palette` knows.
        enlarge: Write overlays of small photos enlarged.
    """

    folder: Path
    kinds: Sequence[str] = ("overlay",)
    format: str = "png"
    alpha: float | None = None
    colormap: str = "heat"
    enlarge: bool = True


@dataclass(frozen=True)
class Success:
    """A photo that was explained, and what was written about it."""

    job: Job
    entries: list[Entry]


@dataclass(frozen=True)
class Failure:
    """A photo that could not be explained, and why."""

    job: Job
    reason: str


def run(
    explainer: Explainer, jobs: Sequence[Job], want: Any, output: Output, *, batch_size: int = 8
) -> Generator[Success | Failure, None, None]:
    """Explain the photos and write the results, a batch at a time; every file is whole or absent.

    Args:
        explainer: What explains.
        jobs: As :func:`plan` lists them.
        want: What is asked of each photo, as for :func:`camtool.explain`.
        output: Where the results go.
        batch_size: How many photos are held at once.

    Yields:
        One outcome a photo, in the order of the jobs. A photo that cannot be read, run or written, also for lack of
        memory, is a failure and never ends the run.

    Raises:
        TargetError: The model has no such class. This, as what follows, concerns all photos alike.
        MethodError: The model cannot serve the method. Where a method cannot serve some of the photos, e.g. one that
            is too large for it, these are failures.
        CamtoolError: Another run writes to the output folder.
        OSError: The disk is full, damaged or read-only; or the output folder cannot be used.
    """
    served = False
    with open_manifest(output.folder) as manifest:
        writer = _Writer(output, manifest)
        for start in range(0, len(jobs), batch_size):
            for job, explained in _explained_or_not(
                explainer, jobs[start : start + batch_size], want, strict=not served
            ):
                if isinstance(explained, str):
                    yield Failure(job, explained)
                    continue
                served = True
                yield writer.write(job, explained)


def _explained_or_not(
    explainer: Explainer, jobs: Sequence[Job], want: Any, *, strict: bool
) -> Iterator[tuple[Job, list[Explanation] | str]]:
    """Each photo's explanations, or why there are none. If a batch fails, it goes photo by photo to find the cause.

    Raises:
        MethodError: If ``strict``, the method can serve none of the photos.
    """
    photos = {job: _read(job) for job in jobs}
    readable = {job: photo for job, photo in photos.items() if not isinstance(photo, str)}
    together = _explained(explainer, list(readable.values()), want)
    if isinstance(together, list):
        found = dict(zip(readable, together, strict=True))
    else:
        found = {job: _explained(explainer, [photo], want) for job, photo in readable.items()}
    refusals = [each for each in found.values() if isinstance(each, MethodError)]
    if strict and refusals and len(refusals) == len(found):
        raise refusals[0]
    for job, photo in photos.items():
        made = photo if isinstance(photo, str) else found[job]
        if isinstance(made, (str, MethodError)):
            yield job, f"{job.source}: {made}" if job in found else str(made)
        else:
            yield job, _flat(made)


def _read(job: Job) -> Image.Image | str:
    try:
        return images.read(job.source)
    except ImageError as error:
        return str(error)
    except MemoryError as error:
        return f"{job.source}: {_reason(error)}"


def _explained(explainer: Explainer, photos: list[Any], want: Any) -> list[Any] | str | MethodError:
    """An entry of explanations a photo; or why there is none, which may be that the method cannot serve them."""
    try:
        found: list[Any] = explainer(photos, [want] * len(photos)) if photos else []
    except NothingFoundError as error:
        return str(error)
    except TargetError:
        raise
    except MethodError as error:
        return error
    except Exception as error:  # noqa: BLE001  a transform or a model may raise anything at a photo
        return _reason(error)
    return found


def _reason(error: Exception) -> str:
    """Return why a photo failed, in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    said = str(error).split("\n", 1)[0]
    if isinstance(error, MemoryError):
        return f"there is not enough memory for it{said and f' ({said})'}"
    return said or type(error).__name__


def _flat(nested: Any) -> list[Explanation]:
    if isinstance(nested, list):
        return [explanation for each in nested for explanation in _flat(each)]
    return [nested]


# ----------------------------------------------------------------------------------------------------- writing


_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors that the next photo would meet as well."""


class _Writer:
    """Writes the results of a run, each to a file of its own.

    Args:
        output: Where the results go.
        manifest: It gets a line for each result.
    """

    def __init__(self, output: Output, manifest: Manifest) -> None:
        self._output, self._manifest = output, manifest
        self._taken: set[str] = set()

    def write(self, job: Job, explanations: Sequence[Explanation]) -> Success | Failure:
        """Write all that was explained of a photo.

        Raises:
            OSError: The disk is at fault, not the photo.
        """
        entries = []
        try:
            for name, explanation in zip(_names(job, explanations), explanations, strict=True):
                entry = _entry(job, explanation, self._write_kinds(explanation, job.stem.with_name(name)))
                self._manifest.add(entry)
                entries.append(entry)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _DISK_FAULTS:
                raise
            return Failure(job, f"{job.source}: {_reason(error)}")
        self._manifest.complete(str(job.source))
        return Success(job, entries)

    def _write_kinds(self, explanation: Explanation, place: Path) -> dict[str, str]:
        """Write each kind of result; return kind → file, relative to the output folder."""
        files = {}
        for kind in self._output.kinds:
            suffix = _suffix(kind, self._output.format)
            ending = "" if kind == "overlay" else f".{kind}"
            path = place.with_name(f"{place.name}{ending}.{suffix}")
            self._claim(path)
            _write_kind(kind, explanation, self._output.folder / path, self._output)
            files[kind] = path.as_posix()
        return files

    def _claim(self, path: Path) -> None:
        """Take a name that no other result of this run has; a name that is taken is an error of camtool's own."""
        if _key(path) in self._taken:
            raise RuntimeError(f"its result would overwrite {path} of this run; please report this")
        self._taken.add(_key(path))


def _names(job: Job, explanations: Sequence[Explanation]) -> list[str]:
    return filenames.distinct(
        [filenames.name_result(job.stem.name, each.method, each.label, each.index) for each in explanations]
    )


def _entry(job: Job, explanation: Explanation, files: dict[str, str]) -> Entry:
    return Entry(
        image=str(job.source),
        method=explanation.method,
        layer=explanation.layer,
        label=explanation.label,
        index=explanation.index,
        score=explanation.score,
        probability=explanation.probability,
        warnings=explanation.warnings,
        box=explanation.box,
        files=files,
    )


def _write_kind(kind: str, explanation: Explanation, path: Path, output: Output) -> None:
    if kind == "overlay":
        explanation.save(path, alpha=output.alpha, colormap=output.colormap, enlarge=output.enlarge)
    elif kind == "heatmap":
        images.write(path, _colored(explanation, output.colormap))
    elif kind == "mask":
        images.write(path, explanation.masked())
    else:
        with images.writing(path) as file:
            np.save(file, explanation.raw)


def _suffix(kind: str, format: str) -> str:  # noqa: A002
    """Return the suffix of a kind of result; unseen parts of heatmaps are transparent, which JPEG cannot be."""
    if kind == "raw":
        return "npy"
    return "png" if kind == "heatmap" and format == "jpg" else format


def _colored(explanation: Explanation, colormap: str) -> Any:
    """Return the heatmap in colors, ``(H, W, 3)`` uint8; transparent, ``(H, W, 4)``, where the model did not look."""
    colors = overlay.colorize(explanation.heatmap, colormap)
    if explanation.seen.all():
        return colors
    picture = np.dstack([colors, np.full(colors.shape[:2], 255, np.uint8)])
    picture[~explanation.seen] = 0
    return picture
