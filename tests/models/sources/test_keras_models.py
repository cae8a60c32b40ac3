"""Models of Keras on its torch backend: their layers, maps, scores and preparation."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import camtool
from camtool import ModelError, Recorder
from camtool.models import declared_properties, to_loaded
from camtool.models.sources.keras.model import KerasModel
from tests.helpers.keras_models import compute_logits, explain_by_hand, keras, weigh

# Keras reads weights as NumPy 2 will not allow.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
L: Any = keras.layers
SHAPE = (24, 32, 3)


def build_images(*shape: int) -> torch.Tensor:
    return torch.rand(2, *(shape or SHAPE), generator=torch.Generator().manual_seed(1))


def build_convolutions(activation: str | None = "softmax") -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            L.Conv2D(8, 3, 2, padding="same", activation="relu", name="first"),
            L.Conv2D(12, 3, 1, padding="same", activation="relu", name="second"),
            L.GlobalAveragePooling2D(),
            L.Dense(4, activation=activation, name="scores"),
        ]
    )


def build_functional() -> Any:
    keras.utils.set_random_seed(0)
    image = keras.Input(SHAPE)
    x = L.Conv2D(8, 3, 2, padding="same", name="stem")(image)
    x = L.BatchNormalization()(x)
    y = L.DepthwiseConv2D(3, padding="same")(x)
    x = L.Activation("relu", name="joined")(L.Add()([x, y * 2.0]))
    return keras.Model(image, L.Dense(4, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def build_two_outputs() -> Any:
    trunk = build_functional()
    return keras.Model(trunk.inputs, [trunk.outputs[0], L.Dense(1)(trunk.layers[-1].input)])


def build_separable_softmax() -> Any:
    """Return a model whose softmax is a layer of its own, behind a convolution with one cell for each class."""
    keras.utils.set_random_seed(0)
    image = keras.Input(SHAPE)
    x = L.SeparableConv2D(8, 3, 2, activation="relu", name="grid")(image)
    x = L.Conv2D(4, 1)(L.GlobalAveragePooling2D(keepdims=True)(x))
    return keras.Model(image, L.Softmax()(L.Flatten()(x)))


class Subclassed(keras.Model):  # type: ignore[misc]
    """A model whose layers are called in ``call``."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [L.Conv2D(8, 3, 2, activation="relu", name=f"block{i}") for i in range(2)]
        self.head = L.Dense(4, activation="softmax", name="head")

    def call(self, images: Any, training: Any = False) -> Any:
        assert not training
        for block in self.blocks:
            images = block(images)
        return self.head(keras.ops.mean(images, (1, 2)))


