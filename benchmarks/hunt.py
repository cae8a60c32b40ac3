"""Relations that hold for any right explanation, on random models: ``python -m benchmarks hunt --minutes 30``.

Each model is put together from the parts in ``benchmarks/hunt_models.py``. Ten relations compare its explanation with
the planted spot, or with an explanation of the same photo in another form. A violation without a warning that the map
marks wrong places is made smaller, part by part, and printed as a program of at most 15 lines that shows it.
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.hunt_models import BACKGROUND, INPUTS, METHODS, TARGETS, WRAPPERS, Spec, draw_spec, list_simpler
from camtool.errors import CamtoolError

PLACE_WARNINGS = frozenset({"cells-elsewhere", "heat-elsewhere", "no-places"})
"""Codes that say that a map marks wrong places."""

BLANK_WARNINGS = frozenset({"zero-gradient", "constant-map"})
"""Codes that say that a map marks no place."""

LINEAR = frozenset({"gradcam", "hirescam", "layercam", "xgradcam"})
"""Methods whose raw map is a linear function of the score's gradient."""

LOCATED = frozenset({*METHODS}) - {"scorecam", "occlusion"}
"""Methods on the layer's cells that give no heat to filters without weight in the head.

Score-CAM does, as the masks of these filters let the spot pass. Occlusion has windows of its own, which do not move
with the photo.
"""

_IMPORTS = "import camtool, collections, dataclasses, numpy as np, torch; from torch import nn"
_RAW = "abs(first.raw - second.raw).max() / abs(first.raw).max()"


@dataclass(frozen=True)
class Program:
    """Source code that shows whether a relation holds.

    Attributes:
        lines: They assign explanations to ``first``, ``second`` and so on.
        difference: An expression, a number that is about 0 if the relation holds.
        limit: The largest such number.
    """

    lines: list[str]
    difference: str
    limit: float

    def write(self) -> str:
        """Return the program, at most 15 lines."""
        return "\n".join([*self.lines, f"print({self.difference})  # at most {self.limit:g}"])


def write_program(
    spec: Spec, calls: str, difference: str, limit: float, *, argument: str = "", explain: str = ""
) -> Program:
    """Return a program of a model, a photo with a spot, and explanations.

    Args:
        spec: The model and the photo.
        calls: Source code that assigns explanations; ``explain(model, photo, target)`` returns those of a batch.
        difference: See :class:`Program`.
        limit: See :class:`Program`.
        argument: See :meth:`benchmarks.hunt_models.Spec.write_model`.
        explain: The default target of ``explain``; by default that of the model.
    """
    (top, left), (height, width) = spec.place_spot(), spec.find_side()
    noise = f" + {spec.noise} * torch.rand(1, 3, *{spec.size})" * bool(spec.noise)
    output = '; Output = dataclasses.make_dataclass("Output", ["logits"])' * (spec.output == "object")
    spot = f"photo[..., {top}:{top + height}, {left}:{left + width}] = 1"
    build = f"build = lambda *arguments: {WRAPPERS[spec.wrapper].replace('MODEL', 'Model(*arguments)')}.eval()"
    image = INPUTS[spec.input].replace("PHOTO", "photo")
    transform = ", transform=v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])" * (
        spec.input == "photo"
    )
    call = f'camtool.explain(model, {image}, target, method="{spec.method}"{transform})'
    lines = [
        _IMPORTS + "; from torchvision.transforms import v2" * (spec.input == "photo") + output,
        *spec.write_model(argument),
        f"torch.manual_seed(0); photo = torch.full((1, 3, *{spec.size}), {BACKGROUND}){noise}; {spot}; {build}",
        f"explain = lambda model, photo, target={explain or write_target(spec)}: {call}",
        calls,
    ]
    return Program(lines, difference, limit)


def write_target(spec: Spec, index: int = 1) -> str:
    """Return the source code of the target for the class that responds to the spot."""
    return TARGETS[spec.target].replace("1", str(index)).replace("LOGITS", spec.write_logits())


# ------------------------------------------------------------------------------------------------------- relations


