"""From a slide to its explanation: :func:`explain_slide`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from os import PathLike
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from camtool import targets
from camtool.arguments.checks import check_count, check_number
from camtool.arguments.message_parts import count_texts
from camtool.errors import GeometryError, ImageError, MethodError, NothingFoundError, RaiseAs, TargetError
from camtool.explaining.explainer import Explainer
from camtool.explaining.explanation import Explanation
from camtool.explaining.types import Model
from camtool.hooks.chunks import iterate_chunks
from camtool.methods import MethodFunction
from camtool.models import find_input_size, to_loaded
from camtool.progress import Stage, show_progress
from camtool.slides import tiling
from camtool.slides.readers import Pixels, SlideReader, open_slide, read_scaled
from camtool.slides.slide_explanation import SlideExplanation, TileFailure, TileRow
from camtool.slides.tiling import Background, Tile, TileGrid

_LABELS_SHOWN = 10


def explain_slide(
    model: Model,
    slide: str | PathLike[str],
    target_class: int | str | targets.Target | Callable[[Any], Tensor],
    *,
    method: str | MethodFunction = "gradcam",
    level: int | None = None,
    mpp: float | None = None,
    tile: int | None = None,
    overlap: float = 0.25,
    background: Background = "bright",
    min_tissue: float = 0.05,
    batch_size: int = 32,
    **settings: Any,
) -> SlideExplanation:
    """Explain a class on a whole slide, tile by tile, as one heatmap.

        result = camtool.explain_slide(model, "slide.svs", "tumor", mpp=0.5)
        result.save("out")

    Memory does not grow with the slide: tiles are read and explained in batches, and the heatmap is on disk. The maps
    of all tiles are on one scale: they are normalized once, together, after they are stitched. In the overlap of
    two tiles the heatmap changes from one to the other, so that there are no seams.

    Args:
        model: A module, or what :func:`camtool.load` returned; it takes images of one tile.
        slide: A file that OpenSlide reads (SVS, NDPI, MRXS, SCN, DICOM, tiled TIFF ...), or a pyramidal TIFF.
        target_class: The class to explain on all tiles: an index, a label or a target, as for :func:`camtool.explain`.
            It must be named, as heat of different classes cannot be on one scale.
        method: A method's name, or a function.
        level: The level of the slide that the model sees; 0 is the finest, and the default.
        mpp: The resolution that the model sees in micrometers per pixel, instead of ``level``. Give that of training.
        tile: The side of a tile in pixels of that resolution; by default the model's input is filled without scaling.
        overlap: The share of a tile that it has in common with the next one, from 0 to 0.9.
        background: What tiles are skipped: ``"bright"`` (glass: all channels 220 or more), ``"dark"`` (fluorescence: no
            channel above 20), ``"none"``, or a function from pixels ``(H, W, 3)`` to a mask, True where tissue is.
        min_tissue: Tiles with less than this share of tissue are skipped.
        batch_size: Tiles in a forward pass.
        **settings: Other arguments of :class:`camtool.Explainer`, e.g. ``layer=`` and ``transform=``, and options of
            the method.

    Raises:
        TargetError: No class, or several, are named.
        ImageError: The slide cannot be read, or all of it is background.
        CamtoolError: Another argument does not fit; :mod:`camtool.errors` lists the classes.
    """
    _check_target(target_class, model)
    if isinstance(method, (list, tuple)):
        raise MethodError("method: a slide is explained by one method; call explain_slide once for each.")
    check_number("overlap", overlap, least=0, most=0.9)
    check_number("min_tissue", min_tissue, least=0, most=1)
    check_count("tile", tile, least=8, optional=True)
    check_count("batch_size", batch_size)
    tiling.check_background(background)
    explainer = Explainer(model, method, batch_size=batch_size, **settings)
    with open_slide(slide) as reader:
        grid = _plan_tiles(explainer, model, reader, tiling.choose_scale(reader, level, mpp), tile, overlap)
        tiles = list(tiling.select_tissue(reader, grid, background, min_tissue))
        if not tiles:
            raise ImageError(
                f"slide {reader.path}: all {len(grid.list_tiles()):,} tiles are background; choose another rule with "
                "background=, or a smaller min_tissue=."
            )
        run = _SlideRun(explainer, target_class, grid)
        # Closed before the slide is: OpenSlide crashes if another thread still reads then.
        with closing(_read_batches(reader, grid, tiles, batch_size)) as batches:
            run.explain_tiles(batches, len(tiles), batch_size)
        notes = _describe_scale(reader, grid) if level is None and mpp is None else ()
        return run.build_result(reader, len(grid.list_tiles()) - len(tiles), notes)


def _check_target(target_class: Any, model: Any) -> None:
    """Check that a single class is named.

    Raises:
        TargetError: It is not.
    """
    if target_class is not None and not targets.asks_for_several(target_class):
        return
    labels = to_loaded(model).labels
    classes = "" if not labels else f" The model's classes are: {', '.join(labels[:_LABELS_SHOWN])}"
    classes += ", ..." if labels and len(labels) > _LABELS_SHOWN else "." if classes else ""
    raise TargetError(
        "target_class: name one class, as heat of different classes cannot be on the same scale. For several, call "
        f"explain_slide once for each.{classes}"
    )


def _describe_scale(reader: SlideReader, grid: TileGrid) -> tuple[str, ...]:
    """Return a note that the resolution was not chosen."""
    size = "of unknown size" if reader.mpp is None else f"of {reader.mpp * grid.scale:.3g} micrometers"
    note = (
        f"Neither level nor mpp was given, so the model saw the finest level, with pixels {size}; choose the "
        "resolution that it was trained at."
    )
    return (note,)


# ------------------------------------------------------------------------------------------------------------ tiles


def _plan_tiles(
    explainer: Explainer[Any], model: Any, reader: SlideReader, scale: float, tile: int | None, overlap: float
) -> TileGrid:
    """Return the grid of tiles. Its tiles overlap in what the model sees of them."""
    side = tile or _choose_side(explainer, model)
    seen = tiling.find_seen_part(_prepare_blank(explainer, side).geometry)
    whole = reader.levels[0]
    return TileGrid(int(whole.width / scale), int(whole.height / scale), scale, side, seen, overlap)


def _choose_side(explainer: Explainer[Any], model: Any) -> int:
    """Return the side of a tile that the model's preparation neither enlarges nor reduces."""
    side = find_input_size(to_loaded(model).model)[0]
    for _ in range(3):  # a preparation that resizes to 256 and crops to 224 is met at the second try
        scale = _prepare_blank(explainer, side).geometry.compute_scale()
        if abs(scale - 1) < 0.01:
            break
        side = max(8, round(side * scale))
    return side