FUNCTIONAL = {
    "Sequential": (build_convolutions, "second"),
    "functional": (build_functional, "joined"),
    "softmax as a layer": (build_separable_softmax, "grid"),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_grad_cam_equals_one_by_hand(name: Any) -> None:
    build, layer = FUNCTIONAL[name]
    model, images = build(), build_images()
    for result, image, index in zip(
        camtool.explain(model, images.permute(0, 3, 1, 2), [1, 2]), images, (1, 2), strict=True
    ):
        expected = explain_by_hand(model, model.get_layer(layer), image[None], index)
        assert result.layer == layer
        assert result.raw == pytest.approx(expected.numpy(), abs=1e-4 * float(expected.max()))
        part = keras.Model(model.inputs, model.layers[-1].input)
        assert result.score == pytest.approx(
            float(compute_logits(model, part(image[None]))[0, index].detach()), rel=1e-4
        )
        assert result.probability == pytest.approx(float(model(image[None])[0, index].detach()), rel=1e-4)
        assert [w.code for w in result.warnings if w.code == "logit-before-activation"]


def test_a_subclassed_model_is_explained_as_by_hand() -> None:
    keras.utils.set_random_seed(0)
    model, images = Subclassed(), build_images()[:1]
    with pytest.raises(ModelError, match="no weights yet; call it once"):
        camtool.explain(model, images[0].permute(2, 0, 1))
    model(images)
    result = camtool.explain(model, images[0].permute(2, 0, 1), 3)
    grid = model.blocks[1](model.blocks[0](images))
    logits = grid.mean((1, 2)) @ model.head.kernel + model.head.bias
    assert result.layer == "block1"
    assert result.raw == pytest.approx(weigh(grid, logits[0, 3]).numpy(), abs=1e-5)
    assert result.score == pytest.approx(float(logits[0, 3].detach()), rel=1e-4)


def test_channels_first_are_read_from_the_layers() -> None:
    keras.utils.set_random_seed(0)
    options: dict[str, Any] = {"padding": "same", "data_format": "channels_first"}
    image = keras.Input((3, 12, 12))
    # As many channels as rows and columns: the shape alone says nothing.
    x = L.Conv2D(12, 3, name="a", **options)(image)
    x = L.Activation("relu", name="b")(L.BatchNormalization(axis=1)(x))
    model = keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D(data_format="channels_first")(x)))
    images = build_images(12, 12, 3).permute(0, 3, 1, 2)[:1]
    result = camtool.explain(model, images, 2)[0]
    grid, scores = keras.Model(image, [x, model.outputs[0]])(images)
    (gradient,) = torch.autograd.grad(scores[0, 2], grid)
    expected = (grid * gradient.mean((2, 3), keepdim=True)).sum(1)[0].relu().detach()
    assert result.layer == "b"
    assert result.raw == pytest.approx(expected.numpy(), abs=1e-5)


def test_channels_last_are_read_where_the_shape_says_nothing() -> None:
    keras.utils.set_random_seed(0)
    image = keras.Input((12, 12, 3))
    x = L.LayerNormalization(name="norm")(L.Conv2D(12, 3, padding="same")(image))
    model = keras.Model(image, L.Dense(4)(L.GlobalMaxPooling2D()(x)))
    images = build_images(12, 12, 3)[:1]
    result = camtool.explain(model, images[0].permute(2, 0, 1), 2)
    expected = explain_by_hand(model, model.get_layer("norm"), images, 2)
    assert (result.layer, result.raw.shape) == ("norm", (12, 12))
    assert result.raw == pytest.approx(expected.numpy(), abs=1e-5)


def test_each_call_of_a_shared_layer_is_explained() -> None:
    keras.utils.set_random_seed(0)
    shared, image = L.Conv2D(3, 3, padding="same", activation="relu", name="shared"), keras.Input(SHAPE)
    first = shared(image)
    second = shared(first)
    model = keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D()(second)))
    images = build_images()[:1]
    grids = [*keras.Model(image, [first, second, model.outputs[0]])(images)]
    for call_index in (0, 1):
        result = camtool.explain(model, images[0].permute(2, 0, 1), 1, layer="shared", call_index=call_index)
        (gradient,) = torch.autograd.grad(grids[2][0, 1], grids[call_index], retain_graph=True)
        expected = (grids[call_index] * gradient.mean((1, 2), keepdim=True)).sum(-1)[0].relu()
        assert result.raw == pytest.approx(expected.detach().numpy(), abs=1e-5)


def build_nested() -> Any:
    base = build_convolutions(None)
    base = keras.Model(base.inputs, base.get_layer("second").output, name="base_1.0")
    return keras.Sequential([keras.Input(SHAPE), base, L.GlobalAveragePooling2D(), L.Dense(3, activation="sigmoid")])


def test_layers_of_a_nested_model_have_its_name_before_theirs() -> None:
    model, images = build_nested(), build_images()[:1]
    base, image = model.layers[0], images[0].permute(2, 0, 1)
    for layer in ("second", "base_1.0.second", "base_1_0.second", base.get_layer("second")):
        result = camtool.explain(model, image, 1, layer=layer)
        grid = base(images)
        logits = grid.mean((1, 2)) @ model.layers[-1].kernel + model.layers[-1].bias
        assert result.layer == "base_1_0.second"
        assert result.raw == pytest.approx(weigh(grid, logits[0, 1]).numpy(), abs=1e-5)
    # Independent labels: a sigmoid of each, and no softmax over them.
    assert result.probability == pytest.approx(float(logits[0, 1].sigmoid().detach()), rel=1e-4)