def find_spot(spec: Spec) -> Program | None:
    """The heat lies on the planted spot; the number is the distance of their centers in cells."""
    if spec.method not in LOCATED:
        return None
    middle, cell = spec.place_spot() + spec.find_side() / 2, spec.find_cell()
    centroid = "np.array([(axis * heat).sum() / heat.sum() for axis in np.indices(heat.shape) + 0.5])"
    calls = "first = explain(build(), photo)[0]; heat = first.heatmap * (first.heatmap >= 0.5)"
    difference = f"np.linalg.norm(({centroid} - {middle.tolist()}) / {cell.round(4).tolist()})"
    return write_program(spec, calls, difference, FARTHEST)


def move_photo(spec: Spec) -> Program | None:
    """A photo that is moved by whole cells has its heat moved as far."""
    # The parts that content chooses from do not move with the photo, and their edges cut off heat.
    if spec.method not in LOCATED or any("content" in kind for kind, _, _ in spec.before):
        return None
    random, place, cell, room = np.random.default_rng(spec.seed), spec.place_spot(), spec.find_cell(), spec.find_room()
    moves = [(y, x) for y in range(-4, 5) for x in range(-4, 5) if (y, x) != (0, 0)]
    for index in random.permutation(len(moves)):
        move = np.array(moves[index]) * cell
        pixels = move.round().astype(int)
        if np.allclose(move, pixels) and (room[0] <= place + pixels).all() and (place + pixels <= room[1]).all():
            moved = f"{tuple(pixels.tolist())}"
            calls = f"first, second = explain(build(), photo)[0], explain(build(), photo.roll({moved}, (2, 3)))[0]"
            return write_program(
                spec, calls, f"abs(np.roll(first.heatmap, {moved}, (0, 1)) - second.heatmap).max()", 0.02
            )
    return None


def mirror_photo(spec: Spec) -> Program | None:
    """A model that mirrors its input explains the mirrored photo by the mirrored heat."""
    if spec.method not in LOCATED:
        return None
    calls = (
        "first, second = explain(build(lambda x: x), photo)[0], explain(build(lambda x: x.flip(3)), photo.flip(3))[0]"
    )
    return write_program(spec, calls, "abs(first.heatmap - second.heatmap[:, ::-1]).max()", 0.02, argument="first")


def fill_batch(spec: Spec) -> Program:
    """A photo has the same map alone, first and last in a batch."""
    # Of mirrored tokens camtool explains a layer before them, and the first photo of a batch decides for all.
    is_moved = spec.has_tokens and any(kind == "mirror by content" for kind, _, _ in spec.before)
    others = "photo.flip(2), photo.flip(3)" if is_moved else "photo.flip(3), photo.flip(2)"
    calls = (
        "first = explain(build(), photo)[0]; second = explain(build(), torch.cat([photo, photo.flip(2)]))[0]; "
        f"third = explain(build(), torch.cat([{others}, photo]))[2]"
    )
    both = f"max({_RAW}, {_RAW.replace('second', 'third')})"
    return write_program(spec, calls, both, 1e-3)


def scale_score(spec: Spec) -> Program | None:
    """A score three times as large has a raw map three times as large."""
    if spec.method not in LINEAR:
        return None
    score = f"{spec.write_logits()}[1]"
    again = f"explain(model, photo, lambda output: 3 * {score})[0]"
    calls = f"model = build(); first = explain(model, photo)[0]; second = {again}"
    difference = "abs(3 * first.raw - second.raw).max() / abs(first.raw).max()"
    return write_program(spec, calls, difference, 3e-3, explain=f"lambda output: {score}")


def add_constant(spec: Spec) -> Program:
    """A constant that is added to the score changes nothing."""
    score = f"{spec.write_logits()}[1]"
    again = f"explain(model, photo, lambda output: {score} + 5)[0]"
    calls = f"model = build(); first = explain(model, photo)[0]; second = {again}"
    # Ablation-CAM divides by the score, which scales its whole map.
    difference = "abs(first.heatmap - second.heatmap).max()" if spec.method == "ablationcam" else _RAW
    return write_program(spec, calls, difference, 1e-3, explain=f"lambda output: {score}")


def permute_classes(spec: Spec) -> Program:
    """Classes in another order have the same maps."""
    calls = (
        "first = explain(build([0, 1, 2]), photo)[0]; "
        f"second = explain(build([2, 0, 1]), photo, {write_target(spec, 2)})[0]"
    )
    return write_program(spec, calls, _RAW, 1e-3, argument="order")


