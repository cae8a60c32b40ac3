"""Pictures of a report: thumbnails, drawn heatmaps and copies of photos in a subfolder, each written only if needed.

Links from the page to files are relative and quoted, and lead to the right photo.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from typing import TypeAlias, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from camtool.errors import CamtoolError, Forgive, ImageError
from camtool.geometry.cell_centers import AxisCenters, CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.inputs.formats.tiff import is_tiff
from camtool.inputs.image_files import read_image
from camtool.rendering.colormaps import DEFAULT_COLORMAP, get_palette
from camtool.rendering.image_writing import open_atomically, write_image
from camtool.rendering.views import Photo
from camtool.runs.process_settings import release_memory
from camtool.runs.report.columns import ReportRow, StoredHeatmap

# Name of the subfolder beside the page. Browsers use this name, too, when they save a page.
PICTURE_FOLDER = "index_files"

# A function that is told how many of how many steps are done.
Progress: TypeAlias = Callable[[int, int], object]

# A picture of up to so many pixels is its own thumbnail: browsers decode it in about 5 ms.
_MAX_THUMBNAIL_PIXELS = 640 * 480
# The longest side of other thumbnails: twice the width of a tile, for screens with two pixels to a point.
_THUMBNAIL_SIDE = 480
# The longest side of a copied photo, about a screen.
_PHOTO_SIDE = 1600
# The longest side of a drawn heatmap. Heat is smooth, so the browser enlarges it without harm.
_HEATMAP_SIDE = 128
# No layer has so many cells; a damaged file may claim it.
_MAX_CELLS = 2**24

# PIL's names of the formats that all browsers show.
_BROWSER_FORMATS = frozenset({"JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "AVIF"})
# Where Ultralytics is imported, it has replaced PIL.Image.open, and asks for a package when PIL knows no format.
_HEADER_FAULTS = (OSError, ValueError, SyntaxError, ImportError, Image.DecompressionBombError, Warning)

_OWN_NAME = re.compile(r"[0-9a-f]{16}\.(webp|png)|\.camtool-[0-9a-f]{32}\.tmp")

_PREFERENCE = ("overlay", "heatmap", "mask")
_MAX_THREADS = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class PictureSettings:
    """Choices about the pictures of a report.

    Attributes:
        folder: The folder of the page.
        directory: The working directory of the run, which relative paths start from; None if unknown.
        photos: The folder that the photos have been moved to; None if they are where the run found them.
        copy_photos: Put reduced copies of the photos beside the page. Otherwise the page links to the photos, and only
            those in formats that browsers do not show are copied.
        is_quick: Make no new thumbnails and copies, so that a stopped run ends soon.
    """

    folder: Path
    directory: Path | None = None
    photos: Path | None = None
    copy_photos: bool = False
    is_quick: bool = False


@dataclass(frozen=True)
class RowPictures:
    """The pictures of a row, as URLs relative to the page.

    Attributes:
        thumbnail: The small picture; None if the run saved no picture.
        pictures: Pairs of a kind and a URL, the main one first.
        ratio: Width of the main picture divided by its height; None if there is none.
        photo: The photo; None if it is not found or cannot be shown.
        is_placed: The main picture has the photo's proportions, so that it can be laid over it.
    """

    thumbnail: str | None = None
    pictures: tuple[tuple[str, str], ...] = ()
    ratio: float | None = None
    photo: str | None = None
    is_placed: bool = False


@dataclass(frozen=True)
class _Photo:
    """A photo that the page can show, and the file that it was made of."""

    path: Path
    url: str
    size: tuple[int, int] | None


def prepare_pictures(
    rows: Sequence[ReportRow], settings: PictureSettings, progress: Progress = lambda done, total: None
) -> list[RowPictures]:
    """Write what is missing in the subfolder, remove what no row needs, and return the pictures of each row.

    Raises:
        CamtoolError: The subfolder is a link.
        OSError: A picture cannot be written.
    """
    beside = settings.folder / PICTURE_FOLDER
    # In a folder that another user prepared, a link could lead to any folder.
    if beside.is_symlink():
        raise CamtoolError(f"{str(beside)!r} is a link; remove it, or write the report elsewhere.")
    images = list(dict.fromkeys(row.image for row in rows))
    total = len(images) + len(rows)
    photos: dict[str, _Photo | None] = {}
    found = [*_find_photos(images, settings).items()]
    for (image, _), photo in zip(found, _map_in_threads(partial(_prepare_photo, settings), found), strict=True):
        photos[image] = photo
        progress(len(photos), total)
    prepared: list[RowPictures] = []
    for of_row in _map_in_threads(lambda row: _prepare_row(settings, row, photos[row.image]), rows):
        prepared.append(of_row)
        progress(len(photos) + len(prepared), total)
    _remove_unused(beside, prepared)
    return prepared


def _map_in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Yield ``function(item)`` for each item, in order. PIL decodes and encodes in several threads at once."""
    pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS), "camtool-report")
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)


