"""Files of other runtimes as models: layers and maps of ONNX, layouts, batches, outputs, metadata, refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool import FunctionError, ImageError, LayerError, MethodError, ModelError
from camtool.cli import app
from camtool.demo.scenes import draw_scene

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.helpers import onnx_files  # noqa: E402
from tests.helpers.exporter import describe_operators_once  # noqa: E402

IMAGE = torch.arange(16.0).reshape(1, 4, 4) / 16
BATCH = torch.stack([IMAGE, 1 - IMAGE, IMAGE.flip(1)])


@pytest.fixture(autouse=True, scope="module")
def _operators_are_described_once() -> Iterator[None]:
    with describe_operators_once():
        yield


def load(path: Path, **settings: Any) -> camtool.Loaded:
    return camtool.load(str(path), **settings)


def compute_scores(images: Tensor) -> np.ndarray[Any, Any]:
    """Compute the scores of the file that is written by hand from m0, mean(relu x), and m1, mean(relu(1 - x))."""
    x = images.numpy().astype(np.float64)
    first, second = np.maximum(x, 0).mean((1, 2, 3)), np.maximum(1 - x, 0).mean((1, 2, 3))
    return np.stack([2 * first + second, second - first], 1)


# -------------------------------------------------------------------------------------------- layouts, batches, outputs


@pytest.mark.parametrize("batch", ["n", 1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
def test_scores_are_those_of_the_file_for_any_layout_and_number_of_images(
    tmp_path: Path, batch: int | str, channels_last: bool
) -> None:
    path = onnx_files.write_by_hand(tmp_path / "net.onnx", batch=batch, channels_last=channels_last)
    model = load(path, output="scores")
    for images in (BATCH, BATCH[:1]):
        np.testing.assert_allclose(model(images), compute_scores(images), rtol=1e-6)


@pytest.mark.parametrize("batch", ["n", 1, 2])
def test_layers_have_the_names_of_tensors_and_maps_are_what_the_hand_computes(tmp_path: Path, batch: int | str) -> None:
    model = load(onnx_files.write_by_hand(tmp_path / "net.onnx", batch=batch), output="scores")
    assert [layer.name for layer in camtool.candidate_layers(model, BATCH)] == ["net.conv", "half_"]
    # The scores are 2 m0 + m1 and m1 - m0; without the first channel m1 and m1, without the second 2 m0 and -m0.
    m0, m1 = float(IMAGE.mean()), float(1 - IMAGE.mean())
    for target, drops, score in ((0, (2 * m0, m1), 2 * m0 + m1), (1, (-m0, m1), m1 - m0)):
        result = camtool.explain(model, BATCH, target, method="ablationcam")[0]
        assert result.layer == "half_"
        expected = np.maximum(drops[0] / score * IMAGE[0].numpy() + drops[1] / score * (1 - IMAGE[0].numpy()), 0)
        np.testing.assert_allclose(result.raw, expected, rtol=1e-4, atol=1e-5)


def test_without_gradients_passes_say_which_tensors_are_the_scores_of_classes(tmp_path: Path) -> None:
    """Of the matrix, each score takes one channel: what is averaged are the classes' own maps, as in SqueezeNet."""
    path = onnx_files.write_by_hand(tmp_path / "net.onnx", head=((2, 0), (0, 3)))
    verdicts = [layer.verdict for layer in camtool.candidate_layers(load(path, output="scores"), BATCH)]
    assert verdicts == ["it holds the classes' own score maps, not features"] * 2
    path = onnx_files.write_by_hand(tmp_path / "unread.onnx", head=((0, 0), (0, 0)))
    verdicts = [layer.verdict for layer in camtool.candidate_layers(load(path, output="scores"), BATCH)]
    assert verdicts == ["no gradient reaches it"] * 2
    with pytest.raises(LayerError, match="Is the model's head still all zeros"):
        camtool.explain(load(path, output="scores"), BATCH, method="eigencam")


def test_a_recorder_reads_and_changes_tensors_of_the_file(tmp_path: Path) -> None:
    model = load(onnx_files.write_by_hand(tmp_path / "net.onnx"), output="scores")
    with camtool.Recorder(model, ["net.conv"]) as recorder:
        model(BATCH)
    torch.testing.assert_close(recorder["net.conv"].outputs[0], torch.cat([BATCH, 1 - BATCH], 1))
    with camtool.Recorder(model, edit={"net.conv": camtool.recorder.zero()}):
        assert not model(BATCH).any()
    with camtool.Recorder(model, edit={"half_": lambda tensor: tensor * 3}):
        np.testing.assert_allclose(model(BATCH), 3 * compute_scores(BATCH), rtol=1e-5)
    np.testing.assert_allclose(model(BATCH), compute_scores(BATCH), rtol=1e-5)