def test_several_inputs_by_position_and_by_name() -> None:
    keras.utils.set_random_seed(0)
    image, age = keras.Input(SHAPE, name="image"), keras.Input((2,), name="age")
    x = L.Conv2D(8, 3, activation="relu", name="grid")(image)
    joined = L.Concatenate()([L.GlobalAveragePooling2D()(x), age])
    ages, images = torch.rand(1, 2), build_images()[:1]
    for inputs in ([image, age], {"image": image, "age": age}):
        model = keras.Model(inputs, L.Dense(4)(joined))
        given = (images, ages) if isinstance(inputs, list) else {"image": images, "age": ages}
        grid, scores = keras.Model(inputs, [x, model.outputs[0]])(list(given) if isinstance(inputs, list) else given)
        channels_first = images.permute(0, 3, 1, 2)
        own = (
            camtool.Inputs(channels_first, ages) if isinstance(inputs, list) else {"image": channels_first, "age": ages}
        )
        result: Any = camtool.explain(model, own, 1)
        result = result[0] if isinstance(result, list) else result
        assert result.raw == pytest.approx(weigh(grid, scores[0, 1]).numpy(), abs=1e-5)


def test_the_first_of_several_outputs_is_explained_with_a_note() -> None:
    model, images = build_two_outputs(), build_images()[:1]
    result = camtool.explain(model, images[0].permute(2, 0, 1), 1)
    alone = camtool.explain(keras.Model(model.inputs, model.outputs[0]), images[0].permute(2, 0, 1), 1)
    assert result.raw == pytest.approx(alone.raw, abs=1e-6)


def test_a_segmenter_with_a_decoder() -> None:
    keras.utils.set_random_seed(0)
    image = keras.Input(SHAPE)
    x = L.Conv2D(8, 3, 2, padding="same", activation="relu", name="encoder")(image)
    x = L.UpSampling2D(2)(L.Conv2DTranspose(8, 3, 1, padding="same", activation="relu", name="decoder")(x))
    model = keras.Model(image, L.Conv2D(3, 1, activation="softmax")(x))
    images = build_images()[:1]
    result = camtool.explain(model, images[0].permute(2, 0, 1), 1, layer="encoder")
    part = keras.Model(image, [model.get_layer("encoder").output, model.layers[-1].input])
    grid, last = part(images)
    logits = keras.ops.conv(last, model.layers[-1].kernel) + model.layers[-1].bias
    assert result.raw == pytest.approx(weigh(grid, logits[0, ..., 1].sum()).numpy(), rel=1e-3, abs=1e-4)


def build_transformer() -> Any:
    keras.utils.set_random_seed(0)
    image = keras.Input((32, 32, 3))
    x = L.Reshape((16, 24), name="tokens")(L.Conv2D(24, 8, 8, name="patches")(image))
    for index in range(2):
        normed = L.LayerNormalization(name=f"norm{index}")(x)
        x = L.Add(name=f"block{index}")([x, L.MultiHeadAttention(2, 12, name=f"attention{index}")(normed, normed)])
    return keras.Model(image, L.Dense(4)(L.GlobalAveragePooling1D()(L.LayerNormalization(name="last")(x))))


def test_tokens_of_a_transformer_form_the_grid_of_its_patches() -> None:
    model, images = build_transformer(), build_images(32, 32, 3)[:1]
    result = camtool.explain(model, images[0].permute(2, 0, 1), 1)
    assert result.raw.shape == (4, 4)
    grid, scores = keras.Model(model.inputs, [model.get_layer(result.layer).output, model.outputs[0]])(images)
    (gradient,) = torch.autograd.grad(scores[0, 1], grid)
    expected = (grid * gradient.mean(1, keepdim=True)).sum(-1)[0].relu().detach().reshape(4, 4)
    assert result.raw == pytest.approx(expected.numpy(), abs=1e-5)


