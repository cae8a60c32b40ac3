"""The result of an explanation: a heatmap on the image, what it explains, and ways to show and save it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from camtool.arguments.checks import check_count
from camtool.arguments.explain_arguments import to_list
from camtool.arguments.message_parts import count_warnings, format_percent
from camtool.errors import CamtoolError, ImageError
from camtool.geometry.cell_centers import CellCenters
from camtool.geometry.crop_and_resize import Geometry
from camtool.geometry.origins import Origin, find_heatmap_suffix
from camtool.hooks.structures.caches import cached_property
from camtool.rendering import image_writing, regions
from camtool.rendering.colormaps import DEFAULT_COLORMAP
from camtool.rendering.contact_sheet import add_legend
from camtool.rendering.notebook.cards import CardContent, HeatLayer, build_card, build_sheet
from camtool.rendering.views import View
from camtool.trust.checks.check_report import CheckReport
from camtool.warning_codes import HeatPlaces, MapWarning, find_heat_places

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import NDArray
    from torch import nn

    from camtool.evidence.evidence import Evidence
    from camtool.inputs.prepared_inputs import PreparedInput
    from camtool.methods.refinement import Posterior
    from camtool.rendering.colormaps import Colormap
    from camtool.trust.metrics.removal import Removals
    from camtool.trust.sufficiency import VerifiedRegion

# Answers of the model that a notebook shows.
_ANSWERS = 5

# Share of a score by which engines and precisions may differ.
SAME_SCORE = 0.02


class Source(Protocol):
    """Source of an explanation: model, image, target and method. It runs the model again."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def engines(self) -> Sequence[str]:
        """The engines that run it, in order; none if it runs as it is."""

    def check(self, explanation: Explanation, only: Collection[str] | None = None) -> CheckReport:
        """Do what :meth:`Explanation.check` does, by the checks with some names."""

    def find_regions(self, explanation: Explanation, kind: str, *arguments: Any) -> VerifiedRegion:
        """Do what :meth:`Explanation.sufficient` and :meth:`Explanation.necessary` do."""

    def explain_best(self, count: int) -> list[Explanation]:
        """Return what explains the target and the model's highest answers, the target alone if that takes long."""

    def gather_at_input(self) -> tuple[Evidence, PreparedInput]:
        """Return the evidence about the target at the input, from a new forward pass, and the prepared image."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Explanation of one target on one image by one method.

    Attributes:
        raw: ``(h, w)`` float32, the method's own values, not normalized. The size is the layer's, and the input's for
            methods at the input. ``(l,)`` for a signal, ``(d, h, w)`` for a volume, ``(t, h, w)`` for a clip.
        view: What the user gave, for display, and the placement of maps on it; see :mod:`camtool.rendering.views`.
        label: What is explained: the class's label, ``"class 281"`` if labels are unknown, or the target's label.
        index: The class's index; ``None`` for a target that is not about a class.
        score: The target's score, a logit for a class.
        probability: The class's probability; ``None`` for a target that is not about a class.
        method: The method's name.
        layer: The layer's dotted name; several are joined by ``" + "``. Empty for methods that use no layer.
        warnings: Reasons not to trust this map, one sentence each, with ``.code`` and ``.remedy``.
        box: ``(x0, y0, x1, y1)`` in pixels of the photo, the box of the explained detection; ``None`` for any other
            target.
        centers: Where the cells of ``raw`` lie in the model's input; ``None`` for a grid that is stretched over the
            input.
        source: What it was made from, which can ask the model again; ``None`` after pickling, and if
            :func:`camtool.explain` did not make it. It holds the model and the input.
        predicted_index: The index of the model's top class for the image. The explained target may be another.
            ``None`` if the model is no classifier, or if its scores are not finite.
        predicted_label: The label of that class; ``None`` if there is none.
        uncertainty: The standard deviation of ``raw``, of the same shape, if passes refined it, see
            :func:`camtool.refine`, or over the members of :func:`camtool.explain_ensemble`; else ``None``.
        passes: The number of these passes or members; 0 for other maps.
        groups: The classes that count together, index → label, if a group was explained: one mapping, and a second one
            for the classes that it was set against; empty for other targets.
        posterior: What these passes tell of all cells together, for :meth:`drop_in`; ``None`` without them.
        region: What :meth:`sufficient` returned, if a run of a folder asked for it; else ``None``.
    """

    raw: NDArray[np.float32]
    view: View
    label: str
    index: int | None
    score: float
    probability: float | None
    method: str
    layer: str
    warnings: tuple[MapWarning, ...] = ()
    box: tuple[float, float, float, float] | None = None
    centers: CellCenters | None = None
    source: Source | None = field(default=None, repr=False)
    predicted_index: int | None = None
    predicted_label: str | None = None
    uncertainty: NDArray[np.float32] | None = None
    passes: int = 0
    groups: tuple[Mapping[int, str], ...] = ()
    posterior: Posterior | None = field(default=None, repr=False)
    region: VerifiedRegion | None = field(default=None, repr=False)

    @property
    def photo(self) -> NDArray[np.uint8]:
        """``(H, W, 3)`` uint8, the photo that the user gave, upright.

        Raises:
            CamtoolError: The input was a signal, a volume or a clip.
        """
        return self.view.photo

    @property
    def geometry(self) -> Geometry | None:
        """The crop and resize that made the model's input from the photo; ``None`` for other inputs."""
        return self.view.geometry

    @property
    def origin(self) -> Origin | None:
        """Where the pixels lie in the file and in the world: of DICOM, NIfTI and TIFF files; ``None`` for others."""
        return self.view.origin

    @cached_property
    def heatmap(self) -> NDArray[np.float32]:
        """``(H, W)`` float32 in [0, 1], on the original photo; 0 for what the model did not see.

        ``(L,)`` for a signal, ``(D, H, W)`` for a volume, ``(T, H, W)`` for a clip.
        """
        return self.view.to_heatmap(self.raw, self.centers)

    @property
    def shift(self) -> tuple[float, ...]:
        """Distance of the map's middle from the middle of a stretched grid, in pixels of the model's input.

        One number per axis, ``(y, x)`` for images; negative numbers are shifts up and to the left.
        """
        return (0.0,) * self.raw.ndim if self.centers is None else self.centers.compute_shift(self.raw.shape)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Booleans of the heatmap's shape: True for the part of the photo that the model received."""
        return self.view.seen

    def overlay(
        self,
        alpha: float | None = None,
        colormap: Colormap = DEFAULT_COLORMAP,
        *,
        enlarge: bool = False,
        legend: bool = False,
    ) -> NDArray[np.uint8]:
        """Return the photo with the heatmap over it, ``(H, W, 3)`` uint8; what the model did not see is gray.

        A detection gets its box, with its label and probability. A signal is drawn as lines in the heatmap's colors, a
        volume as a sheet of slices and their maximum, a clip as a sheet of frames.

        Args:
            alpha: The opacity of the colors where the heatmap is 1, from 0 to 1; by default as in
                :func:`camtool.rendering.blend`.
            colormap: A name or a color map of matplotlib; see :func:`camtool.rendering.colormaps.get_palette`.
            enlarge: Enlarge the overlay of a small photo, as for :meth:`save`.
            legend: Draw below it what the colors and the gray part mean.
        """
        pixels = (
            self._draw_enlarged(alpha, colormap) if enlarge else self._draw(self.view, self.heatmap, alpha, colormap)
        )
        return add_legend(pixels, alpha, colormap, has_unseen=not self.seen.all()) if legend else pixels

    def places_overlay(
        self,
        report: CheckReport | None = None,
        alpha: float | None = None,
        colormap: Colormap = DEFAULT_COLORMAP,
        *,
        enlarge: bool = False,
    ) -> NDArray[np.uint8]:
        """Return the overlay with both places of a finding ``"heat-elsewhere"``, and a legend below it.

        A ring marks where the hottest cell is drawn, a cross the pixels on which it depends.

        Args:
            report: What :meth:`check` returned; by default the warning of ``explain(..., verify="places")`` is drawn.
            alpha: As for :meth:`overlay`.
            colormap: As for :meth:`overlay`.
            enlarge: As for :meth:`overlay`.

        Returns:
            ``(H + strip, max(W, 200), 3)`` uint8 RGB.

        Raises:
            CamtoolError: There is no such finding.
        """
        places = find_heat_places(self.warnings if report is None else report.findings)
        if places is None:
            raise CamtoolError("no finding 'heat-elsewhere' has places on a photo; draw overlay() instead.")
        pixels = self.overlay(alpha, colormap, enlarge=enlarge)
        times = pixels.shape[0] / self.view.size[0]
        scaled = HeatPlaces(*((times * x, times * y) for x, y in places))
        marked = regions.draw_places(pixels, scaled)
        return add_legend(marked, alpha, colormap, has_unseen=not self.seen.all(), has_places=True)

    def _draw(
        self, view: View, heatmap: NDArray[np.float32], alpha: float | None, colormap: Colormap, times: int = 1
    ) -> NDArray[np.uint8]:
        """Return the overlay on a view that is enlarged ``times`` times."""
        pixels = view.draw_overlay(heatmap, alpha=alpha, colormap=colormap)
        if self.box is None:
            return pixels
        return regions.draw_boxes(pixels, [regions.grow_to_one_pixel(self.box, times)], labels=[self._caption])

    def _draw_enlarged(self, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP) -> NDArray[np.uint8]:
        """Return the overlay for saving and showing, in which a small photo is enlarged."""
        # The cached heatmap is not used: that of a large photo would stay in memory while the file is encoded.
        view = self.view.enlarge()
        return self._draw(view, view.to_heatmap(self.raw, self.centers), alpha, colormap, self.view.enlargement)

    @property
    def _caption(self) -> str:
        """The label and, if there is one, the probability."""
        return self.label if self.probability is None else f"{self.label} {self.probability:.0%}"

    def uncertainty_overlay(
        self, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP
    ) -> NDArray[np.uint8]:
        """Return the photo with the uncertainty over it in place of the heat, ``(H, W, 3)`` uint8.

        The most uncertain cell has full color, and no color is the least uncertainty of all cells.

        Args:
            alpha: As for :meth:`overlay`.
            colormap: As for :meth:`overlay`.

        Raises:
            CamtoolError: No passes refined the explanation.
        """
        if self.uncertainty is None:
            raise CamtoolError("this explanation has no uncertainty; draw that of camtool.refine(result, passes=64).")
        placed = self.view.to_heatmap(self.uncertainty, self.centers)
        return self.view.draw_overlay(placed, alpha=alpha, colormap=colormap)

    def signed_overlay(self, alpha: float | None = None) -> NDArray[np.uint8]:
        """Return the photo with the method's own values over it, ``(H, W, 3)`` uint8: red above 0, blue below.

        The color is strongest at the largest magnitude, and 0 has none. Methods whose maps have both signs are e.g.
        ``signed-gradcam`` and ``cam``.

        Args:
            alpha: The opacity at the largest magnitude, from 0 to 1; by default 0.7.

        Raises:
            CamtoolError: The input was no photo.
        """
        return self.view.draw_signs(self.raw, self.centers, alpha=alpha)

    def masked(self) -> NDArray[np.uint8]:
        """Return the photo times the heatmap, ``(H, W, 3)`` uint8: only the important parts remain visible."""
        return self.view.draw_masked(self.heatmap)

    def frames(self, alpha: float | None = None, colormap: Colormap = DEFAULT_COLORMAP) -> NDArray[np.uint8]:
        """Return every frame of a clip, or slice of a volume, with the heatmap over it: ``(T, H, W, 3)`` uint8.

        Raises:
            CamtoolError: The input was no clip and no volume.
        """
        return self.view.draw_frames(self.heatmap, alpha=alpha, colormap=colormap)

    def boxes(self, threshold: float | None = None) -> list[tuple[int, int, int, int]]:
        """Return boxes ``(x0, y0, x1, y1)`` around the regions of a photo with high values, the largest first.

        Args:
            threshold: The lowest value of a region, from 0 to 1; by default the one that Otsu's method finds.

        Raises:
            CamtoolError: The input was no photo.
        """
        return self.view.find_boxes(self.heatmap, threshold)

    def contours(self, threshold: float | None = None) -> list[NDArray[np.float32]]:
        """Return outlines of the regions of a photo with high values, each ``(K, 2)`` of x and y, the longest first.

        Args:
            threshold: As for :meth:`boxes`.

        Raises:
            CamtoolError: The input was no photo.
        """
        return self.view.find_contours(self.heatmap, threshold)

    def heat_in(self, region: str | Sequence[float] | NDArray[np.bool_]) -> float:
        """Return the share of the heat that lies in a region of the photo, from 0 to 1; NaN for a map of zeros.

            result.heat_in("bottom-left")  # a quarter of width and height, e.g. for a watermark
            result.heat_in((10, 20, 300, 200))  # a box in pixels
            result.heat_in("0%,80%,30%,100%")  # a box in percent of the photo
            result.heat_in(lesion)  # a mask of the photo's size

        Args:
            region: A name in :data:`camtool.rendering.regions.PLACES`, a box ``(x0, y0, x1, y1)``, or a boolean mask of
                the heatmap's shape.

        Raises:
            OverlayError: The region is none of these, or has no pixel of the photo.
        """
        return regions.compute_heat_share(self.heatmap, region)

    def drop_in(
        self, region: str | Sequence[float] | NDArray[np.bool_], *, blurred: bool = True
    ) -> tuple[float, float, float]:
        """Return how much the score drops if a region is hidden, and the two ends of the interval of 90 %.

            drop, low, high = camtool.refine(result, passes=64).drop_in((10, 20, 300, 200))

        The region is not hidden by itself: the drop follows from those under the masks of the passes. A part of it that
        the model does not see counts as nothing.

        Args:
            region: As for :meth:`heat_in`.
            blurred: The region shows the blurred image; else an input of 0, which is gray if the input is normalized.

        Returns:
            Three numbers in units of the score: the expected drop, and the ends.

        Raises:
            CamtoolError: No passes refined the explanation.
            OverlayError: As for :meth:`heat_in`.
        """
        if self.posterior is None:
            raise CamtoolError("this explanation has no intervals; ask that of camtool.refine(result, passes=64).")
        mask = regions.to_mask(region, self.view.size)
        return self.posterior.find_interval(mask, self.geometry, blurred=blurred)

    def sufficient(
        self, keep: float = 0.9, passes: int = 200, *, fill: Removals = "blur", regions: int = 1, cells: int = 16
    ) -> VerifiedRegion:
        """Return a small part of the photo that alone keeps a share of the probability, see docs/sufficient.md.

            region = result.sufficient(keep=0.9)
            print(region)  # 21% of the photo alone, the rest blurred, gives 91% of the probability of 'tabby'; ...
            region.save("enough.png")

        The claim is confirmed by forward passes of the model itself. The map only says where to search first.

        Args:
            keep: The share of the probability to keep, above 0 and at most 1; of the score, for a target without a
                probability.
            passes: The most forward passes; with few the region is larger than it need be.
            fill: What replaces the rest: ``"blur"``, ``"inpaint"`` (slow), ``"mean"``, ``"zero"``, or a function from
                images ``(N, C, H, W)`` to what replaces their pixels. With several the claim holds for each of them.
            regions: The most regions without a common cell; those after the first are its ``others``. They share the
                passes.
            cells: Cells along each side of the model's input, of which the region consists.

        Raises:
            CamtoolError: An argument does not fit; the result was pickled, trimmed or refined, so its model is unknown;
                the input is no photo; or the model has changed.
        """
        return self._find_regions("sufficient", keep, passes, fill, regions, cells)

    def necessary(
        self, drop: float = 0.5, passes: int = 200, *, fill: Removals = "blur", regions: int = 1, cells: int = 16
    ) -> VerifiedRegion:
        """Return a small part of the photo without which a share of the probability is lost.

        Args:
            drop: The share of the probability that is lost, above 0 and below 1.
            passes: As for :meth:`sufficient`.
            fill: As for :meth:`sufficient`.
            regions: As for :meth:`sufficient`.
            cells: As for :meth:`sufficient`.

        Raises:
            CamtoolError: As for :meth:`sufficient`; or so much is not lost with all of the photo replaced.
        """
        return self._find_regions("necessary", drop, passes, fill, regions, cells)

    def list_facts(self, *others: str) -> dict[str, Any]:
        """Return what a row of a table says about the explanation, by name.

        Args:
            *others: Names of further attributes.
        """
        names = ("label", "index", "score", "probability", "warnings", *others)
        facts = {name: getattr(self, name) for name in names}
        return {**facts, "warning_codes": tuple(warning.code for warning in self.warnings)}

    def _find_regions(self, kind: str, *arguments: Any) -> VerifiedRegion:
        return self.get_source(f"{kind}()").find_regions(self, kind, *arguments)

    def get_source(self, caller: str) -> Source:
        """Return what the explanation was made from.

        Args:
            caller: What needs it, for the message.

        Raises:
            CamtoolError: It is not known.
        """
        if self.source is None:
            raise CamtoolError(
                "this explanation holds no model: it was pickled, changed, refined or trimmed, or was not made by "
                f"explain(). Call {caller} on what explain() returned."
            )
        return self.source

    def save(
        self,
        path: str | PathLike[str],
        *,
        alpha: float | None = None,
        colormap: Colormap = DEFAULT_COLORMAP,
        enlarge: bool = True,
        legend: bool = True,
    ) -> Path:
        """Write the overlay to a file, atomically; the suffix decides the format (png, jpg, webp, pdf, svg).

        With the suffix .nii or .nii.gz for an image of a NIfTI file, or .tif for that of a TIFF, the heatmap is written
        instead, as float32 numbers in [0, 1] on the grid of that file, with its affine, or its coordinate reference
        system and transform. Such a file has no colors, so the other arguments have no effect.

        Args:
            path: The file; missing folders are created.
            alpha: As for :meth:`overlay`.
            colormap: As for :meth:`overlay`.
            enlarge: Enlarge the overlay of a small photo, of at most 160 pixels a side, to at most 320 pixels a side:
                pixels of the photo are repeated, the heatmap is interpolated. ``False`` keeps the size.
            legend: As for :meth:`overlay`; ``False`` writes the pixels of the overlay alone.

        Raises:
            ImageError: The suffix is unknown, or does not fit the file that the image came from.
        """
        suffix = find_heatmap_suffix(Path(path))
        if suffix is not None:
            return self._write_heatmap(Path(path), suffix)
        return image_writing.write_image(path, self.overlay(alpha, colormap, enlarge=enlarge, legend=legend))

    def _write_heatmap(self, path: Path, suffix: str) -> Path:
        """Write the heatmap on the grid of the file that the image came from."""
        origin = self.origin
        if origin is None or suffix not in origin.suffixes:
            reason = "the image is from no such file" if origin is None else f"the image is from a {origin.format} file"
            raise ImageError(
                f"{path}: a {suffix} file holds the heatmap on the grid of a file of that format, and {reason}; "
                "give a name that ends in .png, .jpg or .webp for the overlay."
            )
        origin.write_heatmap(path, self.heatmap)
        return path

    def show(self) -> None:
        """Show the overlay, a small one enlarged: below the cell in a notebook, elsewhere in an image viewer."""
        image_writing.show_image(self._draw_enlarged())

    def check(self) -> CheckReport:
        """Run the checks that take further forward passes, and return all findings with their remedies.

        They compute the map again, for an image of one color, and for up to five other classes, so they take about
        seven times as long as the explanation. The model is left as it was; the results are deterministic.

        Raises:
            CamtoolError: The explanation was loaded from a pickle, refined or trimmed, so its model is unknown.
        """
        return self.get_source("check()").check(self)

    def trim_border(self, cells: int = 1) -> Explanation:
        """Return the explanation with the outermost cells of the map replaced by their nearest neighbors inside.

        This removes heat that comes from the padding of the layers, see ``"border-heat"`` in :meth:`check`. Evidence
        at the border of the image is lost as well.

        Args:
            cells: The width of the border, in cells of ``raw``.

        Raises:
            CamtoolError: ``cells`` is not a positive integer, or no cell is left inside.
        """
        check_count("cells", cells)
        if min(self.raw.shape) <= 2 * cells:
            raise CamtoolError(f"cells={cells} leaves nothing of a map of {self.raw.shape}; give a smaller number.")
        inside = self.raw[tuple(slice(cells, -cells) for _ in self.raw.shape)]
        raw = np.pad(inside, cells, mode="edge")
        return replace(self, raw=raw, source=None, uncertainty=None, passes=0, posterior=None)

    def __getstate__(self) -> dict[str, object]:
        # The source holds the model, which may be large and need not be picklable.
        return {**self.__dict__, "source": None}

    def _repr_png_(self) -> bytes:
        return image_writing.encode_image(self._draw_enlarged())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what notebooks show: a card with the model's answers to choose from, and a picture."""
        is_photo = self.view.kind == "photo"
        shown = [self, *self._explain_other_answers()] if is_photo else []
        content = CardContent(
            title=self._caption,
            facts=f"{self.method} at {self.layer}" if self.layer else self.method,
            overlay=self._draw_enlarged(),
            photo=self._draw_enlarged(alpha=0) if is_photo else None,
            layers=[HeatLayer(each.label, each.probability, each.heatmap) for each in shown],
            warnings=self.warnings,
            has_unseen=not self.seen.all(),
        )
        return build_card(content)

    def _explain_other_answers(self) -> list[Explanation]:
        """Return what explains the model's highest answers beside this one; none where that would take long."""
        if self.source is None or self.index is None or self.box is not None:
            return []
        own, *best = self.source.explain_best(_ANSWERS)
        # A model that was trained since then would answer about another map than the one that is shown.
        if not math.isclose(own.score, self.score, rel_tol=SAME_SCORE):
            return []
        return [other for other in best if other.index != self.index][: _ANSWERS - 1]

    def __repr__(self) -> str:
        probability = "" if self.probability is None else f", probability {format_percent(self.probability, 1)}"
        warned = f", {count_warnings(self.warnings)}" if self.warnings else ""
        where = f" at {self.layer}" if self.layer else ""
        refined = ""
        if self.uncertainty is not None and self.posterior is None:
            refined = f", mean of {self.passes} maps"
        elif self.uncertainty is not None:
            certain = format_percent(float((self.raw > self.uncertainty).mean()), 0)
            refined = f", refined by {self.passes} passes, {certain} of the cells above their uncertainty"
        return f"<Explanation of {self.label!r}{probability}: {self.method}{where}{refined}{warned}>"


class ExplanationList(list[Any]):
    """Explanations of several images, targets or methods; a notebook shows them side by side."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        flat = [each for entry in self for each in to_list(entry)]
        if not flat:
            return {}  # a notebook shows the text then
        pictures = [each._draw_enlarged() for each in flat]
        has_unseen = not all(each.seen.all() for each in flat)
        return build_sheet(pictures, [each._caption for each in flat], has_unseen=has_unseen)