def rename_modules(spec: Spec) -> Program:
    """A wrapper that only renames changes nothing."""
    names = [name for name in WRAPPERS if name != "none"]
    wrapped = WRAPPERS[names[spec.seed % len(names)]].replace("MODEL", "build()")
    calls = f"first, second = explain(build(), photo)[0], explain({wrapped}.eval(), photo)[0]"
    return write_program(spec, calls, _RAW, 1e-3)


def frame_photo(spec: Spec) -> Program | None:
    """A photo with a frame that the model crops has its heat where it was."""
    if spec.method not in LOCATED:
        return None
    random, (height, width) = np.random.default_rng(spec.seed), spec.size
    top, left, bottom, right = (int(each) for each in random.integers(1, 17, 4))
    framed = f"nn.functional.pad(photo, {(left, right, top, bottom)}, value={BACKGROUND})"
    inner = f"[..., {top}:{top + height}, {left}:{left + width}]"
    calls = f"first, second = explain(build(lambda x: x), photo)[0], explain(build(lambda x: x{inner}), {framed})[0]"
    difference = f"abs(first.heatmap - second.heatmap{inner}).max()"
    if spec.method == "faithcam":  # it adds finer grids where they have the proportions of the photo, with its frame
        difference = f"(first.raw.shape == second.raw.shape) * {difference}"
    return write_program(spec, calls, difference, 0.02, argument="first")


def explain_again(spec: Spec) -> Program:
    """An explanation after one of something else is that of a fresh model."""
    other = (
        "explain(model, photo.flip((2, 3)))",
        'camtool.explain(model, photo.flip(3), 0, method="layercam")',
        "explain(model, torch.cat([photo.flip(2), photo.flip(3)]))",
        'camtool.explain(model, photo.mT.contiguous(), 1, method="hirescam")',
        "camtool.explain(model, torch.rand_like(photo), 2, method='eigencam')",
        "model(photo.flip(2)).__class__",
    )[spec.seed % 6]
    calls = f"first, model = explain(build(), photo)[0], build(); {other}; second = explain(model, photo)[0]"
    difference = "abs(first.heatmap - second.heatmap).max() + (first.layer != second.layer)"
    return write_program(spec, calls, difference, 0.01)


RELATIONS: dict[str, Callable[[Spec], Program | None]] = {
    "spot is found": find_spot,
    "photo moves": move_photo,
    "photo is mirrored": mirror_photo,
    "photo in a batch": fill_batch,
    "score is scaled": scale_score,
    "constant is added": add_constant,
    "classes change places": permute_classes,
    "modules are renamed": rename_modules,
    "photo has a frame": frame_photo,
    "second call": explain_again,
}
"""Name of a relation → a function that writes its program; None if it does not hold for such a model."""

FARTHEST = 1.5
"""Cells between heat and spot above which the place is wrong."""


# ---------------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Outcome:
    """What a program showed.

    Attributes:
        kind: "held", "violated", "warned" for a violation with a warning about it, or "refused" for a
            :class:`~camtool.errors.CamtoolError`.
        difference: The program's number; ``nan`` if there is none.
        reason: The codes of the warnings, or the error.
    """

    kind: str
    difference: float = float("nan")
    reason: str = ""


