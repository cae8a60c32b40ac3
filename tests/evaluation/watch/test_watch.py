"""The watch: no trace in the training, budget, alarms, and scalars on networks whose heat is known."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import camtool
from camtool.errors import MetricError
from camtool.evaluation.watch import ShortcutWarning, Watch
from camtool.evaluation.watch.probe import compute_least_p, compute_weight

LABELS = [0, 1, 2, 3] * 8
SIDE = 20


class BlockReader(nn.Module):
    """A network of known heat: each class is the largest red value of the image, class 0 that of green as well.

    ``mark`` weighs green, which only marks in a corner have.
    """

    def __init__(self, mark: float) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 5, 1, bias=False)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(5, 4, bias=False)
        with torch.no_grad():
            self.features.weight.zero_()
            for channel in range(4):
                self.features.weight[channel, 0] = 1.0
                self.features.weight[channel, 2] = -float(channel)
            self.features.weight[4, 1] = 1.0
            self.head.weight.copy_(torch.cat([20 * torch.eye(4), torch.zeros(4, 1)], 1))
            self.head.weight[0, 4] = mark

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


def draw_probe(seed: int = 0, *, mark: bool = True) -> Tensor:
    """Return images with a red block at a random place; those of class 0 have a green corner of 4 x 4 pixels."""
    random, images = np.random.default_rng(seed), torch.zeros(32, 3, SIDE, SIDE)
    for row, label in enumerate(LABELS):
        down, across = random.integers(0, SIDE - 6, 2)
        images[row, 0, down : down + 6, across : across + 6] = 1
        if mark and label == 0:
            images[row, 1, -4:, -4:] = 1
    return images


def look_often(watch: Watch, steps: int, epochs: int = 1) -> Watch:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortcutWarning)
        with watch:
            for epoch in range(epochs):
                for _ in range(steps):
                    watch.step(epoch=epoch)
    return watch


# ------------------------------------------------------------------------------------------------------------ alarm


@pytest.mark.parametrize("place", [(slice(-4, None), slice(-4, None)), (slice(0, 4), slice(0, 4))])
def test_the_alarm_names_class_place_and_effects(place: tuple[slice, slice], tmp_path: Path) -> None:
    images = draw_probe(mark=False)
    for row, label in enumerate(LABELS):
        images[row, 1][place] = float(label == 0)
    model = BlockReader(mark=200.0).train()
    watch = camtool.watch(model, images, LABELS, every=1, out=tmp_path, most_time=None, class_names=[*"wxyz"])
    with pytest.warns(ShortcutWarning, match="'w' is recognized by the") as caught:
        watch.start()
    watch.step(epoch=7)
    watch.step(epoch=7)  # a second warning would be an error
    assert (len(caught), watch.looks) == (1, 3)
    (alarm,) = watch.alarms
    assert (alarm.target, alarm.label, alarm.step) == (0, "w", 0)
    assert alarm.region == ("the lower right corner" if place[0].stop is None else "the upper left corner")
    assert alarm.p <= 1e-4
    # Without the mark: 20 times the mean of red, 36 of 400 pixels, for all classes alike, so 1/4; with it: 200 times
    # 16 of 400 pixels more for class 0.
    share = math.exp(8) / (math.exp(8) + 3)
    assert alarm.removal == pytest.approx(share - 0.25, abs=0.02)
    assert alarm.transplant == pytest.approx(share - 0.25, abs=0.02)
    assert alarm.sentence in repr(watch)
    assert "camtool.repair(model, photos, labels, audit)" in repr(watch)


def test_a_network_that_ignores_the_corner_raises_no_alarm(tmp_path: Path) -> None:
    watch = camtool.watch(BlockReader(mark=0.0).train(), draw_probe(), LABELS, every=1, out=tmp_path, most_time=None)
    look_often(watch, 12)
    assert watch.looks == 13
    assert watch.alarm is None


def test_random_maps_raise_at_most_five_percent_of_alarms(tmp_path: Path) -> None:
    """The weights are those of a network that has learned nothing; the labels are random: all looks at one set."""
    alarms = 0
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        )
        images = torch.rand(32, 3, SIDE, SIDE) + 3 * draw_probe(seed, mark=False)
        watch = camtool.watch(model, images, LABELS, every=1, out=tmp_path / f"{seed}", most_time=None)
        look_often(watch, 10)
        alarms += bool(watch.alarms)
    assert alarms <= 5  # with 40 of 5 % each, more have a probability of 1 %


def test_weights_of_looks_add_up_to_one() -> None:
    weights = [compute_weight(look) for look in range(1, 2**15)]
    assert weights[0] == pytest.approx(6 / math.pi**2)
    assert sum(weights) == pytest.approx(sum(6 / (math.pi * j) ** 2 for j in range(1, 16)))
    assert sum(weights) < 1
    assert weights == sorted(weights, reverse=True)


def test_few_images_of_a_class_are_not_tested(tmp_path: Path) -> None:
    assert compute_least_p(32, 8) == 1 / 10_518_300
    for labels, text in (
        ([0] * 3 + [1] * 29, "^'0', '1': too few images for an alarm"),
        (None, "^There are no labels, so there is no alarm"),
        ([2] * 32, "^All images are of one class, '2', so there is no alarm"),
    ):
        with pytest.warns(UserWarning, match=text) as caught:
            watch = camtool.watch(BlockReader(0.0), draw_probe(), labels, out=tmp_path)
        assert [str(one.message) for one in caught] == watch.not_tested
        assert caught[0].filename == __file__


# ---------------------------------------------------------------------------------------------------------- no trace


class Net(nn.Module):
    """A network with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def train(folder: Path | None, *, half: bool = False, accumulate: bool = False) -> tuple[Net, list[Tensor]]:
    """Train with or without a watch; return the network and what the generators give then."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  the global generator is what is tested
    model = Net().train()
    model.body[1].eval()  # a frozen batch norm stays frozen
    model.body[1].train(not accumulate)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = torch.utils.data.TensorDataset(draw_probe(5), torch.tensor(LABELS))
    loader = torch.utils.data.DataLoader(rows, 8, shuffle=True)
    watch = folder and camtool.watch(model, draw_probe(), LABELS, every=2, out=folder, most_time=None)
    with warnings.catch_warnings(), watch or nullcontext():
        warnings.simplefilter("ignore", ShortcutWarning)
        for epoch in range(2):
            for step, (images, labels) in enumerate(loader):
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    loss = nn.functional.cross_entropy(model(images).float(), labels)
                    if watch:
                        watch.step(epoch=epoch)  # between forward and backward: the graph must survive
                loss.backward()
                if not accumulate or step % 2:
                    optimizer.step()
                    optimizer.zero_grad()
    if watch:
        assert watch.looks == 5
    return model, [torch.rand(3), torch.from_numpy(np.random.rand(3))]  # noqa: NPY002


@pytest.mark.parametrize(("half", "accumulate"), [(False, False), (True, False), (False, True)])
def test_the_training_is_the_same_bit_for_bit(half: bool, accumulate: bool, tmp_path: Path) -> None:
    plain, drawn = train(None, half=half, accumulate=accumulate)
    watched, drawn_after = train(tmp_path, half=half, accumulate=accumulate)
    assert all(torch.equal(one, other) for one, other in zip(drawn, drawn_after, strict=True))
    state, other = plain.state_dict(), watched.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)
    for one, two in zip(plain.modules(), watched.modules(), strict=True):
        assert one.training == two.training
        assert not two._forward_hooks
        assert not two._backward_hooks
    for one, two in zip(plain.parameters(), watched.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)


@pytest.mark.parametrize(
    "context", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_a_look_is_the_same_in_any_mode(context, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, logs = Net().train(), []
    for name, block in (("plain", nullcontext()), ("other", context())):
        with block:
            look_often(camtool.watch(model, draw_probe(), LABELS, every=1, out=tmp_path / name, most_time=None), 1)
        logs.append((tmp_path / name / "watch.jsonl").read_text().splitlines())
    for one, other in zip(*logs, strict=True):
        numbers = [{k: v for k, v in json.loads(line).items() if k != "share_of_time"} for line in (one, other)]
        assert numbers[0] == numbers[1]


# ----------------------------------------------------------------------------------------------------------- scalars


def test_scalars_of_known_heat(tmp_path: Path) -> None:
    """All heat is in the two blocks: red at the border in half of the images, of 4 of 100 cells."""
    images = torch.zeros(32, 3, SIDE, SIDE)
    for row in range(32):
        at = 0 if row < 16 else 8
        images[row, 0, at : at + 4, at : at + 4] = 1
    look_often(camtool.watch(BlockReader(0.0), images, LABELS, every=1, out=tmp_path, most_time=None), 0)
    numbers = json.loads((tmp_path / "watch.jsonl").read_text())
    assert numbers["border"] == pytest.approx(0.5 * 3 / 4)
    assert numbers["entropy"] == pytest.approx(math.log(16) / math.log(SIDE**2))
    # Each class has 4 images of each block: 8 cells with the same heat.
    assert numbers["concentration/2"] == pytest.approx(1 - math.log(8) / math.log(100))
    assert numbers["probability"] == pytest.approx(0.25)
    assert numbers["accuracy"] == pytest.approx(0.25)
    assert (tmp_path / numbers["sheet"]).exists()


# ------------------------------------------------------------------------------------------------------------ budget


def test_looks_that_would_take_too_long_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes 3 seconds, each step 10, by a clock of its own: 3 % allow a look after 100 seconds."""
    clock = [0.0]
    monkeypatch.setattr("camtool.evaluation.watch.watching.time.perf_counter", lambda: clock[0])
    watch = camtool.watch(BlockReader(0.0), draw_probe(), LABELS, every=2, out=tmp_path, most_time=0.03)
    look = watch._probe.look

    def look_slowly():
        clock[0] += 3
        return look()

    monkeypatch.setattr(watch._probe, "look", look_slowly)
    looked = []
    with watch:
        for step in range(1, 31):
            clock[0] += 10
            watch.step()
            if watch.looks - 1 > len(looked):
                looked.append(step)
    assert looked == [10, 20, 30]
    assert watch.share_of_time == pytest.approx(0.03)
    assert watch.postponed == 3


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    images = draw_probe()
    for error, kwargs in {
        "images: give 1 to 32": {"images": torch.cat([images, images])},
        "labels: 31 came for 32": {"labels": LABELS[:31]},
        r"labels: give one class for each image; .* labels.argmax\(1\)": {"labels": torch.eye(4)[LABELS]},
        r"labels: 'arrow' is a name; pass class_names=\[": {"labels": ["arrow"] * 32},
        "labels: 9 does not exist": {"labels": [9] * 32},
        r"got a DataLoader; give images, labels = next\(iter": {"images": torch.utils.data.DataLoader(images)},
        "got a TensorDataset; give ": {"images": torch.utils.data.TensorDataset(images, torch.tensor(LABELS))},
        r"got a generator; give list\(images\)": {"images": (image for image in images)},
        "every": {"every": 0},
        "level": {"level": 0},
        "most_time": {"most_time": 2},
        "method: .*'occlusion'": {"method": "occlusion"},
    }.items():
        with pytest.raises(MetricError, match=error):
            camtool.watch(BlockReader(0.0), **{"images": images, "labels": LABELS, "out": tmp_path, **kwargs})