# -------------------------------------------------------------------------------------------------------- photos


def _find_photos(images: Sequence[str], settings: PictureSettings) -> dict[str, Path | None]:
    """Return where each photo is; None if it is not found, or if a file may be any of several moved photos."""
    find = partial(find_photo, folder=settings.folder, directory=settings.directory)
    found = {image: find(image, moved_to=settings.photos) for image in images}
    counts: Counter[Path | None] = Counter(filter(None, found.values()))
    in_place = {image: find(image) for image, path in found.items() if counts[path] > 1}
    gone = Counter(found[image] for image, path in in_place.items() if path is None)
    moved = {image: found[image] for image, path in in_place.items() if path is None and gone[found[image]] == 1}
    return found | in_place | moved


def _prepare_photo(settings: PictureSettings, found: tuple[str, Path | None]) -> _Photo | None:
    """Return the link to a photo, or to a copy of it; None if it is not found or cannot be read."""
    image, path = found
    if path is None:
        return None
    format_name, size = _read_header(path)
    if format_name in _BROWSER_FORMATS and not settings.copy_photos:
        return _Photo(path, link_to(path, settings.folder), size)
    target = settings.folder / PICTURE_FOLDER / _name(b"photo", f"{image}\0{path}\0{path.stat().st_size}")
    if settings.is_quick and not target.is_file():
        return None
    copy = _write_reduced(path, target, _PHOTO_SIDE)
    return None if copy is None else _Photo(path, link_to(copy, settings.folder), _read_header(copy)[1])


def _read_header(path: Path) -> tuple[str | None, tuple[int, int] | None]:
    """Return the format, in PIL's name, and the width and height of an image file; None for what is unknown."""
    with Forgive(*_HEADER_FAULTS):
        with path.open("rb") as stream:
            if is_tiff(stream.read(4)):  # no browser shows it, and PIL prints what it cannot read of many bands
                return "TIFF", None
        with Image.open(path) as image:
            return image.format, image.size
    return None, None


def _name(kind: bytes, text: str) -> str:
    """Return a file name that is the same in every run and different for each text."""
    return f"{sha256(kind + text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}.webp"


def _write_reduced(source: Path, target: Path, max_side: int) -> Path | None:
    """Write a reduced copy of an image, unless it is there already; return None if the image cannot be read."""
    modified = source.stat().st_mtime_ns
    # The copy has the time of its source. So a source that was written again, or a folder that was copied, is noticed.
    if target.is_file() and target.stat().st_mtime_ns == modified:
        return target
    try:
        pixels = np.asarray(read_image(source, max_side=max_side))
    except (ImageError, MemoryError):
        return None
    release_memory(_read_header(source)[1])
    write_image(target, pixels, quality=80)
    os.utime(target, ns=(modified, modified))
    return target


# ---------------------------------------------------------------------------------------------------------- rows


