"""Where a watch writes to, with stand-ins of the documented interfaces, and the callbacks of two libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import camtool
from camtool.errors import MetricError
from camtool.evaluation.watch.watching import WrittenLook, find_writers
from tests.evaluation.watch.test_watch import LABELS, BlockReader, draw_probe

SHEET = np.zeros((4, 6, 3), np.uint8)
SCALARS = {"border": 0.5, "place/3": float("nan")}


def write(writer, sentences=("An alarm.",)) -> None:
    writer(WrittenLook(7, SCALARS, SHEET, [*sentences]))


def test_a_folder_gets_lines_of_json_and_pictures(tmp_path: Path) -> None:
    (writer,) = find_writers(None, tmp_path / "new" / "folder")
    write(writer)
    write(writer, ())
    lines = [json.loads(line) for line in (tmp_path / "new/folder/watch.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "step": 7, "sheet": "step-00000007.png", "border": 0.5, "place/3": None, "sentences": ["An alarm."]
    }  # fmt: skip
    assert (tmp_path / "new/folder/step-00000007.png").stat().st_size > 50


@pytest.mark.parametrize("folder", [None, Path("mine")])
def test_each_training_has_a_folder_of_its_own(
    folder: Path | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    first = folder or Path("watch")
    write(find_writers(None, folder)[0])
    sheets = {path: path.read_bytes() for path in first.iterdir()}
    for number in (2, 3):
        with pytest.warns(UserWarning, match=rf"{first} holds the looks of another training; .* {first}/run-{number}"):
            (writer,) = find_writers(None, folder)
        write(writer)
        write(writer)
        assert len((first / f"run-{number}/watch.jsonl").read_text().splitlines()) == 2
    assert {path: path.read_bytes() for path in sheets} == sheets


def test_a_second_training_is_another_run_of_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened = list[str]()
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda folder: opened.append(folder) or Mock(spec=["add_scalar", "add_image", "add_text"])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    write(find_writers("tensorboard", tmp_path)[1])
    with pytest.warns(UserWarning, match="another training"):
        find_writers("tensorboard", tmp_path)
    assert opened == [str(tmp_path), str(tmp_path / "run-2")]


def test_a_summary_writer_gets_scalars_an_image_and_the_alarm() -> None:
    summary = Mock(spec=["add_scalar", "add_image", "add_text"])
    write(find_writers(summary, None)[0])
    summary.add_scalar.assert_called_once_with("camtool/border", 0.5, 7)
    assert summary.add_image.call_args.args[0] == "camtool/maps"
    assert summary.add_image.call_args.kwargs == {"dataformats": "HWC"}
    summary.add_text.assert_called_once_with("camtool/alarm", "An alarm.", 7)


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_tensorboard_itself_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as summary:
        write(find_writers(summary, None)[0])
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for event in events.Scalars("camtool/border")] == [0.5]
    assert events.Images("camtool/maps")[0].width == 6


def test_an_active_run_of_wandb_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module, run = ModuleType("wandb"), Mock(spec=["log", "define_metric"])
    module.run, module.Image = run, lambda pixels: ("image", pixels.shape)
    monkeypatch.setitem(sys.modules, "wandb", module)
    (writer,) = find_writers(None, None)
    write(writer)
    run.define_metric.assert_called_once_with("camtool/*", step_metric="camtool/step")
    run.log.assert_called_once_with(
        {"camtool/border": 0.5, "camtool/step": 7, "camtool/maps": ("image", (4, 6, 3)), "camtool/alarm": "An alarm."}
    )
    module.run = None
    with pytest.raises(MetricError, match=r"wandb.init"):
        find_writers("wandb", None)


def test_an_active_run_of_mlflow_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mlflow")
    module.log_metrics, module.log_image = Mock(), Mock()
    module.active_run = lambda: object()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    for (writer,) in (find_writers(None, None), find_writers("mlflow", None)):
        write(writer)
    module.log_metrics.assert_called_with({"camtool/border": 0.5}, step=7)
    assert module.log_image.call_args.args[1] == "camtool/step-00000007.png"


def test_loggers_of_lightning_get_what_they_take() -> None:
    client = Mock(spec=["log_image"])
    by_client = SimpleNamespace(log_metrics=Mock(), experiment=client, run_id="a")
    by_logger = SimpleNamespace(log_metrics=Mock(), experiment=object(), log_image=Mock())
    numbers_alone = SimpleNamespace(log_metrics=Mock(), experiment=object())
    for logger in (by_client, by_logger, numbers_alone):
        write(find_writers([logger], None)[0])
        logger.log_metrics.assert_called_once_with({"camtool/border": 0.5}, step=7)
    client.log_image.assert_called_once_with("a", SHEET, "camtool/step-00000007.png")
    by_logger.log_image.assert_called_once_with(key="camtool/maps", images=[SHEET])


def test_what_is_nothing_to_write_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="to: a int"):
        find_writers(3, tmp_path)
    with pytest.raises(MetricError, match="'tensorbord' is unknown"):
        find_writers("tensorbord", None)


# --------------------------------------------------------------------------------------------------------- callbacks


def make_watch(every: int = 2):
    return camtool.watch(BlockReader(0.0), draw_probe(), LABELS, every=every, most_time=None)


def read_steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "watch" / "watch.jsonl").read_text().splitlines()]


def test_a_callback_of_lightning_counts_optimizer_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("lightning.pytorch")
    module.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)
    watch = make_watch()
    callback = watch.make_lightning_callback()
    assert isinstance(callback, module.Callback)
    trainer = SimpleNamespace(loggers=[], default_root_dir=str(tmp_path), global_step=0, current_epoch=3)
    callback.on_train_start(trainer, None)
    for step in (1, 1, 2, 2, 3, 4):  # two batches for the first steps: gradients are accumulated
        trainer.global_step = step
        callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_train_end(trainer, None)
    assert read_steps(tmp_path) == [0, 2, 4]


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_lightning_itself_trains_with_the_callback(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = BlockReader(0.0)

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    module = Module()
    watch = camtool.watch(module.net, draw_probe(), LABELS, every=2, most_time=None)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(draw_probe(1), torch.tensor(LABELS)), batch_size=8
    )
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[watch.make_lightning_callback()],
    )  # fmt: skip
    trainer.fit(module, loader)
    assert read_steps(tmp_path) == [0, 2, 4]


def test_a_callback_of_hugging_face_counts_optimizer_steps(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    watch = make_watch()
    callback = watch.make_hugging_face_callback()
    assert isinstance(callback, transformers.TrainerCallback)
    args, state, control = SimpleNamespace(output_dir=str(tmp_path)), transformers.TrainerState(), None
    callback.on_train_begin(args, state, control, model=None)
    for step in range(1, 5):
        state.global_step, state.epoch = step, step / 4
        callback.on_step_end(args, state, control, model=None)
    callback.on_train_end(args, state, control, model=None)
    assert read_steps(tmp_path) == [0, 2, 4]


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_the_trainer_itself_trains_with_the_callback(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    class Scored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = BlockReader(0.0)

        def forward(self, pixel_values, labels):
            logits = self.net(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = Scored()
    watch = camtool.watch(model.net, draw_probe(), LABELS, every=2, most_time=None)
    rows = [{"pixel_values": image, "labels": label} for image, label in zip(draw_probe(1), LABELS, strict=True)]
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    transformers.Trainer(model, args, train_dataset=rows, callbacks=[watch.make_hugging_face_callback()]).train()
    assert read_steps(tmp_path) == [0, 2, 4]