def run_program(program: Program) -> Outcome:
    """Run a program, and tell whether its relation holds."""
    names: dict[str, Any] = {"__name__": "__main__"}  # that of the classes is looked up
    source = "\n".join([*program.lines, f"difference = {program.difference}"])
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(source, names)
    except CamtoolError as error:
        return Outcome("refused", reason=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  any error is what is looked for
        return Outcome("violated", reason=traceback.format_exception_only(error)[-1].strip())
    difference, results = float(names["difference"]), [names.get(name) for name in ("first", "second", "third")]
    codes = {warning.code for result in results if result is not None for warning in result.warnings}
    if difference <= program.limit:
        return Outcome("held", difference, ", ".join(sorted(codes)))
    is_warned = codes & PLACE_WARNINGS or (np.isnan(difference) and codes & BLANK_WARNINGS)
    return Outcome("warned" if is_warned else "violated", difference, ", ".join(sorted(codes)))


@dataclass(frozen=True)
class Violation:
    """A violation without a warning of its kind.

    Attributes:
        relation: The name of the relation.
        spec: The model.
        outcome: What its program showed.
        program: The program.
    """

    relation: str
    spec: Spec
    outcome: Outcome
    program: str

    @property
    def kind(self) -> tuple[object, ...]:
        """The same for models of the same parts: their faults are likely the same."""
        kinds = tuple(kind for kind, _, _ in self.spec.before)
        return self.relation, kinds, replace(self.spec, seed=0, before=(), size=(0, 0))


def shrink(relation: str, spec: Spec) -> Violation:
    """Return a violation of the same relation by a model of fewer and simpler parts."""
    program = RELATIONS[relation](spec)
    assert program is not None
    outcome = run_program(program)
    for simpler in list_simpler(spec):
        other = RELATIONS[relation](simpler)
        if other is None:
            continue
        again = run_program(other)
        # An error in place of a number, or a number in place of an error, is another fault.
        if again.kind == "violated" and np.isnan(again.difference) == np.isnan(outcome.difference):
            return shrink(relation, simpler)
    return Violation(relation, spec, outcome, program.write())


@dataclass
class Hunt:
    """What a hunt has found so far."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=lambda: {name: [] for name in RELATIONS})
    violations: list[Violation] = field(default_factory=list)
    models: int = 0

    def try_model(self, spec: Spec, relations: Sequence[str]) -> None:
        """Run the programs of a model, and keep one violation of each kind."""
        self.models += 1
        for relation in relations:
            program = RELATIONS[relation](spec)
            if program is None:
                continue
            outcome = run_program(program)
            self.outcomes[relation].append(outcome)
            if outcome.kind == "violated":
                violation = shrink(relation, spec)
                if violation.kind not in [each.kind for each in self.violations]:
                    self.violations.append(violation)

    @property
    def distances(self) -> list[float]:
        """Cells between heat and spot of the maps that tell nothing of wrong places."""
        return [each.difference for each in self.outcomes["spot is found"] if each.kind in ("held", "violated")]

    def describe(self) -> str:
        """Return the table of relations, and the programs of the violations."""
        lines = [f"{'relation':<24}{'cases':>7}{'violated':>10}{'warned':>8}{'refused':>9}"]
        for name, outcomes in self.outcomes.items():
            kinds = Counter(outcome.kind for outcome in outcomes)
            lines.append(
                f"{name:<24}{len(outcomes):>7}{kinds['violated']:>10}{kinds['warned']:>8}{kinds['refused']:>9}"
            )
        if len(self.distances) > 1:
            count, mean = len(self.distances), fmean(self.distances)
            error = stdev(self.distances) / count**0.5
            lines.append(f"\nThe heat of {count} maps is {mean:.2f} +- {error:.2f} cells from the spot.")
        for each in self.violations:
            reason = each.outcome.reason or "no warning"
            lines.append(
                f"\n# {each.relation}: {each.outcome.difference:.3g}, {reason}; seed {each.spec.seed}\n{each.program}"
            )
        return "\n".join(lines)


def main(
    minutes: Annotated[float, typer.Option(help="Minutes, if no number of models is given.")] = 2,
    models: Annotated[int, typer.Option(help="Number of models; 0 for as many as the minutes allow.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the first model; a negative one stands for a fresh seed.")] = -1,
    relation: Annotated[list[str], typer.Option(help="Relation; may be repeated.")] = list(RELATIONS),  # noqa: B006
) -> None:
    """Explain random models, print a table of the relations, and a program for each violation; exit with 1 for any."""
    torch.set_num_threads(1)
    first = int(np.random.SeedSequence().generate_state(1)[0]) if seed < 0 else seed
    hunt, end = Hunt(), time.monotonic() + 60 * minutes
    while hunt.models < models if models else time.monotonic() < end:
        hunt.try_model(draw_spec(first + hunt.models), relation)
    print(f"{hunt.models} models, seeds {first} to {first + hunt.models - 1}\n\n{hunt.describe()}")
    sys.exit(bool(hunt.violations))


if __name__ == "__main__":
    typer.run(main)