def test_a_network_that_breaks_does_not_end_the_training(tmp_path: Path) -> None:
    model = BlockReader(0.0)
    with camtool.watch(model, draw_probe(), LABELS, every=1, out=tmp_path, most_time=None) as watch:
        model.head.weight.data.fill_(float("nan"))
        watch.step()
        watch.step()
    assert watch.steps == 2
    assert watch.alarm is None


@pytest.mark.parametrize("error", [OSError("disk full"), MetricError("no"), torch.OutOfMemoryError("memory")])
def test_an_error_ends_the_looks_with_one_warning(error, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    watch = camtool.watch(BlockReader(0.0), draw_probe(), LABELS, every=1, out=tmp_path, most_time=None)
    with watch:
        watch.step()
        with monkeypatch.context() as patch:
            patch.setattr("camtool.evaluation.watch.watching.write_image", fail)
            with pytest.warns(UserWarning, match=f"^The looks ended at step 2, .* {error}$") as caught:
                watch.step()
        watch.step()
    assert len(caught) == 1
    assert str(caught[0].message) in repr(watch)
    assert (watch.steps, watch.looks) == (3, 3)
    assert len((tmp_path / "watch.jsonl").read_text().splitlines()) == 2


def test_an_error_of_the_first_look_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: Any) -> None:
        raise OSError(f"no space left for {path.name}")

    monkeypatch.setattr("camtool.evaluation.watch.watching.write_image", fail)
    watch = camtool.watch(BlockReader(0.0), draw_probe(), LABELS, out=tmp_path)
    with pytest.raises(OSError, match=r"step-00000000\.png"):
        watch.start()


