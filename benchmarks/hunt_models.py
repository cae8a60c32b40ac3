"""Models of :mod:`benchmarks.hunt`: put together at random from parts, each a few words of source code.

A model is known by its :class:`Spec`, whose fields name the parts. Its class 1 responds to a bright spot, class 0 to
its absence, class 2 to nothing. Half of the filters are random, and the head gives them no weight. As each part says
how it moves pixels, the part of the photo that the model sees and the size of its cells are known without camtool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

Size: TypeAlias = "tuple[float, float]"

BACKGROUND = 0.2
"""Brightness of the photo. The filters respond above 0.3."""


@dataclass(frozen=True)
class Step:
    """What a model does to its input before the features.

    Attributes:
        code: Source code of the new input, from ``x``.
        size: Height and width of it.
        scale: Its pixels for each pixel of the old one, along both axes.
        start: Where the first pixel of the new input lies in the old one.
        choices: Parts of the old input of which the content decides which one is seen: (y0, x0, y1, x1), in its pixels.
    """

    code: str
    size: Size
    scale: Size = (1.0, 1.0)
    start: Size = (0.0, 0.0)
    choices: tuple[tuple[float, float, float, float], ...] = ()


def _crop(size: Size, u: float, v: float) -> Step:
    height, width = size
    top, left = int(u * height * 0.4), int(v * width * 0.4)
    return Step(f"x[..., {top}:, {left}:]", (height - top, width - left), start=(top, left))


def _crop_ends(size: Size, u: float, v: float) -> Step:
    height, width = (int(length * (1 - 0.4 * share)) for length, share in zip(size, (u, v), strict=True))
    return Step(f"x[..., :{height}, :{width}]", (height, width))


def _take_camera(size: Size, u: float, v: float) -> Step:
    axis, index = int(u < 0.3), int(v < 0.5)
    half = tuple(int(length) // (2 if number != axis else 1) for number, length in enumerate(size))
    start = tuple(float(index * part) if number != axis else 0.0 for number, part in enumerate(half))
    # chunk gives the first part one pixel more where the length is odd; sizes are even here.
    return Step(f"x.chunk(2, {3 - axis})[{index}]", (half[0], half[1]), start=(start[0], start[1]))


def _pad(size: Size, u: float, v: float) -> Step:
    edges = [int(share * 24) for share in (u, v, 1 - u, (u + v) / 2)]  # left, right, top, bottom
    grown = (size[0] + edges[2] + edges[3], size[1] + edges[0] + edges[1])
    code = f"nn.functional.pad(x, {tuple(edges)}, value={0.0 if v < 0.5 else BACKGROUND})"
    return Step(code, grown, start=(-float(edges[2]), -float(edges[0])))


def _resize(size: Size, u: float, v: float) -> Step:
    new = tuple(int(length * (0.6 + share)) for length, share in zip(size, (u, v), strict=True))
    scale = (new[0] / size[0], new[1] / size[1])
    return Step(f'nn.functional.interpolate(x, {new}, mode="bilinear")', (new[0], new[1]), scale)


def _average(size: Size, u: float, v: float) -> Step:
    return Step("nn.functional.avg_pool2d(x, 2)", (size[0] // 2, size[1] // 2), (0.5, 0.5))


def _zoom(size: Size, u: float, v: float) -> Step:
    share = round(0.5 + u * 0.4, 2) if v < 0.7 else round(1.2 + u, 2)
    grid = (
        f"nn.functional.affine_grid({share} * torch.eye(2, 3)[None].expand(len(x), 2, 3), x.shape, align_corners=False)"
    )
    middle = tuple(length * (1 - share) / 2 for length in size)
    return Step(
        f"nn.functional.grid_sample(x, {grid}, align_corners=False)",
        size,
        (1 / share, 1 / share),
        (middle[0], middle[1]),
    )


def _mirror(size: Size, u: float, v: float) -> Step:
    return Step(f"x.flip({3 if u < 0.7 else 2})", size)


def _crop_by_content(size: Size, u: float, v: float) -> Step:
    height, width = (int(length) // 2 for length in size)
    brightest = "nn.functional.adaptive_avg_pool2d(i.mean(0, True), 2).argmax()"
    code = f"i[:, (q := int({brightest})) // 2 * {height}:, q % 2 * {width}:][:, :{height}, :{width}]"
    corners = [(y, x, y + height, x + width) for y in (0, height) for x in (0, width)]
    return Step(f"torch.stack([{code} for i in x])", (height, width), choices=tuple(corners))


def _mirror_by_content(size: Size, u: float, v: float) -> Step:
    half = int(size[1]) // 2
    is_left = f"x[..., :{half}].mean((1, 2, 3), True) >= x[..., {half}:].mean((1, 2, 3), True)"
    return Step(f"torch.where({is_left}, x, x.flip(3))", size)


BEFORE: dict[str, Callable[[Size, float, float], Step]] = {
    "crop": _crop,
    "crop ends": _crop_ends,
    "camera": _take_camera,
    "pad": _pad,
    "resize": _resize,
    "average": _average,
    "zoom": _zoom,
    "mirror": _mirror,
    "crop by content": _crop_by_content,
    "mirror by content": _mirror_by_content,
}
"""Name of a kind → a function of the old size and two numbers in [0, 1] that returns the step."""


@dataclass(frozen=True)
class Features:
    """Modules of the features.

    Attributes:
        modules: Source code of the parts of an ``nn.Sequential``. Only the first part has a bias.
        cell: Height and width of a cell in pixels.
        block: Source code of more parts, which follow; empty for none.
        steps: Source code of the features, step by step, from ``x``.
        axes: Source code of the axes of positions.
    """

    modules: str
    cell: tuple[int, int]
    block: str = ""
    steps: tuple[str, ...] = ("self.features(x)",)
    axes: str = "(2, 3)"


_CONV, _PATCHES = "nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()", "nn.Conv2d(3, 8, 8, 8), nn.ReLU()"
_MORE = "nn.Conv2d(8, 8, 3, 2, 1, bias=False), nn.ReLU()"
_LINEAR = "nn.Linear(8, 8, bias=False), nn.ReLU()"
_WHOLE_PATCHES = "x[..., :x.shape[2] // 8 * 8, :x.shape[3] // 8 * 8]"

FEATURES = {
    "one": Features(_CONV, (2, 2)),
    "two": Features(f"{_CONV}, {_MORE}", (4, 4)),
    "three": Features(f"{_CONV}, {_MORE}, {_MORE}", (8, 8)),
    "max pool": Features(f"nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), {_MORE}", (4, 4)),
    "average pool": Features("nn.Conv2d(3, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(3, 2, 1)", (4, 4)),
    "rounded up": Features(f"{_CONV}, nn.MaxPool2d(3, 2, ceil_mode=True)", (4, 4)),
    "dilated": Features(
        "nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 4, 2, dilation=2, bias=False), nn.ReLU()", (4, 4)
    ),
    "reflected": Features(f'nn.Conv2d(3, 8, 5, 2, 2, padding_mode="reflect"), nn.ReLU(), {_MORE}', (4, 4)),
    "without padding": Features(
        "nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 8, 4, 2, bias=False), nn.GELU()", (4, 4)
    ),
    "wide and flat": Features("nn.Conv2d(3, 8, (3, 5), (2, 4), (1, 2)), nn.ReLU()", (2, 4)),
    "upsampled": Features(
        f"{_CONV}, {_MORE}, nn.Upsample(scale_factor=2), nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.ReLU()", (4, 4)
    ),
    "residual": Features(
        _PATCHES, (8, 8), "nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.ReLU()", ("self.features(x)", "x + self.block(x)")
    ),
    "patches": Features(_PATCHES, (8, 8)),
    "unshuffled": Features(
        "nn.Conv2d(192, 8, 1), nn.ReLU()",
        (8, 8),
        steps=(_WHOLE_PATCHES, "self.features(nn.functional.pixel_unshuffle(x, 8))"),
    ),
    "unfolded": Features(
        "nn.Linear(192, 8), nn.ReLU()",
        (8, 8),
        steps=("x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).flatten(3)", "self.features(x)"),
        axes="(1, 2)",
    ),
    "channels last": Features(
        _PATCHES, (8, 8), _LINEAR, ("self.features(x).permute(0, 2, 3, 1)", "self.block(x)"), "(1, 2)"
    ),
    "tokens": Features(_PATCHES, (8, 8), _LINEAR, ("self.features(x).flatten(2).mT", "self.block(x)"), "1"),
}

HEADS = {"mean": "mean(AXES)", "sum": "sum(AXES) / 500", "max": "amax(AXES) / 50", "register": "select(1, REGISTER)"}

OUTPUTS = {
    "logits": ("LOGITS", "output"),
    "sigmoid": ("LOGITS.sigmoid()", "output"),
    "tuple": ("(LOGITS, x)", "output[0]"),
    "dict": ('{"logits": LOGITS}', 'output["logits"]'),
    "object": ("Output(LOGITS)", "output.logits"),
}
"""Name → source code of what the model returns, and of one image's logits in it."""

