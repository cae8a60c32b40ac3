"""An audit goes on where it stopped, with the same bits, and numbers of other settings never mix; engines; progress."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import camtool
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.audit import images as audit_images
from camtool.evaluation.audit.cues import kinds
from camtool.evaluation.audit.cues.place import PlaceCandidate
from camtool.evaluation.audit.findings import Conclusion
from camtool.evaluation.audit.images import GRID, AuditImages
from camtool.evaluation.audit.state import State, _stamp
from camtool.evaluation.audit.trials import Outcome
from camtool.evaluation.subject import Subject
from camtool.inputs.formats.contrast import Contrast
from camtool.inputs.formats.file_image import FileImage
from camtool.progress import send_progress
from camtool.runs.locking import hold_lock
from tests.cli.test_commands import start_process
from tests.evaluation.audit.test_audit import RED, build_net, draw_images, run_audit

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals")


def start_command(folder, **options):
    command = ["audit", "photos", "--model", "demo-cheat", "--truth", "imagefolder", "--passes", "1500", "--quiet"]
    return start_process(*command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)


def count_lines(path):
    return path.read_bytes().count(b'"key"') if path.exists() else 0


@posix
def test_an_audit_that_was_killed_twice_gives_the_same_bits(tmp_path):
    for name in ("whole", "killed"):
        for number in range(72):
            label = ("heart", "star", "arrow")[number % 3]
            scene = draw_scene(UNSEEN + number, classes=[label], mark=label == "heart")
            path = tmp_path / name / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(scene.image).save(path)
    assert start_command(tmp_path / "whole", is_fresh=True).wait(timeout=600) == 0
    total = count_lines(tmp_path / "whole/audit/state.jsonl")
    state = tmp_path / "killed/audit/state.jsonl"
    # During the maps, which are the first 72 lines, and during the tests.
    for least in (20, (72 + total) // 2):
        process, deadline = start_command(tmp_path / "killed"), time.monotonic() + 600
        while count_lines(state) < least and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert least <= count_lines(state) < total
    assert start_command(tmp_path / "killed").wait(timeout=600) == 0
    assert count_lines(state) == total
    for name in ("audit.json", "audit.md"):
        assert (tmp_path / "killed/audit" / name).read_bytes() == (tmp_path / "whole/audit" / name).read_bytes()


def test_a_batch_is_the_same_when_a_part_of_it_is_known(tmp_path, monkeypatch):
    """In another batch the sums of an image may have other last bits."""
    batches = list[list[int]]()
    record = AuditImages._record
    monkeypatch.setattr(
        AuditImages, "_record", lambda self, items, numbers: batches.append([*numbers]) or record(self, items, numbers)
    )
    first = run_audit(out=tmp_path)
    lines = (tmp_path / "state.jsonl").read_text().splitlines()
    kept = [line for line in lines if ' image 37"' not in line]
    assert len(kept) == len(lines) - 1
    (tmp_path / "state.jsonl").write_text("\n".join(kept) + "\n")
    again = run_audit(out=tmp_path)
    assert again.to_json() == first.to_json()
    assert batches == [[*range(32)], [*range(32, 64)], [*range(64, 90)], [*range(32, 64)]]


def change_weights(net):
    with torch.no_grad():
        net[-1].bias += torch.tensor([-0.3, 0.2, 0.0])


@pytest.mark.parametrize("what", ["weights", "images", "method", "controls", "seed", "batch_size", "passes", "engine"])
def test_numbers_of_other_settings_never_mix(result, copied, what):
    images, classes = draw_images()
    others = {"method": "layercam", "controls": 5, "seed": 3, "batch_size": 7, "passes": 2000, "engine": "prepared"}

    def run(*, is_other, out):
        net, given = build_net(), images.clone()
        if is_other and what == "weights":
            change_weights(net)
        if is_other and what == "images":
            given[::2] *= 0.8
        options = {"method": "gradcam", **({what: others[what]} if is_other and what in others else {})}
        return camtool.audit(
            net, given, classes, class_names=["red", "green", "blue"], kinds=["place"], out=out, **options
        ).to_json()

    assert run(is_other=True, out=copied) == run(is_other=True, out=None)
    assert run(is_other=False, out=copied) == result.to_json()


class Functional(nn.Module):
    """The network with an activation function that neither weights nor the repr tell of."""

    def __init__(self, slope):
        super().__init__()
        net = build_net()
        self.convolution, self.end, self._slope = net[0], net[2:], slope

    def forward(self, images):
        return self.end(nn.functional.leaky_relu(self.convolution(images) - 0.3, self._slope))


def test_numbers_of_other_code_never_mix(tmp_path):
    images, classes = draw_images()

    def run(slope, out):
        options = {"class_names": ["red", "green", "blue"], "kinds": ["place"], "method": "gradcam", "out": out}
        return camtool.audit(Functional(slope), images, classes, **options).to_json()

    first = run(0.0, tmp_path)
    other = run(0.2, tmp_path)
    assert other == run(0.2, None) != first
    lines = (tmp_path / "state.jsonl").read_text().count("image 5")
    assert (run(0.0, tmp_path), run(0.2, tmp_path)) == (first, other)
    assert (tmp_path / "state.jsonl").read_text().count("image 5") == lines


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_key_tells_quantized_weights_and_not_the_last_bits(tmp_path):
    def quantize(factor):
        net = nn.Sequential(nn.Linear(3, 2))
        net[0].weight.data.fill_(0.5 * factor)
        net[0].bias.data.zero_()
        return Subject(torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8))

    def open_state(factor, logits):
        images = SimpleNamespace(subject=quantize(factor), sources=[], score_first_inputs=lambda: ([], logits))
        return State([images], (), tmp_path)

    def read(factor, logits):
        return open_state(factor, logits).get("a")

    open_state(1, [1.0, 20.0]).add("a", [3.0])
    assert read(1, [1.00001, 20.0002]) == [3.0]
    assert read(1, [1.01, 20.0]) is read(1, [1.0]) is read(2, [1.0, 20.0]) is None


def _draw_indexed(palette, **info):
    image = Image.fromarray(np.eye(4, dtype=np.uint8), "P")
    image.putpalette(palette)
    image.info |= info
    return image


_RED, _BLUE = [0, 0, 0, 255, 0, 0], [0, 0, 0, 0, 0, 255]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (_draw_indexed(_RED), _draw_indexed(_RED), True),
        (_draw_indexed(_RED), _draw_indexed(_BLUE), False),
        (_draw_indexed(_RED), _draw_indexed(_RED, transparency=1), False),
        (np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8), True),
        (np.zeros((4, 4), np.uint8), np.zeros((2, 8), np.uint8), False),
        (np.zeros((4, 4), np.uint8), np.zeros((4, 4), bool), False),
        (torch.zeros(3, 4, 4), torch.zeros(3, 2, 8), False),
        (torch.zeros(3, 4, 4, dtype=torch.float16), torch.zeros(3, 4, 4, dtype=torch.bfloat16), False),
        (FileImage("a", np.zeros((4, 4, 1)), None), FileImage("a", np.zeros((4, 4, 1)), None), True),
        (FileImage("a", np.zeros((4, 4, 1)), None), FileImage("a", np.ones((4, 4, 1)), None), False),
        (FileImage("a", np.zeros((4, 4, 1)), None), FileImage("a", np.zeros((4, 4, 1)), Contrast((0,), (9,))), False),
    ],
)
def test_the_stamp_of_an_image_in_memory_changes_with_what_is_seen(one, other, is_same):
    assert (_stamp(one) == _stamp(other)) is is_same


def test_the_stamp_of_a_file_changes_with_its_content_and_its_place(tmp_path):
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    one.write_bytes(b"12345")
    stamp = _stamp(one)
    assert _stamp(one) == _stamp(str(one)) == stamp
    one.rename(other)
    other.write_bytes(b"54321")  # as many bytes
    os.utime(other, ns=(0, other.stat().st_mtime_ns + 10**9))  # clocks of file systems may be coarse
    other.rename(one)
    assert _stamp(one) != stamp
    one.unlink()
    assert _stamp(one) not in (stamp, _stamp(other))


def test_another_transform_is_another_audit(tmp_path):
    photos = [(255 * image.permute(1, 2, 0)).byte().numpy() for image in draw_images(48)[0]]

    def run(factor, out):
        def to_tensor(photo):
            return factor * torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1).float() / 255

        classes = draw_images(48)[1]
        options = {"class_names": ["red", "green", "blue"], "method": "gradcam", "kinds": ["place"]}
        return camtool.audit(build_net(), photos, classes, transform=to_tensor, out=out, **options).to_json()

    run(1, tmp_path)
    assert run(0.7, tmp_path) == run(0.7, None)


def test_two_places_with_one_name_have_numbers_of_their_own(monkeypatch):
    corner, edge = np.zeros((2, GRID, GRID), bool)
    corner[7:, 7:] = edge[:, 0] = True
    both = [PlaceCandidate(RED, "here", 1.0, cells) for cells in (corner, edge)]
    monkeypatch.setitem(kinds.KINDS, "place", kinds.Kind(lambda discovery: both))
    result = run_audit()
    assert [one.area for one in result.findings] == [0.09]
    # Their keys differ as well, also if only one is a finding.
    assert [one.key for one in (*result.findings, *result.rejected)][:1] == ["red: place: here"]
    names = Conclusion._iterate_keys(
        SimpleNamespace(run=SimpleNamespace(names=["a", "b", "a"], name_class=["a", "b", "a"].__getitem__)),
        [Outcome(replace(both[0], target=target)) for target in (0, 0, 1, 2)],
    )
    assert [*names] == ["a (0): place: here", "a (0): place: here 2", "b: place: here", "a (2): place: here"]
    assert not any(one.area == 0.1 and one.p < 0.1 for one in result.rejected)


def test_a_second_audit_in_the_folder_is_refused(copied):
    with hold_lock(copied / ".state.jsonl.lock"), pytest.raises(MetricError, match=r"another audit works in .*pro"):
        run_audit(out=copied)
    run_audit(out=copied)
    assert not (copied / ".state.jsonl.lock").exists()


@pytest.mark.parametrize(
    "engine",
    ["prepared", "onnxruntime", "openvino"],
)
def test_an_engine_gives_the_model_s_own_result(result, caplog, tmp_path, engine):
    if engine != "prepared":
        pytest.importorskip(engine)
    with caplog.at_level(logging.WARNING, "camtool"):
        own = run_audit(engine=engine, out=tmp_path)
        (finding,), (expected,) = own.findings, result.findings
    assert caplog.messages == []
    assert own.notes == (f"The tests ran in: {engine}.",)
    assert run_audit(engine=engine, out=tmp_path).to_json() == own.to_json()
    assert finding.removal.probability.mean == pytest.approx(expected.removal.probability.mean, abs=1e-5)
    assert (finding.sentence, finding.facts, finding.images) == (expected.sentence, expected.facts, expected.images)


def test_an_engine_that_does_not_exist_is_named():
    with pytest.raises(CamtoolError, match="engine must be one of"):
        run_audit(engine="onnx")


def test_prepared_images_are_kept_up_to_a_number_of_bytes(monkeypatch):
    images, _ = draw_images(30)
    size = 3 * 40 * 40 * 4 + 40 * 40 * 3  # the input in single precision, and the photo in bytes
    monkeypatch.setattr(audit_images, "_KEPT_BYTES", 10 * size)
    kept = AuditImages(Subject(build_net()), [*images], None, "gradcam", 8)
    read = list[int]()
    prepare = kept.subject.preparer.prepare
    monkeypatch.setattr(kept.subject.preparer, "prepare", lambda source: read.append(1) or prepare(source))
    for index in [*range(10), *range(10), *range(30), *range(20, 30)]:
        assert torch.equal(kept.prepare(index).tensor, images[index])
    assert len(read) == 30
    kept.prepare(19)
    assert len(read) == 31


class Listener:
    def __init__(self):
        self.stages = {}

    def __call__(self, count, stage=None, /):
        name = "" if stage is None else stage.activity
        self.stages[name] = [count, 0, "" if stage is None else stage.unit]
        return closing_counter(self.stages[name])


def closing_counter(entry):
    class Counter:
        def update(self, passes, /):
            entry[1] += passes

        def close(self):
            pass

    return Counter()


def test_each_stage_tells_how_far_it_is_and_counts_what_is_left(tmp_path):
    first, second = Listener(), Listener()
    with send_progress(first):
        result = run_audit(out=tmp_path)
    assert first.stages["Explaining"] == [90, 90, "image"]
    count, done, unit = first.stages["Testing"]
    assert (done, unit) == (count, "pass")
    assert count == result.passes - 3 * 90 > 0
    tested = first.stages["Measuring candidates"]
    assert tested[0] == tested[1] > 30
    lines = (tmp_path / "state.jsonl").read_text().splitlines()
    (tmp_path / "state.jsonl").write_text("\n".join(lines[: len(lines) * 4 // 5]) + "\n")
    with send_progress(second):
        assert run_audit(out=tmp_path).to_json() == result.to_json()
    assert "Testing" in second.stages
    assert second.stages["Explaining"][:2] == [0, 0]
    assert second.stages["Testing"][0] == second.stages["Testing"][1] < count
