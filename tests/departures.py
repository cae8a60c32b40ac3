"""Where the programs that the authors of the papers released compute something else than camtool.

``test_methods_readme.py`` compares this list with the reference of the methods and with their defaults;
``test_released_programs.py`` shows some of it in numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["DEPARTURES", "Departure"]


@dataclass(frozen=True)
class Departure:
    """Where a released program computes something else.

    Attributes:
        name: The method, wrapper or merge, as camtool calls it.
        what: What the program does.
        here: What camtool does.
        options: The defaults of camtool's options on which that rests.
    """

    name: str
    what: str
    here: str
    options: dict[str, Any] = field(default_factory=dict)


DEPARTURES = (
    Departure(
        "gradcam++",
        "each channel's `alpha` are divided by their sum.",
        "`alpha` is that of eq. 19. The difference is large at a layer with negative activations.",
    ),
    Departure(
        "zoomcam",
        "maps are brought to the next layer's grid and combined layer by layer.",
        '`merge="max"` brings all maps to the finest grid at once.',
    ),
    Departure(
        "odam",
        "gradients are not smoothed.",
        "they are smoothed by default; `smoothing=0` is the program's.",
        {"smoothing": 1.0},
    ),
    Departure(
        "integratedgradcam",
        "the path has 50 steps and `t` starts from 0; `A(0)` is 0.",
        "the path has 20 steps, `t` starts from 1/20, and `A(0)` is what the layer returns for black.",
        {"steps": 20},
    ),
    Departure(
        "cameras",
        "pictures and maps are resized bicubically, at eight sizes from 224 to 924 pixels.",
        "they are resized linearly, at three scales of the picture's own size.",
        {"scales": (1.0, 1.5, 2.0)},
    ),
    Departure(
        "groupcam",
        "low positions are kept, the unscaled masks are summed, and a group's weight is rectified (another revision of "
        "it does as camtool does).",
        "the lower 70 % of a group's positions are removed, masks scaled into [0, 1] are summed, and only the sum is "
        "rectified.",
        {"denoise": 0.7},
    ),
    Departure(
        "reciprocam",
        "the score is the softmax probability; it holds a Gaussian, which is switched off.",
        "it is the target's own score, a logit for a class; `Probability(index)` as the target is the program's.",
        {"gaussian": False},
    ),
    Departure(
        "polycam",
        "masks are clipped at the percentiles 0.1 and 99.9 of the channel, before they are resized.",
        "masks are resized, then scaled into [0, 1] by their extremes.",
    ),
    Departure(
        "opticam",
        "50 steps at most; it stops early.",
        "100 steps, all of them.",
        {"steps": 100},
    ),
    Departure(
        "rise",
        "a mask's cells are mirrored at its borders when it is enlarged, and the sum is divided by `keep · N`.",
        "border cells are continued, and the sum is divided by what the masks showed of each pixel.",
        {"keep": 0.5},
    ),
    Departure(
        "legrad",
        "the wrapper looks at the last two layers by default.",
        "all layers count, as in the paper.",
    ),
    Departure(
        "sess",
        "twelve scales, and the whole is blurred in the end; grad-cam follows it.",
        "three scales, and nothing is blurred.",
        {"sess_scales": (1.0, 1.5, 2.0)},
    ),
    Departure(
        "refinecam",
        "the maps are multiplied at the picture's size; grad-cam follows it.",
        "they are multiplied on the finest of the layers' grids.",
    ),
)
