"""Heat beyond the outermost cells, kept or fading: ``python -m benchmarks beyond``.

Where the cells of a layer lie up and to the left of where a stretched grid has them, the last ones are far from the
border. Kept, their heat covers more pixels than that of other cells. Fading, each cell covers half a stride beyond its
center, see :func:`camtool.geometry.resampling.weigh_cells`. Both rules draw the heat of the same methods on the same
photos, so the differences are paired.

Single deletion is Spearman's correlation of the heat in 4 x 4 cells with the drop of the logit when a cell is set to
the mean color, "49 cells" that in 7 x 7 cells that are blurred, "masks" the metric faithfulness-correlation with 8
masks of each size. ``down`` and ``right`` say how far the center of the heat lies from the center of the drops of the
49 cells, in pixels. What a photo shows moves the heat of its mirror image to the other side, a wrong placement does
not: ``right, stays`` is the mean over a photo and its mirror image.

The photos of ``--photos`` are those on which the rule was chosen; those of installed packages were not looked at.
Fading takes heat from the edges, so it must not suit photos in the middle alone. So the 8 photos with the largest share
of the drops in the outermost cells of one edge are measured by themselves, and the others: photos that are chosen by
what is to be predicted favor any heat at edges. With ``--crops``, crops put the cell whose removal counts most at each
edge; a photo has up to two crops for an edge, which count as independent. On scenes, the share of the heat on the
object is measured, with the demo's network and those of ``--scenes``, which stand on its first convolutions. The
centers of the Swin transformer's cells are not known, so only its depths before a merge of patches can differ. Without
networks nothing is measured: the table of ``docs/placement.md`` is made from the JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

import camtool
from benchmarks.networks import (
    HELD_OUT,
    TITLES,
    TUNED,
    Heat,
    Network,
    PhotosOption,
    Question,
    QuestionScore,
    ScenesOption,
    WeightsOption,
    explain_by,
    read_networks,
    write_between,
)
from benchmarks.package_photos import read_package_photos
from benchmarks.paired import describe_machine
from camtool.geometry import resampling
from camtool.rendering.contact_sheet import draw_captioned_images
from camtool.rendering.image_writing import write_image
from camtool.trust.metrics import faithfulness
from camtool.trust.metrics.localization import compute_energy_in_mask

RESULTS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "placement.md"

_EDGES = {"top": (0.1, 0.5), "bottom": (0.9, 0.5), "left": (0.5, 0.1), "right": (0.5, 0.9)}
"""Where a crop has the evidence, in shares of its height and width."""

_CROPS = (0.65, 0.5)
"""Sides of the crops, in shares of the photo's shorter side."""

_LEAST_ON_CROPS = 0.3
"""The least probability of the class on a crop of a photo."""

_SCENES = 150
"""Scenes of one object, of which those count that the network recognizes."""

_PRINTABLE = ("skimage/", "sklearn/", "matplotlib/")
_NO_PHOTOS = ("skimage/microaneurysms.png", "skimage/hubble_deep_field.jpg", "skimage/ihc.png")
"""Packages whose photos are drawn, and what of them is left out, so that there are 20."""

_AT_EDGE = 8
"""Photos with most evidence at one edge that are measured by themselves."""

_MASKS = 8
"""Masks of each size."""

_GAINS = ("single deletion", "49 cells", "masks")
_MEASURES = (*_GAINS, "down", "right", "right, stays")

Maps = NDArray[np.float64]
Rule = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Removals:
    """A question and drops of its logit.

    Attributes:
        question: The question.
        coarse: Without each of 4 x 4 cells.
        fine: With each of 7 x 7 cells blurred, ``(7, 7)``.
        masks: Without what is under random masks.
        mirrored: As ``fine``, of the mirrored image.
    """

    question: Question
    coarse: Tensor
    fine: Maps
    masks: Tensor
    mirrored: Maps

    @property
    def at_edge(self) -> float:
        """The largest share of the drops in the outermost cells of one edge."""
        shares = self.fine.clip(0) / max(float(self.fine.clip(0).sum()), 1e-12)
        return float(max(shares[0].sum(), shares[-1].sum(), shares[:, 0].sum(), shares[:, -1].sum()))