METHODS = [
    *("gradcam++", "layercam", "hirescam", "xgradcam", "eigencam", "ablationcam", "scorecam", "cam"),
    *("integrated-gradients", "rise"),
]


@pytest.mark.parametrize("method", METHODS)
def test_methods_give_the_maps_of_the_same_network_in_torch(method: Any) -> None:
    model, images = build_convolutions(None), build_images()[:1].permute(0, 3, 1, 2)
    convolutions = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.Conv2d(8, 12, 3, 1, 1)]
    linear = torch.nn.Linear(12, 4)
    for mine, layer in zip((*convolutions, linear), (*model.layers[:2], model.layers[-1]), strict=True):
        mine.weight.data = layer.kernel.value.detach().movedim((-1, -2), (0, 1)).clone()
        mine.bias.data = layer.bias.value.detach().clone()
    pad = torch.nn.ZeroPad2d((0, 1, 0, 1))  # as "same" pads for a stride of two
    first, second = convolutions
    pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    net = torch.nn.Sequential(pad, first, torch.nn.ReLU(), second, torch.nn.ReLU(), pool, linear).eval()
    options = {"seed": 0, "samples": 8} if method == "rise" else {}
    mine = camtool.explain(model, images, 1, method=method, **options)[0]
    theirs = camtool.explain(net, images, 1, method=method, **options)[0]
    assert mine.raw == pytest.approx(theirs.raw, rel=1e-3, abs=1e-4 * float(abs(theirs.raw).max()))


def test_rollout_is_that_of_the_attention_that_keras_returns() -> None:
    model, images = build_transformer(), build_images(32, 32, 3)[:1]
    tokens, rolled = model.get_layer("tokens"), torch.eye(16)
    x = keras.Model(model.inputs, tokens.output)(images)
    for index in range(2):
        normed = model.get_layer(f"norm{index}")(x)
        output, scores = model.get_layer(f"attention{index}")(normed, normed, return_attention_scores=True)
        x = x + output
        rolled = (scores[0].mean(0) + torch.eye(16)) / 2 @ rolled
    result = camtool.explain(model, images[0].permute(2, 0, 1), 1, method="rollout")
    assert result.raw.ravel() == pytest.approx(rolled.mean(0).detach().numpy(), abs=1e-5)


def test_attention_of_a_network_without_any_is_refused() -> None:
    with pytest.raises(camtool.LayerError, match="the model runs no attention that can be captured"):
        camtool.attention(build_convolutions(), build_images()[0].permute(2, 0, 1))


@pytest.mark.parametrize("engine", ["prepared", "onnxruntime"])
def test_engines_give_the_same_map(engine: Any) -> None:
    model, image = build_convolutions(), build_images()[0].permute(2, 0, 1)
    result, expected = (camtool.explain(model, image, 1, engine=name) for name in (engine, "eager"))
    assert result.raw == pytest.approx(expected.raw, rel=1e-3, abs=1e-6)


def test_an_exported_graph_gives_the_same_scores(tmp_path: Any) -> None:
    loaded: Any = camtool.load(build_head(L.Rescaling(1 / 255)), labels=["a", "b"])
    path = tmp_path / "model.onnx"
    camtool.export(loaded, path)
    exported: Any = camtool.load(path)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 60, 3), np.uint8))
    inputs = [model.transform(photo)[None] for model in (loaded, exported)]
    assert inputs[1].numpy() == pytest.approx(inputs[0].numpy(), abs=1e-3)
    assert exported(inputs[0]).numpy() == pytest.approx(loaded(inputs[0]).detach().numpy(), abs=1e-4)
    assert [*exported.labels] == ["a", "b"]


def test_a_map_is_checked() -> None:
    report = camtool.explain(build_convolutions(), build_images()[0].permute(2, 0, 1), 1).check()
    assert "logit-before-activation" in report.codes


