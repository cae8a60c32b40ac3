"""Another model in the page: no result of the former one is left, and what is no model leaves it working."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import camtool
from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, check_picture, draw, encode

pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")


_READ_FRAME = """() => {
  let letters = '';
  for (const value of frame.pixels) letters += String.fromCharCode(value);
  return [frame.width, frame.height, btoa(letters)];
}"""


def test_another_model_explains_the_image_that_is_shown(opened: Opened, retrained: tuple[Loaded, Path]) -> None:
    loaded, path = retrained
    scene = draw(2, size=128)
    opened.choose(("scene.png", encode(scene)))
    label = opened.label()
    opened.drop(path, loaded.name)
    assert opened.label() == label  # so that nothing but the model tells the two maps apart
    check_picture(opened, loaded, scene)
    assert f" in {loaded.name}," in str(opened.tab.get_attribute("#first canvas", "aria-label"))
    # The table is that of the new model, too.
    expected = [camtool.explain(loaded, image).label for image in (draw(3, objects=2, size=300), scene)]
    assert opened.tab.locator("#rows td:nth-child(2)").all_inner_texts() == expected
    opened.tab.fill("#class", "fish")
    opened.tab.press("#class", "Enter")
    opened.tab.locator("#first h2", has_text="fish").wait_for()
    check_picture(opened, loaded, scene, "fish")


def test_no_picture_of_the_former_model_is_left_if_the_other_one_fails(
    opened: Opened, retrained: tuple[Loaded, Path]
) -> None:
    loaded, path = retrained
    (worker,) = opened.tab.workers
    worker.evaluate("() => { TASKS.explain = async () => { throw new Error('This image is too large.'); }; }")
    opened.tab.set_input_files("#files", str(path))
    opened.tab.locator("#status.bad", has_text="This image is too large.").wait_for()
    assert opened.tab.locator("#model-name").inner_text().startswith(loaded.name)
    assert opened.read().max() == 0
    assert opened.label() == ""
    assert opened.tab.locator("#bars button").count() == 0


def test_another_model_explains_the_last_frame_of_the_camera(opened: Opened, retrained: tuple[Loaded, Path]) -> None:
    loaded, path = retrained
    opened.tab.click("#camera")
    opened.tab.locator("#status", has_text="frames a second").wait_for()
    opened.tab.click("#camera")
    opened.tab.locator("#camera[aria-pressed=false]").wait_for()
    opened.wait()
    opened.drop(path, loaded.name)
    # The picture shows gray beside the middle, which alone the model sees.
    width, height, text = opened.tab.workers[0].evaluate(_READ_FRAME)
    frame = Image.frombytes("RGBA", (width, height), base64.b64decode(text)).convert("RGB")
    check_picture(opened, loaded, frame)


Change = Callable[[onnx.ModelProto, dict[str, Any]], Any]
"""Changes a model or its description; what it returns replaces the description's text, unless it is None."""


def add_unknown_operator(model: onnx.ModelProto, _: dict[str, Any]) -> None:
    model.graph.node.append(helper.make_node("Undreamt", ["logits"], ["dream"]))


def ask_for_much_memory(model: onnx.ModelProto, _: dict[str, Any]) -> None:
    """Add a sum over 4.28 GB to the logits, less than the 2 ** 32 bytes that WebAssembly can name.

    It depends on an input, so it is not computed as the file is opened.
    """
    model.graph.initializer.append(numpy_helper.from_array(np.array([32_700, 32_700]), "much_shape"))
    (logits,) = (node for node in model.graph.node if "logits" in node.output)
    logits.output[[*logits.output].index("logits")] = "few_logits"
    model.graph.node.extend(
        [
            helper.make_node("Cast", ["target_class"], ["much_one"], to=TensorProto.FLOAT),
            helper.make_node("Expand", ["much_one", "much_shape"], ["much"]),
            helper.make_node("ReduceSum", ["much"], ["much_sum"], keepdims=0),
            helper.make_node("Add", ["few_logits", "much_sum"], ["logits"]),
        ]
    )