def _prepare_row(settings: PictureSettings, row: ReportRow, photo: _Photo | None) -> RowPictures:
    paths = _list_pictures(settings, row, photo)
    url = None if photo is None else photo.url
    if not paths:
        return RowPictures(photo=url)
    main = next(iter(paths.values()))
    size = _read_header(main)[1] or (1, 1)
    # A stored heatmap alone covers what the model saw, which need not be the whole photo.
    covers_photo = row.heatmap is None or "overlay" in paths
    return RowPictures(
        thumbnail=link_to(_find_thumbnail(settings, main, size), settings.folder),
        pictures=tuple((kind, link_to(path, settings.folder)) for kind, path in paths.items()),
        ratio=size[0] / size[1],
        photo=url,
        is_placed=photo is not None and covers_photo and _have_same_shape(photo.size, size),
    )


def _list_pictures(settings: PictureSettings, row: ReportRow, photo: _Photo | None) -> dict[str, Path]:
    """Return kind → picture of a row, the main one first: those that the run wrote, or one of a stored heatmap."""
    if row.heatmap is None:
        kinds = dict.fromkeys([*_PREFERENCE, *sorted(row.pictures)])
        return {kind: row.pictures[kind] for kind in kinds if kind in row.pictures and row.pictures[kind].is_file()}
    overlay = None if photo is None else _draw_overlay(settings, row.heatmap, photo.path)
    if overlay is not None:
        return {"overlay": overlay}
    heatmap = _draw_heatmap(row.heatmap, settings.folder / PICTURE_FOLDER)
    return {} if heatmap is None else {"heatmap": heatmap}


def _have_same_shape(photo: tuple[int, int] | None, picture: tuple[int, int]) -> bool:
    """Check that two sizes have the same proportions, as far as whole pixels allow."""
    if photo is None:
        return False
    width, height = picture
    # The header gives the sides of a photo before it is turned upright.
    return any(abs(width * h - height * w) <= w + h for w, h in (photo, photo[::-1]))


def _find_thumbnail(settings: PictureSettings, picture: Path, size: tuple[int, int]) -> Path:
    """Return the path of the thumbnail of a picture: the picture itself, if it is small."""
    if size[0] * size[1] <= _MAX_THUMBNAIL_PIXELS:
        return picture
    below = picture.relative_to(settings.folder) if picture.is_relative_to(settings.folder) else picture
    target = settings.folder / PICTURE_FOLDER / _name(b"thumbnail", below.as_posix())
    if settings.is_quick and not target.is_file():
        return picture
    return _write_reduced(picture, target, _THUMBNAIL_SIDE) or picture


def _read_cells(heatmap: StoredHeatmap) -> NDArray[np.uint8] | None:
    """Return the values of a heatmap, ``(h, w)``; None if it is damaged."""
    cells = heatmap.height * heatmap.width
    if min(heatmap.height, heatmap.width) < 1 or cells > _MAX_CELLS:
        return None
    with suppress(zlib.error):
        values = zlib.decompressobj().decompress(heatmap.data, cells + 1)
        return np.frombuffer(values, np.uint8).reshape(heatmap.height, heatmap.width) if len(values) == cells else None
    return None