def test_a_layer_that_the_user_wrote_is_one_layer_with_those_inside() -> None:
    class Block(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="block")
            self.inside = L.Conv2D(8, 3, activation="relu", name="inside")

        def call(self, images: Any) -> Any:
            return self.inside(images) * 2.0

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(SHAPE), Block(), L.GlobalAveragePooling2D(), L.Dense(3)])
    image = build_images()[0].permute(2, 0, 1)
    outer, inner = (camtool.explain(model, image, 1, layer=name) for name in ("block", "inside"))
    assert inner.layer == "block.inside"
    assert outer.raw == pytest.approx(inner.raw, rel=1e-4)  # twice the activation, and half the gradient


def test_the_softmax_of_the_second_output_is_not_that_of_the_first() -> None:
    trunk = build_functional()
    grid = trunk.layers[-1].input
    model = keras.Model(trunk.inputs, [L.Dense(2)(grid), L.Dense(4, activation="softmax")(grid)])
    result = camtool.explain(model, build_images()[0].permute(2, 0, 1), 1)
    assert "logit-before-activation" not in [warning.code for warning in result.warnings]


def test_an_activation_that_was_removed_since_is_not_left_out() -> None:
    model, image = build_convolutions(), build_images()[0].permute(2, 0, 1)
    before = camtool.explain(model, image, 1)
    model.layers[-1].activation = keras.activations.linear
    after = camtool.explain(model, image, 1)
    codes = [[warning.code for warning in result.warnings] for result in (before, after)]
    assert [("logit-before-activation" in each) for each in codes] == [True, False]
    assert after.raw == pytest.approx(before.raw, rel=1e-5)


# ------------------------------------------------------------------------------------------------ what is left behind


def test_the_model_is_left_as_it_was() -> None:
    model, images = build_nested(), build_images()
    before, own = model(images).detach(), {name for layer in model._flatten_layers() for name in vars(layer)}
    camtool.explain(model, images.permute(0, 3, 1, 2), 1)
    assert {name for layer in model._flatten_layers() for name in vars(layer)} == own
    assert torch.equal(model(images), before)
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


def test_calls_of_another_thread_are_not_seen() -> None:
    model, images = build_convolutions(), build_images()
    module = to_loaded(model).model
    inside, done = threading.Event(), threading.Event()

    def call_beside() -> None:
        inside.wait(10)
        model(images)
        done.set()

    beside = threading.Thread(target=call_beside)
    beside.start()
    with Recorder(camtool.load(model), "first") as recorder:
        inside.set()
        done.wait(10)
        module(images.permute(0, 3, 1, 2))
    beside.join()
    assert not any("call" in vars(layer) for layer in model.layers)
    assert recorder is not None


def test_the_recorder_and_candidates_take_a_loaded_model() -> None:
    model, images = build_convolutions(), build_images()
    loaded = camtool.load(model)
    with Recorder(loaded, "second") as recorder:
        output = loaded(images.permute(0, 3, 1, 2))
    assert recorder["second"].shape == (2, 12, 12, 16)
    assert output.softmax(1).detach() == pytest.approx(model(images).detach(), abs=1e-6)
    names = [candidate.name for candidate in camtool.candidate_layers(model, images[0].permute(2, 0, 1))]
    assert "second" in names


def test_a_quantized_layer_is_refused() -> None:
    model = build_convolutions()
    model.layers[-1].quantize("int8")
    with pytest.raises(ModelError, match="layer 'scores' is quantized"):
        camtool.explain(model, build_images()[0].permute(2, 0, 1))


# ------------------------------------------------------------------------------------------------------- preparation


def build_head(*first: Any, base: Any = None) -> Any:
    image = keras.Input((48, 40, 3))
    x = keras.Sequential([L.RandomFlip(), L.RandomRotation(0.1)])(image)
    for step in first:
        x = step(x)
    x = L.Conv2D(4, 3)(x) if base is None else base(x)
    return keras.Model(image, L.Dense(2)(L.GlobalAveragePooling2D()(x)))


