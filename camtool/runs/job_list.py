"""The plan of a run: which photos are explained, and where the results of each go."""

from __future__ import annotations

import errno
import glob
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby, islice, takewhile
from pathlib import Path

from camtool.arguments.checks import check_not_url, is_web_address
from camtool.arguments.message_parts import suggest_names
from camtool.arguments.regular_files import describe_kind
from camtool.errors import ImageError, raise_interrupt
from camtool.inputs import image_files
from camtool.inputs.formats.dicom_series import are_of_one_series, holds_dicom
from camtool.inputs.formats.format_table import is_dicom_file
from camtool.runs import file_names

# Suffixes of other files that may hold a volume.
_VOLUME_FILES = (".nii", ".nii.gz", ".tif", ".tiff")

# Names in a folder that are compared with a path that does not exist.
_NAMES_COMPARED = 1000

# Folders that are searched for a series, to tell the user of it; a run may have a million.
_FOLDERS_READ = 20


@dataclass(frozen=True)
class Job:
    """A photo to explain.

    Attributes:
        source: The path of the photo, or its URL as a string; for a volume the folder of its slices.
        stem: The path of its results, relative to the output folder; each result adds its own ending.
        is_asked: False for a photo that a run recorded, and that is not in the user's paths any more. Anybody may have
            written such a record, so the photo is not opened.
    """

    source: Path | str
    stem: Path
    is_asked: bool = True

    @property
    def name(self) -> str:
        """The file name of the photo."""
        return file_names.name_url(self.source) if isinstance(self.source, str) else _get_name(self.source)