def main(
    weights: WeightsOption = [],  # noqa: B006
    photos: PhotosOption = None,
    method: Annotated[list[str], typer.Option(help="Method; may be repeated.")] = ["gradcam", "layercam", "faithcam"],  # noqa: B006
    scenes: ScenesOption = None,
    threads: Annotated[int, typer.Option(help="Threads for torch.")] = 2,
    out: Annotated[Path, typer.Option(help="The JSON file.")] = RESULTS,
    sheet: Annotated[Path | None, typer.Option(help="Only draw faithcam by both rules on unseen photos, here.")] = None,
    *,
    crops: Annotated[bool, typer.Option("--crops", help="Measure on crops of the photos, too.")] = False,
) -> None:
    """Measure, print a table, and write the numbers to a JSON file, which keeps what it holds of other rows."""
    torch.set_num_threads(threads)
    if sheet is not None:
        _draw_sheet(camtool.load(*weights[0].split("=", 1)), sheet)
        return
    known = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    rows = {(row["network"], row["photos"], row["method"]): row for row in known}
    if not weights and scenes is None:
        write_between(PAGE, "beyond", format_table(rows))
        return
    for network in read_networks(weights, photos, scenes):
        for place, asked_by_place in _ask(network, has_crops=crops).items():
            for asked in method if len(asked_by_place) > 2 else ():
                measure = _measure_on_objects if place == "scenes" else _measure
                kept, fading = (measure(network, asked, asked_by_place, rule) for rule in (_keep_heat, nullcontext))
                measures, gains = (("on the object",), 1) if place == "scenes" else (_MEASURES, len(_GAINS))
                for name, chosen in _split_by_edge(place, asked_by_place).items():
                    compared = _compare(kept[chosen], fading[chosen], measures, gains)
                    row = {"network": network.name, "photos": name, "method": asked, **compared}
                    rows[network.name, name, asked] = row
                    print(json.dumps(row), flush=True)
        result = {"machine": describe_machine(threads), "rows": [*rows.values()]}
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _split_by_edge(place: str, asked: Sequence[Removals]) -> dict[str, NDArray[np.intp]]:
    """Return the indices of all questions, of photos also of those with most evidence at one edge and of the others."""
    order = np.arange(len(asked))
    if place not in ("chosen on", "unseen") or len(asked) < 2 * _AT_EDGE:
        return {place: order}
    order = np.argsort([-removals.at_edge for removals in asked], kind="stable")
    return {
        place: np.sort(order),
        f"{place}, {_AT_EDGE} at one edge": order[:_AT_EDGE],
        f"{place}, others": order[_AT_EDGE:],
    }


def format_table(rows: dict[tuple[str, str, str], dict[str, Any]]) -> str:
    """Return the gains of heat that fades over heat that is kept, in Markdown."""
    methods = ("gradcam", "faithcam")
    head = [f"`{name}`, {_GAINS[0]}" if measure == _GAINS[0] else measure for name in methods for measure in _GAINS]
    lines = [f"<!-- numbers: benchmarks/{RESULTS.name} -->", f"| network, photos | number | {' | '.join(head)} |"]
    lines.append("|---" * (len(head) + 2) + "|")
    names = dict.fromkeys((network, photos) for network, photos, _ in rows if not photos.startswith("chosen on,"))
    for network, photos in names:
        entries = [rows.get((network, photos, name), {}) for name in methods]
        if all("masks" in entry for entry in entries):
            found = [entry[measure] for entry in entries for measure in _GAINS]
            cells = [f"{one['fading']:.3f}, {one['gain']:+.3f} +- {one['error']:.3f}" for one in found]
            name = photos.replace("chosen on", "on which the rule was chosen")
            lines.append(" | ".join([f"| {TITLES[network]}, {name} | {entries[0]['count']}", *cells]) + " |")
    return "\n".join(lines)