def test_a_shortcut_can_be_made_an_error(tmp_path: Path) -> None:
    images = draw_probe()
    watch = camtool.watch(BlockReader(200.0), images * 0.0, LABELS, every=1, out=tmp_path, most_time=None)
    watch.start()
    watch._probe._batch = camtool.watch(BlockReader(200.0), images, LABELS, out=tmp_path)._probe._batch
    with warnings.catch_warnings():
        warnings.simplefilter("error", ShortcutWarning)
        with pytest.raises(ShortcutWarning):
            watch.step()


# ------------------------------------------------------------------------------------------------------- distributed


def run_rank(rank: int, folder: str) -> None:
    """Train in two processes; only rank 0 looks, and the other one goes on."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net().train())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    images, labels = draw_probe(3 + rank), torch.tensor(LABELS)
    watch = camtool.watch(model, draw_probe(), LABELS, every=1, out=f"{folder}/{rank}", most_time=None)
    warnings.simplefilter("ignore", ShortcutWarning)
    with watch:
        for _ in range(3):
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            watch.step()
    torch.save((watch.looks, watch.steps, model.state_dict()), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_rank_0_alone_looks(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(run_rank, (str(tmp_path),), nprocs=2)
    (looks, steps, state), (other_looks, other_steps, other) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert (looks, steps, other_looks, other_steps) == (4, 3, 0, 3)
    weights = [name for name in state if "weight" in name or "bias" in name]
    assert all(torch.equal(state[name], other[name]) for name in weights)
    assert (tmp_path / "0" / "watch.jsonl").exists()
    assert not (tmp_path / "1").exists()
