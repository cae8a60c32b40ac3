"""Kinds of files that a run can write for an explanation, as a table.

To add one, write a function that saves it, and add an entry to :data:`SAVE_KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camtool.explaining.explanation import Explanation
    from camtool.rendering.contact_sheet import Caption
    from camtool.rendering.regions import PhotoRegion
    from camtool.runs.photo_tables import TrueClass

# The command line reads the names from here to show its help. So nothing heavy is imported at the top of this file.

# Suffixes of images.
_FORMATS = ("png", "jpg", "webp")


def _get_default_colormap() -> str:
    from camtool.rendering.colormaps import DEFAULT_COLORMAP

    return DEFAULT_COLORMAP


@dataclass(frozen=True)
class OutputSettings:
    """Settings of the files that a run writes.

    Attributes:
        folder: The output folder.
        kinds: Names in :data:`SAVE_KINDS`.
        format: The suffix of images: png, jpg or webp.
        alpha: The opacity of the colors, from 0 to 1; by default as in :func:`camtool.rendering.blend`.
        colormap: The name of a color map.
        enlarge: Write overlays of small photos enlarged.
        max_side: The longest side of the pictures in pixels. Larger photos are reduced while they are read, but not
            below what the model needs.
        has_captions: Write label, probability, method, and right or wrong if it is known, below the overlays.
        true_classes: Path of a photo → its true class, of the photos whose class is known.
        only_wrong: Write results only for photos whose top class is not the true one.
        regions: Name → region of the photos whose share of the heat is written, or folder with a mask of each photo.
        masks: Such a folder → photo → its mask.
        has_legend: Draw below overlays what the colors mean.
    """

    folder: Path
    kinds: Sequence[str] = ("overlay",)
    format: str = "png"
    alpha: float | None = None
    colormap: str = field(default_factory=_get_default_colormap)
    enlarge: bool = True
    max_side: int | None = None
    has_captions: bool = False
    true_classes: Mapping[Path | str, TrueClass] = field(default_factory=dict)
    only_wrong: bool = False
    regions: Mapping[str, PhotoRegion | Path] = field(default_factory=dict)
    masks: Mapping[Path, Mapping[Path | str, Path]] = field(default_factory=dict)
    has_legend: bool = False


@dataclass(frozen=True)
class SaveKind:
    """One kind of file.

    Attributes:
        write: Writes an explanation to a path, completely or not at all; overlays get the caption, if there is one.
        choose_suffix: From the format of images to the suffix of the file.
        marker: What stands before the suffix, so that the files of an explanation have different names.
        is_picture: It is an image of 8 bits rather than numbers.
        describe_refusal: Returns why an explanation cannot be written as this kind, ``None`` if it can. ``None`` if all
            can.
    """

    write: Callable[[Explanation, Path, OutputSettings, Caption | None], None]
    choose_suffix: Callable[[str], str]
    marker: str
    is_picture: bool = True
    describe_refusal: Callable[[Explanation], str | None] | None = None


def _write_overlay(explanation: Explanation, path: Path, output: OutputSettings, caption: Caption | None) -> None:
    from camtool.rendering.contact_sheet import add_caption
    from camtool.warning_codes import find_heat_places

    if find_heat_places(explanation.warnings) is None:
        pixels = explanation.overlay(output.alpha, output.colormap, enlarge=output.enlarge, legend=output.has_legend)
    else:
        pixels = explanation.places_overlay(None, output.alpha, output.colormap, enlarge=output.enlarge)
    _write_pixels(path, pixels if caption is None else add_caption(pixels, caption))


def _write_pixels(path: Path, pixels: NDArray[Any]) -> None:
    from camtool.rendering.image_writing import write_image

    write_image(path, pixels)


def _write_heatmap(explanation: Explanation, path: Path, output: OutputSettings, caption: Caption | None) -> None:
    """Write the heatmap in colors; transparent where the model did not see the photo."""
    import numpy as np

    from camtool.rendering.overlay import colorize

    pixels = colorize(explanation.heatmap, output.colormap)
    if not explanation.seen.all():
        pixels = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
        pixels[~explanation.seen] = 0
    _write_pixels(path, pixels)


def _write_raw(explanation: Explanation, path: Path, output: OutputSettings, caption: Caption | None) -> None:
    import numpy as np

    from camtool.rendering import image_writing

    with image_writing.open_atomically(path) as file:
        np.save(file, explanation.raw)


def _write_arrays(explanation: Explanation, path: Path, output: OutputSettings, caption: Caption | None) -> None:
    import numpy as np

    # A byte is as fine as a screen shows; a float16 would take ten times the space.
    write_numbers(explanation, path, heatmap=np.rint(255 * explanation.heatmap).astype(np.uint8))


def write_numbers(explanation: Explanation, path: Path, *, heatmap: NDArray[Any]) -> None:
    """Write all arrays and numbers of an explanation as one compressed file, without pickled objects.

    Args:
        explanation: The explanation.
        path: The file, which ends in ``.npz``.
        heatmap: The heatmap ``(H, W)``, in the type in which it is stored.
    """
    import numpy as np

    from camtool.rendering import image_writing

    with image_writing.open_atomically(path) as file:
        np.savez_compressed(
            file,
            raw=explanation.raw,
            heatmap=heatmap,
            seen=explanation.seen,
            score=np.float64(explanation.score),
            probability=np.float64(np.nan if explanation.probability is None else explanation.probability),
            index=np.int64(-1 if explanation.index is None else explanation.index),
            label=np.str_(explanation.label),
            method=np.str_(explanation.method),
            layer=np.str_(explanation.layer),
            box=np.array([np.nan] * 4 if explanation.box is None else explanation.box, np.float64),
            warning_codes=np.array([warning.code for warning in explanation.warnings], np.str_),
        )


def _write_on_grid(explanation: Explanation, path: Path, output: OutputSettings, caption: Caption | None) -> None:
    """Write the heatmap as float32 numbers on the grid of the file that the image came from."""
    explanation.save(path)


def _write_region(explanation: Explanation, path: Path, output: OutputSettings, caption: Caption | None) -> None:
    """Write the photo with all but the part faded that is sufficient; all of it if nothing was found."""
    if explanation.region is None:
        _write_pixels(path, explanation.photo)
    else:
        explanation.region.save(path)


def _refuse_nifti(explanation: Explanation) -> str | None:
    from camtool.inputs.formats.nifti import NiftiOrigin

    if isinstance(explanation.origin, NiftiOrigin):
        return None
    return "it is no NIfTI file, so --save nifti has no affine to keep; leave nifti out of --save"


def _refuse_geotiff(explanation: Explanation) -> str | None:
    from camtool.inputs.formats.tiff import TiffOrigin

    origin = explanation.origin
    if not isinstance(origin, TiffOrigin):
        what = "it is no TIFF file that is stored upright"
    elif origin.crs is None and origin.transform is None:
        what = "it is a TIFF without a coordinate reference system and without a transform"
    else:
        return None
    return f"{what}, so --save geotiff has no place in the world to keep; leave geotiff out of --save"


def _keep_format(format: str) -> str:  # noqa: A002
    return format


# Name → kind of file, in the order that the help shows.
SAVE_KINDS: dict[str, SaveKind] = {
    # The photo with the heatmap over it. It is the main result, so its name has no marker.
    "overlay": SaveKind(_write_overlay, _keep_format, ""),
    # The heatmap alone, in colors; JPEG has no transparency.
    "heatmap": SaveKind(_write_heatmap, lambda asked: "png" if asked == "jpg" else asked, ".heatmap"),
    # The photo multiplied by the heatmap.
    "mask": SaveKind(lambda shown, path, *_: _write_pixels(path, shown.masked()), _keep_format, ".mask"),
    # The photo with all but a sufficient region faded; the executor finds the region.
    "sufficient": SaveKind(_write_region, _keep_format, ".sufficient"),
    # The method's own values as an array (h, w), on what the model saw of the photo.
    "raw": SaveKind(_write_raw, lambda _: "npy", ".raw", is_picture=False),
    # The raw values, the heatmap at the size of the photo, and the numbers, in one compressed file of NumPy.
    "npz": SaveKind(_write_arrays, lambda _: "npz", "", is_picture=False),
    # The heatmap as numbers in a volume with the size, orientation and affine of the NIfTI file.
    "nifti": SaveKind(_write_on_grid, lambda _: "nii.gz", ".heatmap", False, _refuse_nifti),
    # The heatmap as numbers with the coordinate reference system and transform of the GeoTIFF.
    "geotiff": SaveKind(_write_on_grid, lambda _: "tif", ".heatmap", False, _refuse_geotiff),
}


def list_endings() -> list[str]:
    """Return the endings of the files of all kinds: ``.heatmap.png``."""
    pairs = product(SAVE_KINDS.values(), _FORMATS)
    return [*dict.fromkeys(f"{kind.marker}.{kind.choose_suffix(suffix)}" for kind, suffix in pairs)]