def _draw_sheet(loaded: camtool.Loaded, path: Path) -> None:
    """Draw photos of packages that allow to print them, and faithcam with heat that is kept and that fades on each."""
    images, captions = [], []
    for name, image in read_package_photos():
        if not name.startswith(_PRINTABLE) or name in _NO_PHOTOS:
            continue
        overlays = []
        for rule in (_keep_heat, nullcontext):
            with rule():
                overlays.append(camtool.explain(loaded, image, method="faithcam"))
                pixels = overlays[-1].overlay()
            images += [np.asarray(image), pixels] if rule is _keep_heat else [pixels]
        captions += [overlays[0].label or "", "before", "now"]
    squares = [np.asarray(ImageOps.fit(Image.fromarray(pixels), (300, 300))) for pixels in images]
    write_image(path, draw_captioned_images(squares, captions, columns=6, width=150), quality=80)


@contextmanager
def _keep_heat() -> Iterator[None]:
    """Draw as before: the outermost cells hold their values up to the border, in maps and in what they are made of."""
    weigh_cells = resampling.weigh_cells
    # Matrices of one rule must not serve the other, neither in the block nor after it.
    resampling.build_interpolation_matrix.cache_clear()
    try:
        with patch.object(resampling, "weigh_cells", lambda *args, **_: weigh_cells(*args, holds=True)):
            yield
    finally:
        resampling.build_interpolation_matrix.cache_clear()


def _measure(network: Network, method: str, asked: Sequence[Removals], rule: Rule) -> Maps:
    """Return the measures of each question, ``(Q, measures)``."""
    mirrored = [replace(removals, question=_mirror(removals.question)) for removals in asked]
    pairs = zip(*(_iterate_heat(network, method, each, rule) for each in (asked, mirrored)), strict=True)
    return np.array([_judge(heat, other, removals) for (heat, removals), (other, _) in pairs])


def _mirror(question: Question) -> Question:
    return replace(question, inputs=question.inputs.flip(-1))


def _measure_on_objects(network: Network, method: str, asked: Sequence[Removals], rule: Rule) -> Maps:
    """Return the share of the heat on the objects of scenes, ``(Q, 1)``."""
    pairs = _iterate_heat(network, method, asked, rule)
    return np.array([[compute_energy_in_mask(heat, _get_mask(removals))] for heat, removals in pairs])


def _get_mask(removals: Removals) -> NDArray[np.bool_]:
    assert removals.question.mask is not None
    return removals.question.mask


def _iterate_heat(
    network: Network, method: str, asked: Sequence[Removals], rule: Rule
) -> Iterator[tuple[Heat, Removals]]:
    """Yield the heat by a rule for each question."""
    explain = explain_by(method)
    with rule():
        for removals in asked:
            yield explain(network.model, removals.question), removals


def _judge(heat: Heat, mirrored: Heat, removals: Removals) -> list[float]:
    maps = torch.from_numpy(heat)[None].double()
    down, right = _measure_offset(heat, removals.fine)
    return [
        float(faithfulness.compare_with_cell_drops(maps, removals.coarse)),
        float(faithfulness.compare_with_cell_drops(maps, torch.from_numpy(removals.fine).reshape(1, -1), cells=7)),
        float(faithfulness.compare_with_mask_drops(maps, removals.masks)),
        *(down, right, (right + _measure_offset(mirrored, removals.mirrored)[1]) / 2),
    ]


def _measure_offset(heat: Heat, drops: Maps) -> Maps:
    """Return how far the center of the heat lies below that of the drops, and to its right, in pixels."""
    return _find_center(_average(heat.astype(np.float64), len(drops))) - _find_center(drops.clip(0))


def _compare(kept: Maps, fading: Maps, measures: Sequence[str], gained: int) -> dict[str, Any]:
    """Return the means of both rules, and for the first measures the paired gains with their standard errors."""
    valid = np.isfinite(kept).all(1) & np.isfinite(fading).all(1)
    gains, entry = (fading - kept)[valid], {"count": int(valid.sum())}
    errors = gains.std(0, ddof=1) / np.sqrt(len(gains))
    spread = fading[valid].std(0, ddof=1) / np.sqrt(len(gains))
    numbers: dict[str, Any] = {}
    for at, measure in enumerate(measures):
        numbers[measure] = {"kept": kept[valid, at].mean(), "fading": fading[valid, at].mean()}
        numbers[measure] |= {"gain": gains[:, at].mean(), "error": errors[at]} if at < gained else {"error": spread[at]}
    return entry | {
        name: {key: round(float(number), 3) for key, number in row.items()} for name, row in numbers.items()
    }


