"""Another model in the page: no result of the former one is left."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PIL import Image

import camtool
from camtool.demo.camnet import load_bundled_model
from camtool.models import Loaded
from tests.app.web_page.page_tab import Opened, check_picture, draw, encode

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")]


_READ_FRAME = """() => {
  let letters = '';
  for (const value of frame.pixels) letters += String.fromCharCode(value);
  return [frame.width, frame.height, btoa(letters)];
}"""


@pytest.fixture(scope="module")
def retrained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """Return a model with other weights, the same classes and the same methods, and its file."""
    loaded = load_bundled_model("demo-cheat")
    path = tmp_path_factory.mktemp("retrained") / "retrained.onnx"
    return loaded, camtool.export(loaded, path, ["gradcam", "hirescam"], dynamic_batch=False)


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