BYTES, UNIT = ((0.0,) * 3, (1 / 255,) * 3), ((0.0,) * 3, (1.0,) * 3)
IMAGENET = {"mean": [0.485, 0.456, 0.406], "variance": [0.229**2, 0.224**2, 0.225**2]}
PREPARED = {
    "Rescaling to 1": ([L.Rescaling(1 / 255)], BYTES),
    "Rescaling to -1 and 1": ([L.Rescaling(1 / 127.5, -1)], BYTES),
    "Rescaling of [0, 1]": ([L.Rescaling(2.0, -1)], UNIT),
    "Normalization of bytes": ([L.Normalization(mean=[127.0] * 3, variance=[4000.0] * 3)], BYTES),
    "Normalization of [0, 1]": ([L.Normalization(**IMAGENET)], UNIT),
    "both": ([L.Rescaling(1 / 255), L.Normalization(**IMAGENET)], BYTES),
    "preprocess_input, tf": ([keras.applications.xception.preprocess_input], BYTES),
    "preprocess_input, caffe": ([keras.applications.vgg16.preprocess_input], BYTES),
    "preprocess_input, torch": ([keras.applications.densenet.preprocess_input], BYTES),
    "nothing": ([], None),
    "nothing that says it": ([L.Rescaling(1.0)], None),
}


@pytest.mark.parametrize("name", PREPARED)
def test_the_first_layers_say_which_values_a_model_takes(name: Any) -> None:
    first, expected = PREPARED[name]
    model = build_head(*first)
    module = to_loaded(model).model
    transform: Any = declared_properties.find_transform(module)
    assert declared_properties.find_input_size(module) == (48, 40)
    assert (transform and (transform.mean, transform.std)) == expected
    if transform:
        photo = Image.fromarray(np.full((30, 60, 3), (10, 100, 200), np.uint8))
        levels = transform(photo)
        assert levels.shape == (3, 48, 40)
        assert levels[:, 5, 5].tolist() == pytest.approx(
            [v * transform.std[0] ** -1 / 255 for v in (10, 100, 200)], rel=1e-4
        )


def test_a_network_of_keras_is_prepared_as_its_preprocess_input_does() -> None:
    base = keras.applications.VGG16(weights=None, include_top=False, input_shape=(48, 40, 3))
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 40, 3), np.uint8))
    for model in (base, build_head(base=base)):
        transform: Any = declared_properties.find_transform(to_loaded(model).model)
        expected = keras.applications.vgg16.preprocess_input(np.asarray(photo, np.float32)[None].copy())[0]
        assert transform(photo).permute(1, 2, 0).numpy() == pytest.approx(expected, abs=1e-3)
        assert [note.code for note in transform.notes] == ["assumed-transform"]
    assert declared_properties.find_transform(to_loaded(build_head(base.get_layer("block1_conv1"))).model) is None


def test_a_keras_model_of_another_backend_is_refused_with_the_way_to_go() -> None:
    foreign = type("Layer", (), {"__call__": lambda self, x: x, "__module__": "keras.src.layers.layer"})
    for use in (camtool.load, lambda model: camtool.explain(model, torch.rand(3, 8, 8))):
        with pytest.raises(ModelError, match=r"model\.save\('m\.keras'\).*python -m camtool photos/ --model m\.keras"):
            use(foreign())


def test_keras_is_not_imported_for_other_models() -> None:
    code = (
        "import sys, torch, camtool; net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), "
        "torch.nn.Linear(144, 2)).eval(); camtool.explain(net, torch.rand(3, 8, 8), 1); "
        "assert 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_copy_of_the_module_computes_the_same() -> None:
    import copy

    model, images = build_convolutions(), build_images().permute(0, 3, 1, 2)
    module = to_loaded(model).model
    copied = copy.deepcopy(module)
    assert isinstance(copied, KerasModel)
    assert torch.allclose(copied(images), module(images), atol=1e-6)
    assert not {*map(id, copied.parameters())} & {*map(id, module.parameters())}
