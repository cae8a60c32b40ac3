"""Policies with a planted lamp, found or not: ``python -m benchmarks policies``.

Small policies are trained on drawn scenes of two cameras: the color of a lamp, which hangs in one of the two views,
decides action 0; the state decides action 1; a square in the wrist view decides action 2. Frames of 200 further
episodes with a lamp are explained. A lamp is found if the hottest place of both maps lies on it, and its view has the
largest share of all inputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor, nn

import camtool
from benchmarks.paired import describe_machine
from camtool.evaluation.audit.statistics import compute_share
from camtool.rendering.image_writing import write_image

RESULTS = Path(__file__).with_suffix(".json")
TOP, WRIST, STATE = "observation.images.top", "observation.images.wrist", "observation.state"
SIDE, STEPS = 64, 2
METHODS = ("layercam+32", "layercam", "gradcam+32", "gradcam")
"""Names of methods, with the passes that correct each map."""

_CHOSEN_ON = "transformer"
"""The policy on whose scenes the first method was chosen; it is measured on scenes of another seed, too."""

_TITLES = dict(zip(METHODS, ("found", "found by `layercam` alone", "`gradcam`, corrected", "`gradcam`"), strict=True))

_RADIUS, _CELL = 5, 4
_STATES = 3
_WIDTH = 24
_TRAINING_STEPS, _BATCH, _POOL = 800, 32, 1600
_SEEDS, _LEARNED = 5, 0.01


class Frames(NamedTuple):
    """Scenes, what to do in them, and where their lamps are.

    Attributes:
        observation: Views ``(N, 3, 64, 64)`` in 0..1, and states ``(N, 3)``.
        actions: ``(N, 2, 3)``.
        views: ``(N,)``: 0 for a lamp in the top view, 1 in the wrist view, -1 for no lamp.
        centers: ``(N, 2)``, row and column of the lamp.
    """

    observation: dict[str, Tensor]
    actions: Tensor
    views: Tensor
    centers: Tensor


def draw_frames(count: int, generator: torch.Generator, *, all_lit: bool = False) -> Frames:
    """Return random scenes: a smooth background with noise, gray clutter, and in some a red or green lamp."""
    images = nn.functional.interpolate(
        torch.rand(2 * count, 3, 4, 4, generator=generator) * 0.5 + 0.2, SIDE, mode="bilinear"
    )
    images = images + 0.04 * torch.randn(images.shape, generator=generator)
    places = torch.randint(_RADIUS + 2, SIDE - _RADIUS - 2, (2 * count, 4, 2), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    down, across = (axis - places[..., index, None, None] for index, axis in enumerate((rows, columns)))
    shapes = torch.stack([down.abs().maximum(across.abs()) <= _RADIUS - 1, down**2 + across**2 <= _RADIUS**2], 2)
    grays = torch.rand(2 * count, 2, generator=generator)
    for number in range(2):  # clutter: a gray square and a gray disk
        images = torch.where(shapes[:, number, number, None], grays[:, number, None, None, None], images)
    images = images.reshape(2, count, 3, SIDE, SIDE)
    shapes, places = shapes.reshape(2, count, 4, 2, SIDE, SIDE), places.reshape(2, count, 4, 2)
    color = torch.rand(count, generator=generator).sub(0.5).sign()
    has_lamp = torch.rand(count, generator=generator) < (2 if all_lit else 0.7)
    views = torch.where(has_lamp, torch.randint(2, (count,), generator=generator), -1)
    has_square = torch.rand(count, generator=generator) < 0.5
    blue = torch.tensor([0.1, 0.2, 0.95])[None, :, None, None]
    images[1] = torch.where((shapes[1, :, 2, 0] & has_square[:, None, None])[:, None], blue, images[1])
    lamps = torch.tensor([[0.95, 0.15, 0.1], [0.1, 0.9, 0.2]])[(color < 0).long()][..., None, None]
    for view in range(2):
        lit = shapes[view, :, 3, 1] & (views == view)[:, None, None]
        images[view] = torch.where(lit[:, None], lamps, images[view])
    state = torch.randn(count, _STATES, generator=generator)
    first = torch.stack([color * has_lamp, state[:, 0].tanh(), has_square * 1.0], 1)
    actions = torch.stack([first, 0.5 * first], 1)
    centers = places[views.clamp(min=0), torch.arange(count), 3]
    images = images.clamp(0, 1)
    return Frames({TOP: images[0], WRIST: images[1], STATE: state}, actions, views, centers)


# ------------------------------------------------------------------------------------------------------- the policies


def _build_encoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, _WIDTH, 5, 2, 2), nn.ReLU(), nn.Conv2d(_WIDTH, _WIDTH, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(_WIDTH, _WIDTH, 3, 1, 1), nn.ReLU(),
    )  # fmt: skip


class Policy(nn.Module):
    """A policy with one encoder, which it calls for the wrist view first; its output has a field ``action``."""

    pooled = _WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _build_encoder()
        self.head = nn.Sequential(nn.Linear(2 * self.pooled + _STATES, 64), nn.ReLU(), nn.Linear(64, 3 * STEPS))

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Return the chunk of actions ``(N, 2, 3)``."""
        wrist, top = self.encoder(batch[WRIST]), self.encoder(batch[TOP])
        return {"action": self.act(self.pool(top), self.pool(wrist), batch[STATE])}

    def pool(self, maps: Tensor) -> Tensor:
        """Return the features of a view."""
        return maps.mean((2, 3))

    def act(self, top: Tensor, wrist: Tensor, state: Tensor) -> Tensor:
        """Return the actions for the features of the views."""
        return self.head(torch.cat([top, wrist, state], 1)).unflatten(1, (STEPS, 3))