# --------------------------------------------------------------------------------------------------------- questions


def _ask(network: Network, *, has_crops: bool) -> dict[str, list[Removals]]:
    """Return the questions about scenes, or about photos of each place and, if asked, crops of them by edge."""
    if network.transform is None:
        nothing, none = np.zeros(0), torch.zeros(0)
        questions = network.list_questions(HELD_OUT, _SCENES)
        return {"scenes": [Removals(question, none, nothing, none, nothing) for question in questions]}
    asked: dict[str, list[Removals]] = {}
    for place, name in ((TUNED, "chosen on"), (HELD_OUT, "unseen")):
        for image, index in network.images.get(place, []):
            question = network.ask(image, index)
            if question is None:
                continue
            asked.setdefault(name, []).append(_remove_parts(network, question))
            for edge, crop in _iterate_crops(image, asked[name][-1]) if has_crops else ():
                at_edge = network.ask(crop, question.index, _LEAST_ON_CROPS)
                if at_edge is not None:
                    asked.setdefault(f"{name}, at the {edge} edge", []).append(_remove_parts(network, at_edge))
    return asked


def _remove_parts(network: Network, question: Question) -> Removals:
    score, mirrored = (QuestionScore(network.folded, each) for each in (question, _mirror(question)))
    fine, other = (
        faithfulness.measure_cell_drops(each, each.question.inputs, cells=7, removal="blur").double()
        for each in (score, mirrored)
    )
    coarse = faithfulness.measure_cell_drops(score, question.inputs).double()
    masks = faithfulness.measure_mask_drops(score, question.inputs, masks=_MASKS)
    return Removals(question, coarse, fine.reshape(7, 7).numpy(), masks, other.reshape(7, 7).numpy())


def _iterate_crops(image: Image.Image, removals: Removals) -> Iterator[tuple[str, Image.Image]]:
    """Yield crops that have the cell whose removal counts most at each edge, as far as the photo allows."""
    row, column = divmod(int(removals.coarse.argmax()), 4)
    width, height = image.size
    shorter = min(width, height)
    # As most transforms do: 7/8 of the shorter side, from the middle.
    seen = shorter * 7 / 8
    y, x = ((length - seen) / 2 + (at + 0.5) / 4 * seen for length, at in ((height, row), (width, column)))
    for share in _CROPS:
        side = share * shorter
        for edge, (down, across) in _EDGES.items():
            top, left = y - down * side, x - across * side
            # Along the edge the crop may slide.
            if edge in ("top", "bottom"):
                left = min(max(left, 0), width - side)
            else:
                top = min(max(top, 0), height - side)
            if min(top, left) >= 0 and top + side <= height and left + side <= width:
                # The transform cuts off an eighth, so the crop is given a margin of mirrored pixels.
                crop = image.crop((int(left), int(top), int(left + side), int(top + side)))
                yield edge, _add_margin(crop)


def _add_margin(crop: Image.Image) -> Image.Image:
    """Return a crop with mirrored pixels around it, which the usual transform cuts off again."""
    pixels = np.asarray(crop)
    margin = round(len(pixels) / 14)
    return Image.fromarray(np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric"))


def _average(heat: Maps, cells: int) -> Maps:
    """Return the mean heat of each cell."""
    side = heat.shape[0] // cells
    means: Maps = heat[: side * cells, : side * cells].reshape(cells, side, cells, side).mean((1, 3))
    return means


def _find_center(values: Maps, size: int = 224) -> Maps:
    """Return the center of mass ``(y, x)`` of values that are not negative, in pixels of an input of ``size``."""
    places = (np.arange(len(values)) + 0.5) * size / len(values)
    total = values.sum()
    return np.array([values.sum(1) @ places, values.sum(0) @ places]) / total if total > 0 else np.full(2, size / 2)


if __name__ == "__main__":
    typer.run(main)
