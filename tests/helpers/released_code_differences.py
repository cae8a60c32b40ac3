"""Differences between camtool and the code that the authors of the papers released.

``test_methods_readme.py`` compares this list with the reference of the methods and with the defaults of the methods;
``test_released_code.py`` shows some of the differences in numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReleasedCodeDifference:
    """A difference between camtool and released code.

    Attributes:
        name: The method, wrapper or merge, by camtool's name.
        theirs: What the released code does.
        ours: What camtool does.
        options: The defaults of camtool's options for which this holds.
    """

    name: str
    theirs: str
    ours: str
    options: dict[str, Any] = field(default_factory=dict)


RELEASED_CODE_DIFFERENCES = (
    ReleasedCodeDifference(
        "gradcam++",
        "The `alpha` of each channel are divided by their sum.",
        "`alpha` is that of eq. 19, with Σ |A|.",
    ),
    ReleasedCodeDifference(
        "zoomcam",
        "Maps are resized to the next layer's grid and combined layer by layer.",
        '`merge="max"` resizes all maps to the finest grid at once.',
    ),
    ReleasedCodeDifference(
        "odam",
        "Gradients are not smoothed.",
        "They are smoothed by default; `smoothing=0` matches the released code.",
        {"smoothing": 1.0},
    ),
    ReleasedCodeDifference(
        "integratedgradcam",
        "The path has 50 steps and `t` starts from 0; `A(0)` is 0.",
        "The path has 20 steps, `t` starts from 1/20, and `A(0)` is what the layer returns for black.",
        {"steps": 20},
    ),
    ReleasedCodeDifference(
        "cameras",
        "Images and maps are resized bicubically, at eight sizes from 224 to 924 pixels.",
        "They are resized linearly, at three scales of the image's own size.",
        {"scales": (1.0, 1.5, 2.0)},
    ),
    ReleasedCodeDifference(
        "groupcam",
        "Low positions are kept, the unscaled masks are summed, and the weight of a group is rectified (another "
        "revision of the code matches camtool).",
        "The lower 70 % of a group's positions are removed, masks scaled to [0, 1] are summed, and only the sum is "
        "rectified.",
        {"denoise": 0.7},
    ),
    ReleasedCodeDifference(
        "reciprocam",
        "The score is the softmax probability; a Gaussian exists and is switched off.",
        'It is the target\'s own score, a logit for a class; `score="probability"` matches the released code.',
        {"gaussian": False, "score": "target"},
    ),
    ReleasedCodeDifference(
        "vitreciprocam",
        "The score is the softmax probability, and the tokens of the last block but one are masked.",
        'It is the target\'s own score, unless `score="probability"`, and the tokens of the last block are masked.',
        {"gaussian": True, "score": "target"},
    ),
    ReleasedCodeDifference(
        "polycam",
        "Masks are clipped at the percentiles 0.1 and 99.9 of the channel before they are resized.",
        "Masks are resized, then scaled to [0, 1] by their extremes.",
    ),
    ReleasedCodeDifference(
        "opticam",
        "At most 50 steps; it stops early.",
        "Always 100 steps.",
        {"steps": 100},
    ),
    ReleasedCodeDifference(
        "rise",
        "The cells of a mask are mirrored at its borders when it is enlarged, and the sum is divided by `keep · N`.",
        "Border cells are extended, and the sum is divided by how often the masks show each pixel.",
        {"keep": 0.5},
    ),
    ReleasedCodeDifference(
        "legrad",
        "By default the wrapper uses the last two layers.",
        "All layers count, as in the paper; `layers=2` matches the released code.",
        {"layers": None},
    ),
    ReleasedCodeDifference(
        "maskclip",
        "The last block keeps its skip connections and its MLP.",
        "The token is the value through the output projection alone.",
    ),
    ReleasedCodeDifference(
        "clipsurgery",
        "The demos divide features by their norm over the tokens.",
        "They are divided by their norm over the channels, so products are cosines, as in the paper.",
    ),
    ReleasedCodeDifference(
        "sess",
        "Twelve scales, and the result is blurred; grad-cam does the same.",
        "Three scales, and nothing is blurred.",
        {"sess_scales": (1.0, 1.5, 2.0)},
    ),
    ReleasedCodeDifference(
        "refinecam",
        "The maps are multiplied at the image's size; grad-cam does the same.",
        "They are multiplied on the finest grid of the layers.",
    ),
)
