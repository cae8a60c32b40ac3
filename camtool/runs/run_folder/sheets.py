"""Captions of overlays, and contact sheets of the overlays that a run wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from camtool.arguments.message_parts import format_percent
from camtool.arguments.regular_files import iterate_lines, open_regular
from camtool.errors import CamtoolError
from camtool.inputs.image_files import read_image
from camtool.rendering import contact_sheet
from camtool.rendering.contact_sheet import Caption, CaptionLine
from camtool.rendering.image_writing import open_atomically
from camtool.rendering.pixel_checks import Pixels
from camtool.rendering.text_drawing import INK, MUTED, find_undrawable
from camtool.runs.file_names import is_inside
from camtool.runs.stored_files import MANIFEST, parse_object
from camtool.runs.text_escapes import escape_hidden

# Name of the contact sheets, before a page's number and the suffix.
SHEET = "contact-sheet"

# Pictures on a page: eight rows of five, which is about as high as two screens.
PICTURES_PER_SHEET = 40

_COLUMNS = 5

# Text in a sheet that tells it from a file of the user's.
_MARK = "camtool contact sheet"

# Bytes at the start of a file in which the text stands.
_HEAD_BYTES = 4096


def build_caption(fields: Mapping[str, Any]) -> Caption:
    """Return the caption of an overlay: label and probability; method, and right or wrong if it is known.

    Args:
        fields: The fields of its line in the manifest; those that may be None may be absent.
    """
    probability = fields.get("probability")
    label = CaptionLine(
        _make_drawable(fields["label"], fields.get("index")),
        end="" if probability is None else format_percent(probability, 1),
        end_color=INK,
    )
    method, correct = escape_hidden(str(fields["method"])), fields.get("correct")
    if correct is None:
        return [label, CaptionLine(method, MUTED)]
    if correct:
        return [label, CaptionLine("right", contact_sheet.RIGHT, method)]
    predicted, true = fields.get("predicted_label"), _make_drawable(fields.get("true_label"))
    # If another class than the predicted one is explained, the prediction is told as well.
    more = "" if predicted == fields["label"] else f", predicted: {_make_drawable(predicted)}"
    return [label, CaptionLine(f"wrong, true: {true}{more}", contact_sheet.WRONG, method)]


def _make_drawable(label: object, index: object = None) -> str:
    """Return a label without control characters; the index of its class if no font has its letters."""
    text = escape_hidden(str(label))
    return f"class {index}" if index is not None and find_undrawable([text]) else text


# ------------------------------------------------------------------------------------------------------- the manifest


def read_manifest(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the manifest of an output folder, one at a time; none if there is no manifest."""
    for line in iterate_lines(folder / MANIFEST):
        with suppress(ValueError):  # cut by a power failure
            yield parse_object(line)


# --------------------------------------------------------------------------------------------------------- the sheets


def write_sheets(
    folder: Path, images: Iterable[str], *, per_page: int = PICTURES_PER_SHEET, has_captions: bool = False
) -> list[Path]:
    """Draw the overlays of an output folder on contact sheets, in the order of its manifest.

    The sheets are built from the files, so they also show results of earlier runs into the folder. Only one page is in
    memory at a time. Sheets of an earlier run are replaced.

    Args:
        folder: The output folder.
        images: The photos whose overlays are shown.
        per_page: The number of overlays on a page.
        has_captions: The overlays have captions of their own, which are left out: they could not be read.

    Returns:
        The paths of ``contact-sheet.png``, or of ``contact-sheet-001.png`` and so on if there are several pages.

    Raises:
        CamtoolError: A file has the name of a sheet, and camtool did not draw it.
        OSError: A sheet cannot be written.
    """
    old = check_sheets(folder)
    wanted = frozenset(images)
    count = sum(1 for _ in _iterate_pictures(folder, wanted))
    pages = -(-count // per_page)
    names = [f"{SHEET}.png"] if pages == 1 else [f"{SHEET}-{number + 1:03}.png" for number in range(pages)]
    pictures = _iterate_pictures(folder, wanted)
    for name in names:
        page = ((_load_picture(path, has_caption=has_captions), text) for path, text in islice(pictures, per_page))
        _write_sheet(folder / name, contact_sheet.draw_picture_sheet(page, columns=_COLUMNS))
    for path in old:
        if path.name not in names:
            path.unlink()
    return [folder / name for name in names]


def check_sheets(folder: Path) -> list[Path]:
    """Return the contact sheets in a folder.

    Raises:
        CamtoolError: A file has the name of one, and camtool did not draw it.
    """
    sheets = [path for path in folder.glob(f"{SHEET}*.png") if re.fullmatch(rf"{SHEET}(-\d{{3,}})?\.png", path.name)]
    for path in sheets:
        with open_regular(path) as file:
            if _MARK.encode() not in file.read(_HEAD_BYTES):
                raise CamtoolError(f"{path} was not drawn by camtool; move it, or leave out --sheet.")
    return sheets


def _write_sheet(path: Path, pixels: Pixels) -> None:
    mark = PngImagePlugin.PngInfo()
    mark.add_text("Software", _MARK)
    with open_atomically(path) as stream:
        Image.fromarray(pixels).save(stream, "PNG", compress_level=2, pnginfo=mark)


def _iterate_pictures(folder: Path, images: frozenset[str]) -> Iterator[tuple[Path, Caption]]:
    """Yield the overlay of each line about one of the images, with its caption, if the file exists."""
    for line in read_manifest(folder):
        overlay = line.get("files", {}).get("overlay")
        if overlay is None or line.get("image") not in images:
            continue
        # A manifest that somebody else wrote must not lead out of the folder.
        if is_inside(overlay) and (folder / overlay).is_file():
            name = escape_hidden(PurePath(line["image"]).name)
            yield folder / overlay, [CaptionLine(name, MUTED), *build_caption(line)]


def _load_picture(path: Path, *, has_caption: bool) -> Pixels:
    pixels = np.asarray(read_image(path).convert("RGB"))
    return contact_sheet.remove_caption(pixels) if has_caption else pixels