def _prepare_blank(explainer: Explainer[Any], side: int) -> Any:
    with RaiseAs(lambda error: GeometryError(f"the tiles of a slide cannot be prepared: {error}"), GeometryError):
        return explainer.prepare(Image.new("RGB", (side, side), "white"))


def _read_batches(
    reader: SlideReader, grid: TileGrid, tiles: Sequence[Tile], size: int
) -> Generator[list[tuple[Tile, Pixels | str]], None, None]:
    """Yield the pixels of tiles in batches, or why they cannot be read. The next batch is read meanwhile."""

    def read(part: Sequence[Tile]) -> list[tuple[Tile, Pixels | str]]:
        return [(tile, _read_tile(reader, grid, tile)) for tile in part]

    parts = [tiles[start : start + size] for start in range(0, len(tiles), size)]
    with ThreadPoolExecutor(1) as pool:
        pending: Future[list[tuple[Tile, Pixels | str]]] = pool.submit(read, parts[0])
        for part in [*parts[1:], []]:
            batch, pending = pending.result(), pool.submit(read, part)
            yield batch


def _read_tile(reader: SlideReader, grid: TileGrid, tile: Tile) -> Pixels | str:
    try:
        return read_scaled(reader, grid.scale, tile.x, tile.y, grid.side, grid.side)
    except ImageError as error:
        return str(error)