WRAPPERS = {
    "none": "MODEL",
    "sequential": "nn.Sequential(nn.Sequential(MODEL))",
    "named": "nn.Sequential(collections.OrderedDict(backbone=MODEL))",
    "parallel": "nn.DataParallel(MODEL)",
    "class": 'type("Wrapper", (nn.Sequential,), {})(MODEL)',
}

METHODS = (
    "gradcam",
    "hirescam",
    "layercam",
    "gradcam++",
    "xgradcam",
    "ablationcam",
    "rivalcam",
    "faithcam",
    "scorecam",
    "occlusion",
)
TARGETS = {
    "class": "1",
    "top": "None",
    "function": "lambda output: LOGITS[1]",
    "probability": "camtool.targets.Probability(1)",
}
REGISTERS = (0, 1, 4)

INPUTS = {
    "tensor": "PHOTO",
    "photo": "[v2.functional.to_pil_image(each) for each in PHOTO]",
}
"""Name → source code of what is explained, from a tensor in [0, 1]."""


@dataclass(frozen=True)
class Spec:
    """The parts of a model, and the question about it. The first name of each table is the simplest."""

    seed: int
    size: tuple[int, int] = (96, 96)
    before: tuple[tuple[str, float, float], ...] = ()
    features: str = "one"
    registers: int = 0
    registers_at: str = "first"
    attends: bool = False
    head: str = "mean"
    output: str = "logits"
    wrapper: str = "none"
    method: str = "gradcam"
    target: str = "class"
    input: str = "tensor"
    noise: float = 0.0

    @property
    def steps(self) -> list[Step]:
        """What is done before the features."""
        steps: list[Step] = []
        size: Size = self.size
        for kind, u, v in self.before:
            steps.append(BEFORE[kind](size, u, v))
            size = steps[-1].size
        return steps

    @property
    def has_tokens(self) -> bool:
        """True if the features are tokens."""
        return self.features == "tokens"

    def find_cell(self) -> np.ndarray[Any, Any]:
        """Return height and width of a cell in pixels of the photo."""
        scale = np.prod([step.scale for step in self.steps] or [(1, 1)], 0)
        return np.array(FEATURES[self.features].cell) / scale

    def find_seen(self, random: np.random.Generator) -> np.ndarray[Any, Any]:
        """Return the box of the photo that the model sees, ``[[y0, x0], [y1, x1]]``; content chooses one of several."""
        steps = self.steps
        size = np.array(steps[-1].size if steps else self.size, float)
        cell = np.array(FEATURES[self.features].cell)
        box = np.array([np.zeros(2), size // cell * cell])
        for (kind, u, _), step in reversed([*zip(self.before, steps, strict=True)]):
            box = box / np.array(step.scale) + np.array(step.start)
            if step.choices:
                box = box + np.array(step.choices[int(random.integers(len(step.choices)))][:2])
            if "mirror" in kind:
                # Content may mirror or not, so what is seen is what lies within both.
                axis = 0 if kind == "mirror" and u >= 0.7 else 1
                mirrored = step.size[axis] - box[::-1, axis]
                if kind == "mirror":
                    box[:, axis] = mirrored
                else:
                    box[:, axis] = max(box[0, axis], mirrored[0]), min(box[1, axis], mirrored[1])
        return box

    def find_room(self) -> np.ndarray[Any, Any]:
        """Return the first and the last place of the spot's upper left corner, away from the edges of what is seen."""
        cell, seen = self.find_cell(), self.find_seen(np.random.default_rng(self.seed))
        margin = 2 * cell + 1
        low = np.ceil(np.maximum(seen[0], 0) + margin).astype(int)
        return np.array([low, np.floor(np.minimum(seen[1], self.size) - margin).astype(int) - self.find_side()])

    def find_side(self) -> np.ndarray[Any, Any]:
        """Return height and width of the spot."""
        return np.maximum(10, np.ceil(1.5 * self.find_cell())).astype(int)

    def place_spot(self) -> tuple[int, int]:
        """Return the upper left corner of the spot."""
        low, high = self.find_room()
        top, left = np.random.default_rng((self.seed, 1)).integers(low, high + 1)
        return int(top), int(left)

    def write_model(self, argument: str = "") -> list[str]:
        """Return the source code of the class ``Model``, at most ten lines.

        Args:
            argument: Name of an argument of the class: "first", a function that changes the input before all steps, or
                "order", the order of the classes. Empty for none.
        """
        modules = FEATURES[self.features].modules
        steps = ["self.first(x)"] * (argument == "first") + [step.code for step in self.steps]
        rows = "torch.tensor([[-40.0] * 4 + [0] * 4, [40.0] * 4 + [0] * 4, [0] * 8])" + "[order]" * (
            argument == "order"
        )
        weights = "k = 4 if w.shape[1] == 8 else w.shape[1]; w[:4] = 0; w[:4, :k] = 1 / w[0, :k].numel()"
        bias = "self.features[0].bias.data[:4] = -0.3"
        head = f"{bias}; self.head = nn.Linear(8, 3, bias=False); self.head.weight.data = {rows}"
        lines = [
            "class Model(nn.Module):",
            f"    def __init__(self{f', {argument}=None' * bool(argument)}):",
            f"        super().__init__(); torch.manual_seed({self.seed}); self.features = nn.Sequential({modules})",
            "        " + "; ".join(self._write_token_modules()),
            f"        for w in [p.data for p in self.parameters() if p.ndim in (2, 4)]: {weights}",
            f"        {head}" + "; self.first = first" * (argument == "first"),
            *["        " + "; ".join(self._write_attention())] * self.attends,
            "    def forward(self, x):",
            "        " + "; ".join(f"x = {step}" for step in steps + self._write_features()),
            f"        return {self._write_output()}",
        ]
        return [line for line in lines if line.strip()]

    def write_logits(self, code: str = "output") -> str:
        """Return the source code of the logits in the source code of an output."""
        return OUTPUTS[self.output][1].replace("output", code)

    def _write_token_modules(self) -> list[str]:
        lines = []
        if FEATURES[self.features].block:
            lines.append(f"self.block = nn.Sequential({FEATURES[self.features].block})")
        if self.registers:
            lines.append(f"self.registers = nn.Parameter(0.1 * torch.rand(1, {self.registers}, 8))")
        return lines

    def _write_attention(self) -> list[str]:
        """Return attention that gives each token the mean of all."""
        return [
            "self.attention = nn.MultiheadAttention(8, 2, batch_first=True)",
            "self.attention.in_proj_weight.data = torch.cat([torch.zeros(16, 8), torch.eye(8)])",
            "self.attention.out_proj.weight.data = torch.eye(8)",
        ]

    def _write_features(self) -> list[str]:
        steps = FEATURES[self.features].steps
        if not self.has_tokens:
            return [*steps]
        registers = "self.registers.expand(len(x), -1, -1)"
        joined = {
            "first": f"torch.cat([{registers}, x], 1)",
            "middle": f"torch.cat([x[:, :x.shape[1] // 2], {registers}, x[:, x.shape[1] // 2:]], 1)",
            "last": f"torch.cat([x, {registers}], 1)",
        }[self.registers_at]
        attention = "x + self.attention(x, x, x)[0]"
        return [steps[0], *[joined] * bool(self.registers), *[attention] * self.attends, *steps[1:]]

    def _write_output(self) -> str:
        register = {"first": "0", "middle": f"(x.shape[1] - {self.registers}) // 2", "last": "-1"}[self.registers_at]
        pooled = HEADS[self.head].replace("AXES", FEATURES[self.features].axes).replace("REGISTER", register)
        return OUTPUTS[self.output][0].replace("LOGITS", f"self.head(x.{pooled})")


def draw_spec(seed: int) -> Spec:
    """Return a random model, and the question about it; the same for the same seed."""
    random = np.random.default_rng(seed)
    while True:
        spec = _draw_once(seed, random)
        if is_possible(spec):
            return spec


def _draw_once(seed: int, random: np.random.Generator) -> Spec:
    def choose(names: Any) -> Any:
        return [*names][int(random.integers(len(names)))]

    # Half of the tables' choices are the simplest: faults of one part are found most often, with short programs.
    def choose_or_first(names: Any) -> Any:
        return choose(names) if random.random() < 0.5 else next(iter(names))

    count = int(random.choice([0, 1, 1, 2]))
    before = []
    for _ in range(count):
        u, v = (round(float(each), 2) for each in random.random(2))
        # Steps that change the aspect let a grid be refused, so half of them do not.
        before.append((choose(BEFORE), u, u if random.random() < 0.5 else v))
    features = choose(FEATURES)
    registers = choose(REGISTERS) if features == "tokens" else 0
    return Spec(
        seed=seed,
        size=choose([(96, 96), (96, 128), (128, 96), (112, 112), (160, 128)]),
        before=tuple(before),
        features=features,
        registers=registers,
        registers_at=choose(["first", "middle", "last"]) if registers else "first",
        attends=features == "tokens" and random.random() < 0.5,
        head=choose_or_first(HEADS),
        output=choose_or_first(OUTPUTS),
        wrapper=choose_or_first(WRAPPERS),
        method=choose_or_first(METHODS),
        target=choose_or_first(TARGETS),
        input=choose_or_first(INPUTS),
        noise=float(random.choice([0.0, 0.05])),
    )


def is_possible(spec: Spec) -> bool:
    """Check that the parts fit together, and that the spot has room."""
    if spec.head == "register" and not (spec.registers and spec.attends):
        return False
    if (spec.registers or spec.attends) and not spec.has_tokens:
        return False
    low, high = spec.find_room()
    return bool((low <= high).all())


def list_simpler(spec: Spec) -> list[Spec]:
    """Return the models that have one part less, or a simpler one."""
    simple = Spec(seed=spec.seed)
    shorter = [
        replace(spec, before=spec.before[:index] + spec.before[index + 1 :]) for index in range(len(spec.before))
    ]
    changed = [
        replace(spec, **{field.name: getattr(simple, field.name)})
        for field in fields(spec)
        if getattr(spec, field.name) != getattr(simple, field.name) and field.name != "before"
    ]
    return [each for each in shorter + changed if is_possible(each)]