def _draw_overlay(settings: PictureSettings, heatmap: StoredHeatmap, photo: Path) -> Path | None:
    """Write a small overlay of a heatmap on its photo; return None if its place or the photo is not known."""
    if heatmap.place is None or heatmap.photo_size is None:
        return None
    text = f"{photo}{photo.stat().st_mtime_ns}\0{photo.stat().st_size}{heatmap.place}{sha256(heatmap.data).hexdigest()}"
    target = settings.folder / PICTURE_FOLDER / _name(b"overlay", text)
    if target.is_file():
        return target
    cells = None if settings.is_quick else _read_cells(heatmap)
    if cells is None:
        return None
    top, left, bottom, right, height, width, *axes = heatmap.place
    try:
        pixels = np.asarray(read_image(photo, max_side=_THUMBNAIL_SIDE))
        down, across = pixels.shape[0] / heatmap.photo_size[0], pixels.shape[1] / heatmap.photo_size[1]
        box = (down * top, across * left, down * bottom, across * right)
        view = Photo(pixels, Geometry((pixels.shape[0], pixels.shape[1]), (int(height), int(width)), box))
        centers = CellCenters(view.geometry.size, (AxisCenters(*axes[:2]), AxisCenters(*axes[2:])))
        overlay = view.draw_overlay(view.to_heatmap(cells.astype(np.float32), centers))
    except (CamtoolError, MemoryError):
        return None
    return write_image(target, overlay, quality=80)


def _draw_heatmap(heatmap: StoredHeatmap, folder: Path) -> Path | None:
    """Write a heatmap in the default colors, named after its content; return None if it is damaged."""
    values = _read_cells(heatmap)
    if values is None:
        return None
    shape = values.shape
    target = folder / f"{sha256(f'{shape}'.encode() + values.tobytes()).hexdigest()[:16]}.png"
    if not target.is_file():
        heat = Image.fromarray(values)
        scale = max(1, _HEATMAP_SIDE / max(shape))
        heat = heat.resize((round(shape[1] * scale), round(shape[0] * scale)), Image.Resampling.BICUBIC)
        heat.putpalette(get_palette(DEFAULT_COLORMAP).tobytes())
        with open_atomically(target) as stream:
            heat.save(stream, "PNG")
    return target


def _remove_unused(folder: Path, rows: Sequence[RowPictures]) -> None:
    """Remove the pictures in the subfolder that no row shows. Files with other names are not ours."""
    if not folder.is_dir():
        return
    urls = {url for row in rows for url in (row.thumbnail, row.photo, *(url for _, url in row.pictures)) if url}
    used = {url.removeprefix(f"{PICTURE_FOLDER}/") for url in urls}
    for path in folder.iterdir():
        # Pictures of a report, and the temporary file of one that was killed.
        if _OWN_NAME.fullmatch(path.name) and path.name not in used:
            path.unlink()


def link_to(path: Path, folder: Path) -> str:
    """Return the URL of a file relative to a page in ``folder``; an absolute one if it is on another drive."""
    target = Path(os.path.abspath(path))  # noqa: PTH100  the browser does not resolve links, so neither may we
    with suppress(ValueError):
        relative = PurePath(os.path.relpath(target, os.path.abspath(folder)))  # noqa: PTH100
        # Bytes, because a name need not be valid UTF-8. A colon in the first part would be read as a scheme.
        return "/".join(quote(os.fsencode(part), safe="") for part in relative.parts)
    return target.as_uri()


def find_photo(image: str, folder: Path, *, directory: Path | None = None, moved_to: Path | None = None) -> Path | None:
    """Return where the photo of a row is; None if it is not found.

    A relative path is looked up in the run's working directory if it is known, else in the present one, and then
    beside the output folder.

    Args:
        image: The path as the run got it.
        folder: The output folder of the run.
        directory: The working directory of the run.
        moved_to: The folder that the photos have been moved to. The end of the path is looked up in it, as much of it
            as fits.
    """
    return next((path for path in _list_candidates(image, folder, directory, moved_to) if _is_file(path)), None)


def _list_candidates(image: str, folder: Path, directory: Path | None, moved_to: Path | None) -> Iterator[Path]:
    path = Path(image)
    if moved_to is not None:
        parts = [part for part in path.parts if part not in (path.anchor, "..")]
        for first in range(len(parts)):
            yield moved_to.joinpath(*parts[first:])
    yield path if directory is None else directory / path
    if not path.is_absolute():
        yield folder.parent / path


def _is_file(path: Path) -> bool:
    with Forgive(OSError, ValueError):  # too long, or with a NUL
        return path.is_file()
    return False