def _get_name(path: Path) -> str:
    """Return the name of a file or folder, also of ``"."`` and ``".."``. A link has its own name."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def parse_source(text: str) -> Path | str:
    """Return the source of a job that was written as text: a URL, or else a path."""
    return text if is_web_address(text) else Path(text)


@dataclass(frozen=True)
class Skipped:
    """A path with the suffix of an image, or a folder, that is not opened.

    Attributes:
        path: The path.
        reason: What it is, e.g. ``"a named pipe"``.
    """

    path: Path
    reason: str


@dataclass(frozen=True)
class Plan:
    """The photos in the user's paths.

    Attributes:
        jobs: The photos, in a stable order, each once.
        skipped: What is left out although the user may expect it.
        folders: The folders that the results mirror; strings for URIs.
    """

    jobs: list[Job]
    skipped: list[Skipped]
    folders: tuple[Path | str, ...] = ()


def plan_run(
    paths: Sequence[str], *, recursive: bool = False, out: Path | None = None, as_volumes: bool = False
) -> Plan:
    """List the photos in paths, and where the results of each go.

    Args:
        paths: Files, folders, patterns such as ``"photos/**/*.jpg"``, or URLs of photos. Of a folder, all images are
            taken. A file is taken regardless of its suffix.
        recursive: Include subfolders. Links to folders are not followed.
        out: The output folder. Images below it are results, not photos, and are left out.
        as_volumes: A folder with DICOM slices is one job. Of the other files, those that may hold a volume are taken.

    Returns:
        The photos and what was skipped. The output tree mirrors each folder or pattern. If there are several, each has
        a subfolder with its name.

    Raises:
        ImageError: A path does not exist, is neither file nor folder, holds no image, or is the output folder; or it is
            a slice of a volume.
    """
    check_not_url("out", out, ImageError)
    branches = [_build_branch(path, recursive=recursive, out=out, as_volumes=as_volumes) for path in paths]
    folders = [branch.base for branch in branches if branch.base is not None]
    placed = _place_photos(branches, is_mirrored=len(folders) > 1)
    skipped = {entry.path: entry for branch in branches for entry in branch.skipped}
    return Plan(_build_jobs(placed, as_volumes=as_volumes), [*skipped.values()], tuple(dict.fromkeys(folders)))


def check_existence(paths: Iterable[str]) -> None:
    """Check that local paths exist. What is in them is not read, and patterns and addresses are left out.

    Raises:
        ImageError: One does not, or is neither file nor folder.
    """
    for path in paths:
        if not ("://" in path or glob.has_magic(path) or os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH112, PTH113
            raise _build_missing_error(path)


def select_jobs(plan: Plan, *, limit: int | None = None, shuffle: bool = False, seed: int = 0) -> Plan:
    """Return the plan with its jobs in random order, or with the first ones only, or both.

    The order depends on the seed and the names of the results alone. So it is the same on every machine and in every
    version of Python; a lower limit gives a part of the same sample; a further photo leaves the others in their order.

    Args:
        plan: The plan.
        limit: The largest number of photos; by default all.
        shuffle: Put the photos into random order before the first ones are taken.
        seed: Number that chooses the random order.
    """
    jobs = plan.jobs
    if shuffle:
        jobs = sorted(jobs, key=lambda job: (_compute_rank(job, seed), job.stem))
    return replace(plan, jobs=jobs[:limit])


def find_series(sources: Iterable[Path | str]) -> tuple[Path, int] | None:
    """Return the first folder whose first two photos are slices of one DICOM series, and the number of its photos."""
    paths = [source for source in sources if isinstance(source, Path)]
    for number, (folder, group) in enumerate(groupby(paths, key=lambda path: path.parent)):
        photos = [*group]
        if number == _FOLDERS_READ:
            break
        if len(photos) > 1 and all(map(holds_dicom, photos[:2])) and are_of_one_series(*photos[:2]):
            return folder, len(photos)
    return None


def _compute_rank(job: Job, seed: int) -> bytes:
    name = job.stem.as_posix().encode("utf-8", "surrogatepass")
    return sha256(str(seed).encode() + b"/" + name).digest()


@dataclass(frozen=True)
class _Branch:
    """The contents of one path: the folder that the results mirror (if any), the photos, and what is skipped.

    Before the photos are chosen, all paths are in their place.
    """

    base: Path | None
    photos: Sequence[Path | str]
    skipped: list[Skipped]

    @property
    def files(self) -> list[Path]:
        """The photos that are no URLs."""
        return [photo for photo in self.photos if isinstance(photo, Path)]


def _place_photos(branches: Iterable[_Branch], *, is_mirrored: bool) -> dict[Path | str, Path]:
    """Return the path of each photo in the output folder; ``is_mirrored`` if each folder has a subfolder there."""
    placed: dict[Path | str, Path] = {}
    seen: set[Path | str] = set()
    for branch in branches:
        start = Path(branch.base.resolve().name) if is_mirrored and branch.base is not None else Path()
        for photo in branch.photos:
            # Only the folder is resolved: a link to a photo is a photo of its own, with its own name.
            resolved = photo if isinstance(photo, str) else photo.parent.resolve() / photo.name
            if resolved not in seen:
                seen.add(resolved)
                placed.setdefault(photo, start / _find_place(photo, branch.base))
    return placed


def _find_place(photo: Path | str, base: Path | None) -> Path:
    """Return the path of a photo below the folder or pattern it was found by; for others only its name."""
    if isinstance(photo, str):
        return Path(file_names.name_url(photo))
    # The folder of a volume may be the base itself.
    return photo.relative_to(base) if base is not None and base != photo else Path(_get_name(photo))


def _build_branch(path: str, *, recursive: bool, out: Path | None, as_volumes: bool) -> _Branch:
    if is_web_address(path):
        return _Branch(None, [path], [])
    check_not_url("path", path, ImageError)
    if Path(path).is_file():
        return _Branch(None, _join_slices(path, [Path(path)], is_folder=False)[0] if as_volumes else [Path(path)], [])
    is_folder = Path(path).is_dir()
    branch = _list_folder(Path(path), recursive=recursive, out=out) if is_folder else _list_pattern(path)
    branch = _choose_photos(branch, out, is_entered=recursive and is_folder)
    if as_volumes:
        photos, left = _join_slices(path, branch.files, is_folder=is_folder)
        others = [Skipped(photo, "an image, and no volume") for photo in left]
        branch = _Branch(branch.base, photos, [*branch.skipped, *others])
    if not branch.photos:
        hint = " To read its subfolders, add --recursive." if is_folder and not recursive else ""
        raise ImageError(f"path {path!r}: no {_describe_lack(branch.skipped, as_volumes=as_volumes)}{hint}")
    return branch


def _choose_photos(branch: _Branch, out: Path | None, *, is_entered: bool) -> _Branch:
    """Return the photos among all paths of a folder or pattern, without the results in the output folder."""
    assert branch.base is not None
    results = out if out is not None and out.resolve().is_relative_to(branch.base.resolve()) else None
    reasons = ((file, _describe_skipped(file, is_entered=is_entered)) for file in branch.files)
    skipped = [*branch.skipped, *(Skipped(file, reason) for file, reason in reasons if reason is not None)]
    return _Branch(branch.base, [file for file in branch.files if _is_photo(file, results)], skipped)


def _describe_lack(skipped: Sequence[Skipped], *, as_volumes: bool) -> str:
    """Return, for a message, what was not found, and the first of what was found instead."""
    left_out = f" {skipped[0].path} is {skipped[0].reason}." if skipped else ""
    what = "volumes (folders of DICOM slices, NIfTI files or TIFF stacks)" if as_volumes else "images"
    return f"{what} found.{left_out}"


def _join_slices(path: str, photos: Sequence[Path], *, is_folder: bool) -> tuple[list[Path], list[Path]]:
    """Return the folders of the slices instead of the slices, and other files that may be volumes; and what is left.

    Args:
        path: What the user gave.
        photos: The images that it stands for.
        is_folder: The path is a folder. Slices that a pattern or a name chooses may be a part of a volume.

    Raises:
        ImageError: Slices are given one by one.
    """
    slices = [*filter(holds_dicom, photos)]
    if slices and not is_folder:
        raise ImageError(
            f"path {path!r}: {slices[0]} is a DICOM file. With --volume, give the folder of the slices, "
            f"{str(slices[0].parent)!r}; a file of several frames needs no --volume."
        )
    single = {*slices}
    others = [photo for photo in photos if photo not in single]
    files = {photo for photo in others if photo.name.lower().endswith(_VOLUME_FILES)}
    return sorted({photo.parent for photo in slices} | files), [photo for photo in others if photo not in files]


def _list_folder(base: Path, *, recursive: bool, out: Path | None) -> _Branch:
    """Return all paths in a folder that are not hidden, and the folders in it that cannot be listed."""
    if out is not None and base.resolve() == out.resolve():
        raise ImageError(f"path {str(base)!r} is also the output folder; give another folder with --out.")
    paths: list[Path] = []
    unreadable: list[Skipped] = []
    waiting = [base]
    while waiting:  # a recursive function would end at a thousand levels
        folder = waiting.pop()
        try:
            visible = _list_visible(folder)
        except OSError as error:
            raise_interrupt(error)
            if folder == base:
                raise
            unreadable.append(Skipped(folder, f"a folder that cannot be read: {error.strerror}"))
            continue
        paths += [folder / entry.name for entry in visible]
        if recursive:
            waiting += [folder / entry.name for entry in visible if entry.is_dir(follow_symlinks=False)]
    return _Branch(base, sorted(paths), unreadable)


def _list_visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _list_pattern(pattern: str) -> _Branch:
    """Return all paths that match a pattern, and the folder that it starts with."""
    if not glob.has_magic(pattern):
        raise _build_missing_error(pattern)
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207  Path.glob refuses absolute patterns
    base = Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts))
    return _Branch(base, sorted(map(Path, matches)), [])


def _build_missing_error(path: str) -> ImageError:
    what = _describe_special(Path(path)) or "no such file or folder"
    return ImageError(f"path {path!r}: {what}.{_suggest_path(Path(path))}")


def _suggest_path(path: Path) -> str:
    """Return a sentence that suggests what has a similar name in the same folder; empty if nothing has."""
    try:
        names = [sibling.name for sibling in islice(path.parent.iterdir(), _NAMES_COMPARED)]
    except OSError:
        return ""
    return suggest_names(path.name, [name for name in names if not name.startswith(".") and name != path.name])


def _describe_skipped(path: Path, *, is_entered: bool) -> str | None:
    """Return what a path is, if the user may expect it to be read but it is not; else None."""
    is_folder = os.path.isdir(path)  # noqa: PTH112  Path.is_dir raises if it is too long
    if is_entered and is_folder and path.is_symlink():
        return "a link to a folder, which is not followed"
    if not is_entered and is_folder:
        return "a folder" if image_files.has_image_suffix(path) else None
    return _describe_special(path) if image_files.has_image_suffix(path) else None


def _describe_special(path: Path) -> str | None:
    """Return what a path is that exists but is neither file nor folder; None for others."""
    try:
        return None if path.is_dir() else describe_kind(path.stat())
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return "nested too deep"
        return "a broken link" if path.is_symlink() else None


def _is_photo(path: Path, results: Path | None) -> bool:
    if path.name.startswith(".") or not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises if it is too long
        return False
    if not image_files.has_image_suffix(path) and not is_dicom_file(path):
        return False
    return results is None or not path.resolve().is_relative_to(results.resolve())


def _build_jobs(placed: dict[Path | str, Path], *, as_volumes: bool) -> list[Job]:
    """Name the results of each photo so that no two names are equal.

    The name is that of the photo without its suffix; with it, if two photos differ only in that; then with a number.
    """
    # A dot in the name of a folder starts no suffix.
    bare = [
        place if as_volumes and isinstance(source, Path) and source.is_dir() else _remove_suffix(place)
        for source, place in placed.items()
    ]
    count = Counter(map(fold_path, bare))
    wanted = [stem if count[fold_path(stem)] == 1 else place for stem, place in zip(bare, placed.values(), strict=True)]
    stems = file_names.make_distinct([stem.as_posix() for stem in wanted])
    return [Job(source, Path(stem)) for source, stem in zip(placed, stems, strict=True)]


def _remove_suffix(place: Path) -> Path:
    return place.with_name(place.name[:-7]) if place.name.lower().endswith(".nii.gz") else place.with_suffix("")


def fold_path(path: Path) -> str:
    """Return a key that two paths share if some file system takes them for the same."""
    return file_names.fold_name(path.as_posix())