# ---------------------------------------------------------------------------------------------------------- the run


class _SlideRun:
    """The explanation of the tiles of one slide, and what came out of it so far."""

    def __init__(self, explainer: Explainer[Any], target: Any, grid: TileGrid) -> None:
        self._explainer, self._target, self._grid = explainer, target, grid
        self._stitcher = tiling.Stitcher(grid)
        self._rows: list[TileRow] = []
        self._failures: list[TileFailure] = []
        self._facts: dict[str, Any] = {}

    def explain_tiles(self, batches: Iterator[list[tuple[Tile, Any]]], count: int, size: int) -> None:
        """Explain all tiles, batch by batch, with a progress bar."""
        for _, batch in zip(iterate_chunks(count, size, Stage("Explaining", "tile", size)), batches, strict=True):
            readable = [(tile, pixels) for tile, pixels in batch if not isinstance(pixels, str)]
            with show_progress(False):
                results = self._explain([Image.fromarray(pixels) for _, pixels in readable])
            by_tile = {tile: result for (tile, _), result in zip(readable, results, strict=True)}
            for tile, pixels in batch:
                self._add(tile, by_tile.get(tile, pixels))

    def _explain(self, images: list[Image.Image]) -> list[Explanation | str | None]:
        """Return the explanations; ``None`` for a tile in which a detector finds nothing."""
        try:
            return list(self._explainer(images, [self._target] * len(images))) if images else []
        except NothingFoundError:
            return [None] if len(images) == 1 else [self._explain([image])[0] for image in images]

    def _add(self, tile: Tile, result: Explanation | str | None) -> None:
        if result is None:
            side = self._grid.side
            self._stitcher.add(tile, np.zeros((side, side), np.float32))
        elif isinstance(result, str):
            self._fail(tile, result)
        elif not np.isfinite(result.raw).all():
            self._fail(tile, "the map holds NaN or infinite values")
        else:
            self._stitcher.add(tile, tiling.place_on_tile(result, self._grid.side))
            self._facts = self._facts or {name: getattr(result, name) for name in ("label", "index", "method", "layer")}
            self._rows.append(TileRow(*self._locate(tile), **result.list_facts()))

    def _fail(self, tile: Tile, reason: str) -> None:
        self._failures.append(TileFailure(*self._locate(tile), reason))

    def _locate(self, tile: Tile) -> tuple[int, int, int]:
        """Return x, y and side of a tile in pixels of level 0."""
        scale = self._grid.scale
        return round(tile.x * scale), round(tile.y * scale), round(self._grid.side * scale)

    def build_result(self, reader: SlideReader, skipped: int, notes: Sequence[str]) -> SlideExplanation:
        """Normalize the map, once, and return the result.

        Raises:
            ImageError: No tile could be explained.
        """
        if not self._facts:
            reason = self._failures[0].reason if self._failures else "the model found nothing in any of them"
            raise ImageError(f"slide {reader.path}: none of its tiles could be explained: {reason}.")
        heatmap, explained, limits = self._stitcher.finish()
        scale = self._grid.scale * self._grid.cell
        return SlideExplanation(
            path=reader.path,
            **self._facts,
            heatmap=heatmap,
            explained=explained,
            limits=limits,
            scale=scale,
            mpp=None if reader.mpp is None else reader.mpp * scale,
            tiles=self._rows,
            skipped=skipped,
            failures=self._failures,
            warnings=(*notes, *_summarize_warnings(self._rows, len(self._failures))),
        )


def _summarize_warnings(rows: Sequence[TileRow], failed: int) -> Iterator[str]:
    """Yield each kind of warning once, with the number of tiles that have it."""
    if failed:
        yield f"{failed:,} of {len(rows) + failed:,} tiles could not be explained; see failures."
    kinds = (kind for row in rows for kind in zip(row.warning_codes, row.warnings, strict=True))
    yield from count_texts(kinds, f"{len(rows):,} tiles")