def test_several_outputs_or_an_unclear_layout_are_asked_for(tmp_path: Path) -> None:
    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    with pytest.raises(
        ModelError, match=r"has several outputs; name that of the scores with output=: 'scores' \(\?, 2\)"
    ):
        load(path)
    with pytest.raises(ModelError, match="has no output 'boxes'"):
        load(path, output="boxes")
    np.testing.assert_allclose(load(path, output="negated")(BATCH), -compute_scores(BATCH), rtol=1e-6)
    unclear = onnx.load(path)
    for axis in unclear.graph.input[0].type.tensor_type.shape.dim:
        axis.dim_param = "any"
    onnx.save(unclear, tmp_path / "unclear.onnx")
    with pytest.raises(
        ModelError, match=r"\(\?, \?, \?, \?\), which does not show where its channels are; pass layout="
    ):
        load(tmp_path / "unclear.onnx", output="scores")
    model = load(tmp_path / "unclear.onnx", output="scores", layout="NCHW")
    np.testing.assert_allclose(model(BATCH), compute_scores(BATCH), rtol=1e-6)
    with pytest.raises(ModelError, match=r"^layout must be one of 'NCHW', 'NHWC'"):
        load(tmp_path / "unclear.onnx", output="scores", layout="HWC")  # type: ignore[typeddict-item]


def test_outputs_without_numbers_are_left_alone(tmp_path: Path) -> None:
    """Classifiers of scikit-learn have texts and dictionaries beside the scores; NumPy has no bfloat16."""
    model = onnx.load(onnx_files.write_by_hand(tmp_path / "net.onnx"))
    text = onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [1], [b"tabby"])
    model.graph.node.extend(
        [
            onnx.helper.make_node("Constant", [], ["label"], value=text),
            onnx.helper.make_node("SequenceConstruct", ["scores", "negated"], ["pairs"]),
            onnx.helper.make_node("Cast", ["scores"], ["short"], to=onnx.TensorProto.BFLOAT16),
        ]
    )
    scores = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n", 2])
    model.graph.output.extend(
        [
            onnx.helper.make_tensor_value_info("label", onnx.TensorProto.STRING, [1]),
            onnx.helper.make_value_info("pairs", onnx.helper.make_sequence_type_proto(scores)),
            onnx.helper.make_tensor_value_info("short", onnx.TensorProto.BFLOAT16, ["n", 2]),
        ]
    )
    path = tmp_path / "several.onnx"
    onnx.save(model, path)
    np.testing.assert_allclose(load(path, output="scores")(BATCH), compute_scores(BATCH), rtol=1e-6)
    for output in ("label", "pairs", "short"):
        with pytest.raises(ModelError, match=f"no numbers in output '{output}'; .*'scores' .*'pairs' \\(no numbers\\)"):
            load(path, output=output)


