"""Opening a slide with the reader for its format."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from camtool.arguments.checks import check_not_url
from camtool.errors import ImageError
from camtool.inputs.formats.decoding import name_in_errors
from camtool.slides.openslide_reader import OpenSlideReader, find_format, import_openslide
from camtool.slides.readers import SlideReader
from camtool.slides.tiff_reader import TiffReader

_PLAIN_TIFF = "generic-tiff"
"""OpenSlide's name for tiled TIFF files of no microscope's maker. It does not see the sub-files of OME."""

_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def open_slide(path: str | PathLike[str]) -> SlideReader:
    """Open a slide by OpenSlide, or by tifffile if OpenSlide does not know the file.

    Raises:
        ImageError: There is no such file, it is no slide, or what reads it is not installed.
    """
    check_not_url("slide", path, ImageError)
    name = fspath(path)
    if not Path(name).is_file():
        raise ImageError(f"slide {name!r}: there is no such file.")
    with name_in_errors(name, "a slide"):
        return _open_by_format(name)


def _open_by_format(name: str) -> SlideReader:
    kind = find_format(name)
    if kind is not None:
        slide = OpenSlideReader(name)
        return slide if kind != _PLAIN_TIFF else _choose_more_levels(slide)
    with Path(name).open("rb") as stream:
        is_tiff = stream.read(4) in _TIFF_MAGIC
    if is_tiff:
        return TiffReader(name)
    import_openslide(name)
    raise ImageError(
        f"slide {name!r} is of no format that OpenSlide reads, and no TIFF. For a photo, use camtool.explain or "
        "camtool run."
    )


def _choose_more_levels(slide: SlideReader) -> SlideReader:
    """Return OpenSlide's reader of a tiled TIFF, or tifffile's if that sees more levels."""
    try:
        with name_in_errors(slide.path, "a TIFF"):
            other = TiffReader(slide.path)
    except ImageError:  # tifffile is not installed, or does not take this file
        return slide
    if len(other.levels) <= len(slide.levels):
        other.close()
        return slide
    slide.close()
    return other