class TwoEncoders(Policy):
    """An encoder for each view; the head reads the mean of each channel and a tenth of its maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.wrist_encoder = _build_encoder()

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Return the actions."""
        return self.act(self.pool(self.encoder(batch[TOP])), self.pool(self.wrist_encoder(batch[WRIST])), batch[STATE])

    def pool(self, maps: Tensor) -> Tensor:
        """Return the features of a view."""
        return maps.mean((2, 3)) + 0.1 * maps.amax((2, 3))


class Stacked(Policy):
    """One call of the encoder with the views of each scene as rows of the batch, the wrist first."""

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Return the actions."""
        maps = self.encoder(torch.stack([batch[WRIST], batch[TOP]], 1).flatten(0, 1))
        wrist, top = self.pool(maps).unflatten(0, (-1, 2)).unbind(1)
        return self.act(top, wrist, batch[STATE]), None


class SpatialSoftmax(Policy):
    """The expected place of each channel's softmax and its largest activation, as policies of diffusion have it."""

    pooled = 3 * _WIDTH

    def pool(self, maps: Tensor) -> Tensor:
        """Return the features of a view."""
        shares = maps.flatten(2).softmax(2).unflatten(2, maps.shape[2:])
        steps = torch.linspace(-1, 1, maps.shape[-1])
        return torch.cat([(shares.sum(3) * steps).sum(2), (shares.sum(2) * steps).sum(2), maps.amax((2, 3))], 1)


class Tokens(Policy):
    """A transformer over the cells of both views and the state, from which a query reads the actions."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(2, 1, 64, _WIDTH))
        self.query, self.state = nn.Parameter(0.02 * torch.randn(1, 1, _WIDTH)), nn.Linear(_STATES, _WIDTH)
        self.encoder = nn.Sequential(*_build_encoder(), nn.MaxPool2d(2))
        self.mixer = nn.TransformerEncoderLayer(_WIDTH, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 3 * STEPS))

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Return the actions."""
        views = [
            self.encoder(batch[name]).flatten(2).mT + place
            for name, place in zip((TOP, WRIST), self.places, strict=True)
        ]
        count = len(batch[STATE])
        read = self.mixer(torch.cat([self.query.expand(count, -1, -1), self.state(batch[STATE])[:, None], *views], 1))
        return self.head(read[:, 0]).unflatten(1, (STEPS, 3))


POLICIES: dict[str, type[Policy]] = {
    "one encoder": Policy,
    "encoder per view": TwoEncoders,
    "views stacked": Stacked,
    "spatial softmax": SpatialSoftmax,
    "transformer": Tokens,
}


def train_policy(kind: type[Policy]) -> tuple[Policy, float]:
    """Return a policy that has learned what to do, of the first seed with which it does, and its error."""
    for seed in range(_SEEDS):
        policy, loss = _train(kind, seed)
        if loss < _LEARNED:
            return policy, loss
    raise RuntimeError(f"{kind.__name__} has not learned what to do with {_SEEDS} seeds.")