def change(name: str, value: Any) -> Change:
    """Return what gives a field of the description another value."""

    def apply(_: onnx.ModelProto, description: dict[str, Any]) -> None:
        *outer, last = name.split(".")
        for key in outer:
            description = description[key]
        description[last] = value

    return apply


BROKEN: dict[str, tuple[Change, str]] = {
    "unknown operator": (add_unknown_operator, r"The runtime says: No Op registered for Undreamt .*\d$"),
    "much memory": (ask_for_much_memory, r"perhaps for lack of memory\.$"),
    "no JSON": (lambda *_: "{not JSON", "is no JSON"),
    "null": (lambda *_: "null", "does not say how photos are prepared"),
    "no preparation": (change("preparation", None), "does not say how photos are prepared"),
    "empty preparation": (change("preparation", {}), r"preparation\.crop must be \[height, width\] .*, got nothing"),
    "empty description": (lambda *_: '{"preparation": {}, "link": "softmax"}', "model must be a text, got nothing"),
    "huge crop": (change("preparation.crop", [10**6] * 2), r"crop must be .* to 4096, got \[1000000,1000000\]"),
    "crop in text": (change("preparation.crop", "ab"), 'crop must be .*, got "ab"'),
    "half a pixel": (change("preparation.resized", [127.5, 128]), r"preparation\.resized must be"),
    "no side": (change("preparation.shorter_side", 0), r"preparation\.shorter_side must be .* from 1 to 4096, got 0"),
    "unknown filter": (change("preparation.interpolation", "toString"), "bilinear, bicubic or lanczos"),
    "two channels": (change("preparation.mean", [0, 0]), r"preparation\.mean must be three numbers, got \[0,0\]"),
    "no deviation": (change("preparation.std", [1, 1, 0]), r"preparation\.std must be three numbers above 0"),
    "another link": (change("link", "none"), "no scores of classes"),
    "labels of numbers": (change("labels", [1, 2]), r"labels must be a list of texts, got \[1,2\]"),
    "no outputs": (change("outputs", {}), "outputs must be the name of an output for each method"),
    "missing output": (change("outputs", {"gradcam": "heat"}), "output heat is not .*, but missing"),
    "another output": (change("outputs", {"gradcam": "logits"}), "output logits is not as its description says"),
    "other centers": (change("centers", [[1], [1]]), "output maps is not .*, but float32 1 x"),
    "centers in text": (change("centers", [[1], ["1"]]), "centers must be two lists of numbers"),
    "no stride": (change("strides", [0, 1]), "strides must be two numbers other than 0"),
    "another input": (change("preparation.crop", [64, 64]), "invalid dimensions .* Got: 64 Expected: 128"),
}


def write_broken(source: Path, path: Path, apply: Change) -> None:
    model = onnx.load(source)
    (entry,) = (one for one in model.metadata_props if one.key == "camtool")
    description = json.loads(entry.value)
    text = apply(model, description)
    entry.value = json.dumps(description) if text is None else text
    onnx.save(model, path)


def test_a_broken_model_gets_a_sentence_and_the_former_one_goes_on(
    opened: Opened, demo: Loaded, sample: Image.Image, folder: Path, tmp_path: Path
) -> None:
    for name, (apply, words) in BROKEN.items():
        path = tmp_path / f"{name}.onnx"
        write_broken(folder / "model.onnx", path, apply)
        opened.tab.set_input_files("#files", str(path))
        opened.tab.locator("#status.bad", has_text=path.name).wait_for()
        shown = opened.tab.locator("#status").inner_text()
        assert shown.startswith(f"{path.name}: The model cannot be used. "), shown
        assert re.search(words, shown), (name, shown)
    second = opened.tab.locator("#bars .bar").nth(1)
    name = second.locator("span").first.inner_text()
    second.click()
    opened.tab.locator("#first h2", has_text=name).wait_for()
    check_picture(opened, demo, sample, name)
    opened.choose(("scene.png", encode(draw(6, size=128))))
    check_picture(opened, demo, draw(6, size=128))
