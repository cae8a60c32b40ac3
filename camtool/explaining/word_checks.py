"""Does a word of an answer come from the image? Its probability is measured again for images without its evidence.

The words before a word stay as they are (teacher forcing), so what is left of its probability without the evidence
comes from the text. The image is changed in three ways: the region of the word's map is covered, control regions of
the same size elsewhere are, each by several fills, and the whole image is one color.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from camtool.arguments.checks import check_choice, check_count, check_number
from camtool.arguments.message_parts import format_percent
from camtool.errors import CamtoolError
from camtool.explaining.explanation import Explanation
from camtool.trust.metrics.removal import REMOVALS, start_removal

# From an image to the probability of each word of the answer, given the text before it, ``(W,)``.
Score = Callable[[Image.Image], "NDArray[np.float64]"]

Source = Literal["region", "image", "text"]

# The region of a map: where the heat is at least this share of its peak, and at most this share of the photo.
_WARM, _LARGEST = 0.5, 0.25

# The least probability that must be lost in any case: a word of less than that is none that the model would say.
_FEWEST = 0.01

# Places per axis from which control regions are chosen.
_SHIFTS = 5


@dataclass(frozen=True)
class WordCheck:
    """The probability of one word with and without its evidence in the image.

    Attributes:
        word: The word.
        probability: Its probability with the image, given the text before it: the product over its tokens.
        covered: The same with the region of its map covered; the highest one, if there are several fills.
        control: The same with control regions covered: their median, by the fill of ``covered``; NaN if none fits.
        blank: The same with an image of one color, its mean color.
        share: The share of the photo that the region is, from 0 to 1.
        source: ``"region"``: without its region, the word loses more than without the controls, by every fill.
            ``"image"``: it loses as much to the image of one color, or without its region by one of the fills alone.
            ``"text"``: neither, so it comes from the text.
    """

    word: str
    probability: float
    covered: float
    control: float
    blank: float
    share: float
    source: Source

    @property
    def sentence(self) -> str:
        """The verdict and its numbers in words."""
        verdict = {
            "region": "from its region of the image",
            "image": "from the image, but not surely from the region of its map",
            "text": "from the text, not from the image",
        }[self.source]
        full, covered, control, blank = map(format_percent, (self.probability, self.covered, self.control, self.blank))
        beside = "" if np.isnan(self.control) else f" ({control} with as much covered elsewhere)"
        return (
            f"{self.word!r} comes {verdict}: its probability is {full}, {covered} with its region covered{beside}, and "
            f"{blank} with an image of one color."
        )


def check_words(
    score: Score, explanations: Sequence[Explanation], *, fills: Sequence[str], controls: int, least: float
) -> tuple[WordCheck, ...]:
    """Return a check of each word, with ``2 + W · fills · (1 + controls)`` forward passes.

    Args:
        score: The probabilities of the words, given an image.
        explanations: The maps of the words.
        fills: Names of :data:`camtool.trust.metrics.removal.REMOVALS`. What a region is needed for must hold for each.
        controls: The most control regions of each word.
        least: The least share of the probability that must be lost for the word to need what was covered.

    Raises:
        CamtoolError: A fill is unknown, there is none, or a number is out of range.
    """
    check_count("controls", controls, least=0)
    check_number("least", least, above=0, below=1)
    if isinstance(fills, str) or not fills:
        raise CamtoolError(f"fills must be one or more of {', '.join(REMOVALS)}, got {fills!r}.")
    for fill in fills:
        check_choice("fills", fill, REMOVALS)
    photo = explanations[0].photo
    pixels = torch.tensor(photo, dtype=torch.float32).permute(2, 0, 1)[None]
    removals = [start_removal(pixels, fill) for fill in fills]

    def measure(index: int, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the probability of a word without some pixels, for each fill."""
        masks, rows = torch.from_numpy(mask)[None], torch.zeros(1, dtype=torch.long)
        return np.array([score(_to_image(removal(rows, masks)))[index] for removal in removals])

    whole = score(Image.fromarray(photo))
    blank = score(_to_image(pixels.mean((2, 3), keepdim=True).expand_as(pixels)))
    checks = []
    for index, explanation in enumerate(explanations):
        region = find_region(explanation.heatmap)
        covered = measure(index, region)
        others = [measure(index, mask) for mask in _place_controls(region, controls)]
        control = np.median(others, axis=0) if others else np.full(len(fills), np.nan)
        lost = np.fmin(whole[index], control) - covered  # fmin leaves out the NaN of no control
        weakest = int(lost.argmin())
        source = _judge(lost, whole[index] - blank[index], max(least * whole[index], _FEWEST))
        numbers = whole[index], covered[weakest], control[weakest], blank[index], region.mean()
        full, hidden, beside, empty, share = map(float, numbers)
        checks.append(WordCheck(explanation.label, full, hidden, beside, empty, share, source))
    return tuple(checks)


def _judge(lost: NDArray[np.float64], lost_to_blank: float, needed: float) -> Source:
    """Return where a word comes from, by the probability lost without its region, for each fill, and to one color."""
    if lost.min() >= needed:
        return "region"
    return "image" if max(lost.max(), lost_to_blank) >= needed else "text"


def find_region(heatmap: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return the region of a map ``(H, W)``: the warmest pixels, at most a quarter; none if all have the same heat."""
    if heatmap.max() <= heatmap.min():
        return np.zeros(heatmap.shape, bool)
    threshold = max(_WARM * float(heatmap.max()), float(np.quantile(heatmap, 1 - _LARGEST)))
    region: NDArray[np.bool_] = heatmap >= threshold
    return region if region.mean() <= 2 * _LARGEST else heatmap > threshold


def _place_controls(region: NDArray[np.bool_], count: int) -> Iterator[NDArray[np.bool_]]:
    """Yield up to ``count`` regions of the same size that do not overlap a region: it is shifted around the edges."""
    steps = [np.linspace(0, side, _SHIFTS, endpoint=False).round().astype(int) for side in region.shape]
    shifted = [np.roll(region, shift, (0, 1)) for shift in product(*steps)] if region.any() else []
    apart = [mask for mask in shifted if not (mask & region).any()]
    chosen = np.unique(np.linspace(0, len(apart) - 1, min(count, len(apart))).round().astype(int))
    yield from (apart[index] for index in chosen)


def _to_image(pixels: torch.Tensor) -> Image.Image:
    """Return pixels ``(1, 3, H, W)`` from 0 to 255 as an image."""
    rounded = pixels[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(np.ascontiguousarray(rounded.numpy()))