def test_what_a_file_cannot_do_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    model = load(path, output="scores")
    photo = Image.new("L", (8, 8))
    with pytest.raises(MethodError, match=r"runs outside of torch and has no gradients.*use one of ablationcam"):
        camtool.explain(model, BATCH)
    with pytest.raises(ImageError, match=r"how the file net.onnx takes photos is not known; pass transform="):
        camtool.explain(model, photo, method="occlusion")
    with pytest.raises(LayerError, match=r"no layer 'nett\.conv'"):
        camtool.explain(model, BATCH, method="eigencam", layer="nett.conv")
    with pytest.raises(FunctionError, match=r"the file net.onnx failed on 1 image \(1, 6, 6\)"):
        camtool.explain(model, torch.zeros(1, 1, 6, 6), method="occlusion")
    with pytest.raises(ModelError, match="there is no such file"):
        camtool.load("nothing.onnx")
    with pytest.raises(ModelError, match="holds its own weights"):
        camtool.load(str(path), "weights.pt", output="scores")
    with pytest.raises(
        ModelError, match=r"limit= is no setting of model .*net.onnx', which has batch, layout, output, gradients"
    ):
        load(path, limit=3)
    (tmp_path / "damaged.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"damaged.onnx cannot be read: "):
        load(tmp_path / "damaged.onnx")


def test_a_file_that_takes_more_than_images_is_refused(tmp_path: Path) -> None:
    model = onnx.load(onnx_files.write_by_hand(tmp_path / "net.onnx"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("prompt", onnx.TensorProto.INT64, ["n", 7]))
    onnx.save(model, tmp_path / "two.onnx")
    with pytest.raises(ModelError, match=r"takes images \(\?, 1, 4, 4\), prompt \(\?, 7\); write a function"):
        load(tmp_path / "two.onnx", output="scores")


def write_for_bytes(path: Path, kind: int = onnx.TensorProto.UINT8) -> Path:
    """Write a copy of a file of floats that takes whole numbers."""
    model, target = onnx.load(path), path.with_name("bytes.onnx")
    model.graph.input[0].type.tensor_type.elem_type = kind
    model.graph.node[0].input[0] = "floats"
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["images"], ["floats"], to=onnx.TensorProto.FLOAT))
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("low", [0, -128])
@pytest.mark.parametrize("method", ["eigencam", "ablationcam", "scorecam", "occlusion"])
def test_the_map_of_a_file_of_bytes_is_that_of_the_file_of_floats(tmp_path: Path, method: str, low: int) -> None:
    files = onnx_files.write_by_hand(tmp_path / "net.onnx", batch=1)
    kind = onnx.TensorProto.INT8 if low else onnx.TensorProto.UINT8
    levels = (BATCH[:1] * 255).round() + low
    floats, whole = (
        camtool.explain(load(path, output="scores"), levels, 0, method=method)[0].raw
        for path in (files, write_for_bytes(files, kind))
    )
    np.testing.assert_allclose(whole, floats, rtol=1e-4, atol=1e-4)


def test_a_file_of_bytes_takes_no_normalized_images(tmp_path: Path) -> None:
    loaded = load(write_for_bytes(onnx_files.write_by_hand(tmp_path / "net.onnx")), output="scores")
    levels = (BATCH * 255).round()
    np.testing.assert_allclose(loaded(levels), compute_scores(levels), rtol=1e-6)
    for images in (BATCH, levels - 128):
        with pytest.raises(FunctionError, match=r"takes whole numbers from 0 to 255, and values from .* came"):
            loaded(images)


def test_a_file_of_bytes_does_not_blame_the_transform_for_what_a_method_does(tmp_path: Path) -> None:
    loaded = load(write_for_bytes(onnx_files.write_by_hand(tmp_path / "net.onnx")), output="scores")
    dark, black = (BATCH[:1] > 0.5).float(), torch.zeros_like(BATCH[:1])
    with pytest.raises(FunctionError, match="If it does, the method changed a photo that is nearly black or white"):
        camtool.explain(loaded, dark, 0, method="rise")
    for photo in (black, black + 255):
        assert camtool.explain(loaded, photo, 0, method="rise")[0].raw.shape == (4, 4)


@pytest.mark.parametrize("takes_bytes", [False, True])
def test_who_does_what_a_refusal_of_a_photo_says_gets_a_map(tmp_path: Path, takes_bytes: bool) -> None:
    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    model = load(write_for_bytes(path) if takes_bytes else path, output="scores")
    photo = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 10)
    with pytest.raises(ImageError, match=r"pass transform=, e\.g\. camtool") as refusal:
        camtool.explain(model, photo, method="occlusion")
    std = "1 / 255" if takes_bytes else "1"
    example = f'camtool.preprocessing(size=4, mean=0, std={std}, channels="gray")'
    assert example in str(refusal.value)
    transform = eval(example)
    assert camtool.explain(model, photo, 0, method="occlusion", transform=transform).raw.max() > 0


# ------------------------------------------------------------------------------------------------------------- metadata