def _train(kind: type[Policy], seed: int) -> tuple[Policy, float]:
    """Return a policy that imitates the right actions, and its mean squared error on the last 50 batches."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        policy = kind()
    generator, losses = torch.Generator().manual_seed(seed), []
    pool = draw_frames(_POOL, generator)
    optimizer = torch.optim.AdamW(policy.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=_TRAINING_STEPS)
    for _ in range(_TRAINING_STEPS):
        chosen = torch.randint(_POOL, (_BATCH,), generator=generator)
        turned = {0: [2], 1: [3], 2: [2, 3], 3: []}[int(torch.randint(4, (), generator=generator))]
        observation = {key: value[chosen] for key, value in pool.observation.items()}
        observation.update({view: observation[view].flip(turned) for view in (TOP, WRIST)})
        output = policy(observation)
        actions = output["action"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output
        loss = nn.functional.mse_loss(actions, pool.actions[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return policy.eval(), float(np.mean(losses[-50:]))


# ------------------------------------------------------------------------------------------------------- measurement


def judge(result: camtool.PolicyExplanation, frames: Frames, index: int) -> tuple[bool, bool, bool]:
    """Return whether the hottest place lies on the lamp, its view has the largest share, and covering confirms it."""
    name = (TOP, WRIST)[int(frames.views[index])]
    hottest = max(result.maps, key=lambda view: float(result.maps[view].max()))
    at = np.unravel_index(result.maps[name].argmax(), (SIDE, SIDE))
    distance = float(np.hypot(*(np.array(at) - frames.centers[index].numpy())))
    hot, elsewhere = result.covered[name]
    on_lamp = hottest == name and distance <= _RADIUS + _CELL / 2
    return on_lamp, max(result.shares, key=lambda key: result.shares[key]) == name, hot > elsewhere


def measure(policy: Policy, count: int, method: str = METHODS[0], seed: int = 10_000) -> dict[str, Any]:
    """Return in how many frames of further episodes the lamp is found, with Wilson's interval of 95 %."""
    frames = draw_frames(count, torch.Generator().manual_seed(seed), all_lit=True)
    rows, shares = [], []
    for index in range(count):
        observation = {key: value[index : index + 1] for key, value in frames.observation.items()}
        name, _, passes = method.partition("+")
        target = camtool.targets.Action(0, step=0)
        result = camtool.explain_policy(policy, observation, target, method=name, passes=int(passes or 0))
        rows.append(judge(result, frames, index))
        shares.append(result.shares[(TOP, WRIST)[int(frames.views[index])]])
    judged = np.array(rows)
    names = {"peak": judged[:, 0], "view": judged[:, 1], "confirmed": judged[:, 2], "found": judged[:, :2].all(1)}
    error = np.std(shares, ddof=1) / np.sqrt(count)
    return {
        **{name: _summarize(values) for name, values in names.items()},
        "share": [round(float(np.mean(shares)), 3), round(float(error), 3)],
    }


def _summarize(values: np.ndarray[Any, Any]) -> list[float]:
    return [round(float(number), 3) for number in compute_share(int(values.sum()), len(values))]


def write_table(rows: dict[str, Any]) -> str:
    """Return the table of the page."""
    lines = ["<!-- numbers: benchmarks/policies.json -->"]
    titles = " | ".join(_TITLES[name] for name in METHODS)
    lines.append(f"| policy | {titles} | share of the lamp's view | confirmed |")
    lines.append("|---" * (len(METHODS) + 3) + "|")
    for name, row in rows.items():
        cells = [_format(row[method]["found"]) if method in row else "" for method in METHODS]
        (mean, error), confirmed = row[METHODS[0]]["share"], _format(row[METHODS[0]]["confirmed"])
        lines.append(f"| {name} | {' | '.join(cells)} | {100 * mean:.1f} ± {100 * error:.1f} % | {confirmed} |")
    return "\n".join(lines)


def _format(interval: list[float]) -> str:
    share, low, high = (f"{100 * number:.4g}" for number in interval)
    return f"{share} % ({low} to {high})"


def draw_picture(kind: str = "views stacked", seed: int = 10_000) -> np.ndarray[Any, Any]:
    """Return what moved action 0 in a frame with the lamp in the top view, and in one with it in the wrist view."""
    policy, _ = train_policy(POLICIES[kind])
    frames, rows = draw_frames(20, torch.Generator().manual_seed(seed), all_lit=True), []
    for view in (0, 1):
        index = int((frames.views == view).nonzero()[0])
        observation = {key: value[index : index + 1] for key, value in frames.observation.items()}
        rows.append(camtool.explain_policy(policy, observation, camtool.targets.Action(0, step=0)).overlay())
    return np.concatenate(rows)


def main(
    policies: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(POLICIES),
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(METHODS),
    count: Annotated[int, typer.Option(help="Frames, one of each episode.")] = 200,
    picture: Annotated[Path | None, typer.Option(help="Draw two frames to this file instead.")] = None,
    save: Annotated[bool, typer.Option(help="Write the results to benchmarks/policies.json.")] = False,  # noqa: FBT002
) -> None:
    torch.set_num_threads(1)
    if picture is not None:
        write_image(picture, draw_picture(), quality=90)
        return
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    rows: dict[str, Any] = stored.get("policies", {})
    for name in policies.split(","):
        policy, loss = train_policy(POLICIES[name])
        rows.setdefault(name, {})["loss"] = round(loss, 4)
        print(name, "loss", rows[name]["loss"], flush=True)
        for method in methods.split(","):
            rows[name][method] = measure(policy, count, method)
            print(f"{name:18} {method:20} {rows[name][method]}", flush=True)
        if name == _CHOSEN_ON:
            rows[f"{name}, other scenes"] = {METHODS[0]: measure(policy, count, seed=20_000)}
        if save:
            stored = {"machine": describe_machine(1), "frames": count, "policies": rows}
            RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print(write_table({name: row for name, row in rows.items() if METHODS[0] in row}))


if __name__ == "__main__":
    typer.run(main)