@pytest.fixture(scope="module")
def demo_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled model with its explanation, as camtool exports it."""
    folder = tmp_path_factory.mktemp("files")
    model = camtool.load("demo")
    return {suffix: camtool.export(model, folder / f"demo{suffix}") for suffix in (".onnx", ".xml")}


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_an_exported_file_brings_its_preprocessing_and_labels(demo_files: dict[str, Path], suffix: str) -> None:
    pytest.importorskip("openvino")
    model, loaded = camtool.load("demo"), load(demo_files[suffix])
    assert loaded.labels == list(model.labels or ())
    photo = Image.fromarray(draw_scene(5, objects=2).image).resize((150, 190))
    mine, expected = (camtool.explain(one, photo, "star", method="occlusion") for one in (loaded, model))
    assert mine.label == "star"
    assert mine.probability == pytest.approx(expected.probability, abs=1e-3)
    assert np.abs(mine.raw - expected.raw).max() <= 2e-3 * np.abs(expected.raw).max()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(("c1.", "a..b"), (".", ".."), (".a", "a."), ("a", "a.weight"), ("a.weight", "a"), ("a.b", "a"), ("a", "a.b")),
        *(("a..", "a._._"), ("a._", "a."), ("a_", "a"), ("training", "training_"), ("a", "a.training")),
    ],
)
def test_any_names_of_tensors_are_layers(tmp_path: Path, first: str, second: str) -> None:
    def compute_maps() -> list[np.ndarray]:
        model = load(path, output="scores").model
        by_kind = {type(module).__name__: name for name, module in model.named_modules()}
        results = [
            camtool.explain(model, BATCH, 0, method="ablationcam", layer=by_kind[kind]) for kind in ("Conv", "Relu")
        ]
        return [explanation.raw for result in results for explanation in result]

    path = onnx_files.write_by_hand(tmp_path / "net.onnx")
    expected = compute_maps()
    graph, names = onnx.load(path), {"net.conv": first, "half": second}
    for node in graph.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
    onnx.save(graph, path)
    np.testing.assert_array_equal(compute_maps(), expected)


def test_a_file_of_ultralytics_brings_names_and_other_tasks_are_refused(tmp_path: Path) -> None:
    names = {"names": "{0: 'dark', 1: 'bright'}", "imgsz": "[4, 4]"}
    path = onnx_files.write_by_hand(tmp_path / "classes.onnx", task="classify", **names)
    assert load(path, output="scores").labels == ["dark", "bright"]
    path = onnx_files.write_by_hand(tmp_path / "boxes.onnx", task="detect", **names)
    with pytest.raises(ModelError, match="for the task 'detect' returns boxes before they are selected"):
        load(path, output="scores")


def test_a_tflite_file_has_its_labels_and_takes_quantized_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    from tests.helpers import tflite_files

    model = load(tflite_files.write_by_hand(tmp_path / "net.tflite", "dark\nbright\n"))
    assert model.labels == ["dark", "bright"]
    np.testing.assert_allclose(model(BATCH), compute_scores(BATCH), rtol=1e-6)
    # Steps of 1/16 from byte 3 on are the values of the image, without rounding.
    model = load(tflite_files.write_by_hand(tmp_path / "bytes.tflite", scale=1 / 16, zero=3))
    np.testing.assert_allclose(model(BATCH), compute_scores(BATCH), rtol=1e-6)
    covered = camtool.explain(model, IMAGE, 0, method="occlusion", window=0.5, stride=0.5).raw
    for rows in (slice(0, 2), slice(2, 4)):
        for columns in (slice(0, 2), slice(2, 4)):
            without = IMAGE[None].clone()
            without[:, :, rows, columns] = 0
            drop = compute_scores(IMAGE[None])[0, 0] - compute_scores(without)[0, 0]
            np.testing.assert_allclose(covered[rows, columns], drop, atol=1e-6)


def write_file(folder: Path, runtime: str) -> Path:
    """Write the network by hand as a file that a runtime opens; a runtime that is absent skips the test."""
    if runtime == "ai_edge_litert":
        pytest.importorskip(runtime)
        from tests.helpers import tflite_files

        return tflite_files.write_by_hand(folder / "net.tflite")
    path = onnx_files.write_by_hand(folder / "net.onnx")
    if runtime == "openvino":
        openvino = pytest.importorskip(runtime)
        openvino.save_model(openvino.Core().read_model(path), path.with_suffix(".xml"), compress_to_fp16=False)
        return path.with_suffix(".xml")
    return path


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "ai_edge_litert"])
def test_threads_that_share_a_file_get_the_scores_of_their_own_images(tmp_path: Path, runtime: str) -> None:
    model = load(write_file(tmp_path, runtime), output="scores").model
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(1 + number % 3, 1, 4, 4, generator=generator) for number in range(300)]
    with ThreadPoolExecutor(4) as pool:
        scores = [*pool.map(model, batches)]
    for images, of_batch in zip(batches, scores, strict=True):
        np.testing.assert_allclose(of_batch, compute_scores(images), rtol=1e-5, atol=1e-6)


def test_a_damaged_tflite_file_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    path = write_file(tmp_path, "ai_edge_litert")
    content, random = path.read_bytes(), np.random.default_rng(0)
    for size in (0, 7, len(content) // 2, len(content) - 8):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"net\.tflite cannot be read: "):
            load(path)
    outcomes = set[str]()
    for _ in range(60):
        damaged = bytearray(content)
        damaged[random.integers(len(content))] = random.integers(256)
        path.write_bytes(damaged)
        try:
            outcomes.add(str(load(path, layout="NHWC").model(BATCH).shape))
        except (ModelError, FunctionError) as error:
            outcomes.add(type(error).__name__)
    assert {"torch.Size([3, 2])", "ModelError"} <= outcomes


def test_labels_that_unpack_to_more_than_the_memory_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert")
    from tests.helpers import tflite_files

    path = tflite_files.write_by_hand(tmp_path / "net.tflite", "dark\nbright\n")
    monkeypatch.setattr("camtool.models.sources.runtime_files._MAX_LABELS_BYTES", 12)
    assert load(path).labels == ["dark", "bright"]
    monkeypatch.setattr("camtool.models.sources.runtime_files._MAX_LABELS_BYTES", 11)
    monkeypatch.setattr("zipfile.ZipFile.read", lambda *_: pytest.fail("all of it was unpacked"))
    with pytest.raises(ModelError, match=r"net\.tflite: labels\.txt in it has more than .* MB; remove it"):
        load(path)


def test_the_package_of_a_runtime_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.tflite").write_bytes(b"")
    for name in ("ai_edge_litert", "ai_edge_litert.interpreter"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match=r"ai_edge_litert.*; run pip install 'camtool\[tflite\]'"):
        load(tmp_path / "net.tflite")


def test_the_state_of_a_model_is_that_of_its_file(tmp_path: Path) -> None:
    first = load(onnx_files.write_by_hand(tmp_path / "a.onnx"), output="scores").model.state_dict()["digest"]
    again = load(onnx_files.write_by_hand(tmp_path / "b.onnx"), output="scores").model.state_dict()["digest"]
    other = load(onnx_files.write_by_hand(tmp_path / "c.onnx", channels_last=True), output="scores")
    assert first.equal(again)
    assert not first.equal(other.model.state_dict()["digest"])


def test_the_command_line_takes_a_file(
    demo_files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(draw_scene(5).image).save(tmp_path / "photo.png")
    command = [
        tmp_path / "photo.png",
        "--model",
        demo_files[".onnx"],
        "--method",
        "eigencam",
        "--out",
        tmp_path / "out",
    ]
    monkeypatch.setattr(sys, "argv", ["camtool", *map(str, command)])
    with pytest.raises(SystemExit) as end:
        app.main()
    assert not end.value.code
    (record,) = map(json.loads, (tmp_path / "out" / "explanations.jsonl").read_text().splitlines())
    assert record["method"] == "eigencam"


# --------------------------------------------------------------------------------------------- the maps of the networks

METHODS: dict[str, dict[str, Any]] = {
    "occlusion": {},
    "rise": {"samples": 40, "cells": 5, "seed": 3},
    "eigencam": {},
    "scorecam": {},
    "ablationcam": {},
    "reciprocam": {},
}


def assert_equal_maps(
    model: nn.Module, path: Path, images: Tensor, target: int | None, *, tolerance_of_ablation: float = 1e-4
) -> None:
    """Check that the file has the maps of the network, at the layer that each of them chooses, and their places."""
    loaded = load(path)
    for method, options in METHODS.items():
        mine, expected = (camtool.explain(one, images, target, method=method, **options)[0] for one in (loaded, model))
        assert mine.raw.shape == expected.raw.shape, method
        difference = np.abs(mine.raw - expected.raw).max() / np.abs(expected.raw).max()
        assert difference <= (tolerance_of_ablation if method == "ablationcam" else 1e-4), (method, difference)
        np.testing.assert_allclose(mine.heatmap, expected.heatmap, atol=1e-3)


def build_torchvision() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=7)  # ResNet-18 without the repetitions of its blocks


def build_timm(name: str, **settings: Any) -> nn.Module:
    return pytest.importorskip("timm").create_model(name, num_classes=7, **settings)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": build_torchvision,
    "convnext": lambda: build_timm("convnext_atto", depths=(1, 1, 2, 1)),
    "regnet": lambda: build_timm("regnetx_002"),
    "vit": lambda: build_timm("vit_tiny_patch16_224", img_size=96, depth=2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_exported_networks_have_the_maps_of_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    side = 96 if name in ("convnext", "vit") else 64
    images = nn.functional.interpolate(torch.randn(1, 3, 8, 8), (side, side), mode="bilinear")
    path = onnx_files.export(model, torch.cat([images, -images]), tmp_path / "net.onnx")
    # With random weights a channel changes the score by a thousandth, and Ablation-CAM reads the difference.
    assert_equal_maps(model, path, images, None, tolerance_of_ablation=5e-4)


@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet1_1"])
def test_exported_real_networks_have_the_maps_of_torch(name: str, shared: Path, tmp_path: Path) -> None:
    model = camtool.load(name, shared / "models" / f"{name}-imagenet.safetensors")
    photo = Image.open(shared / "images" / "n01558993_robin.jpg").convert("RGB")
    images = nn.functional.interpolate(model.transform(photo)[None], (96, 96), mode="area")  # type: ignore[misc]
    path = onnx_files.export(model.model, torch.cat([images, -images]), tmp_path / "net.onnx")
    assert_equal_maps(model.model, path, images, 15)


def test_the_bundled_network_has_the_maps_of_torch_also_for_one_image_at_a_time(tmp_path: Path) -> None:
    model = camtool.load("demo")
    images = model.transform(Image.fromarray(draw_scene(5, objects=2).image))[None]  # type: ignore[misc]
    path = onnx_files.export(model.model, images, tmp_path / "net.onnx", fixed=True)
    assert_equal_maps(model.model, path, images, 1)


def test_a_file_that_mirrors_the_image_gets_a_warning(tmp_path: Path) -> None:
    for axis, codes in ((3, {"cells-elsewhere"}), (1, set())):
        torch.manual_seed(0)
        trunk = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model = nn.Sequential(trunk, nn.Linear(6, 4))
        path = onnx_files.export(Flip(axis, model), torch.rand(2, 3, 16, 16), tmp_path / f"{axis}.onnx")
        (result,) = camtool.explain(load(path), torch.rand(1, 3, 16, 16), 0, method="ablationcam")
        assert {one.code for one in result.warnings} & {"cells-elsewhere"} == codes


class Flip(nn.Module):
    """A network that sees the image mirrored along an axis."""

    def __init__(self, axis: int, model: nn.Module) -> None:
        super().__init__()
        self.axis, self.model = axis, model

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.model(images.flip(self.axis))
        return scores


# ------------------------------------------------------------------------------------------------------------ gradients


def test_a_converted_file_has_the_gradients_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("onnx2pytorch")
    model = camtool.load("demo")
    images = model.transform(Image.fromarray(draw_scene(5, objects=2).image))[None]  # type: ignore[misc]
    path = onnx_files.export(model.model, torch.cat([images, -images]), tmp_path / "net.onnx")
    converted = load(path, gradients=True)
    for method in ("gradcam", "layercam"):
        mine, expected = (camtool.explain(one, images, 1, method=method)[0] for one in (converted, model.model))
        assert np.abs(mine.raw - expected.raw).max() <= 1e-4 * np.abs(expected.raw).max()
        np.testing.assert_allclose(mine.heatmap, expected.heatmap, atol=1e-3)


def test_a_conversion_that_gives_other_scores_or_is_not_possible_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, converter = onnx_files.write_by_hand(tmp_path / "net.onnx"), ModuleType("onnx2pytorch")
    other = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    monkeypatch.setitem(sys.modules, "onnx2pytorch", converter)
    converter.ConvertModel = lambda graph, experimental: other  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="its scores are not those of the file; load it without gradients=True"):
        load(path, output="scores", gradients=True)
    converter.ConvertModel = lambda graph, experimental: 1 / 0  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="cannot be converted to torch: ZeroDivisionError: division by zero; load it"):
        load(path, output="scores", gradients=True)
    monkeypatch.setitem(sys.modules, "onnx2pytorch", None)
    with pytest.raises(ModelError, match=r"onnx2pytorch.*; run pip install 'camtool\[onnx2pytorch\]'"):
        load(path, output="scores", gradients=True)
    other_layout = onnx_files.write_by_hand(tmp_path / "other.onnx", channels_last=True)
    with pytest.raises(ModelError, match=r"gradients=True is for ONNX files that take float32 images \(N, C, H, W\)"):
        load(other_layout, output="scores", gradients=True)
