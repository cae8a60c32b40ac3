"""The page in Chromium: the same numbers and pixels as in Python, no request, and every control used once."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

import camtool
from camtool.demo.camnet import load_bundled_model
from camtool.models import Loaded
from camtool.rendering import draw_contours
from camtool.rendering.overlay import colorize
from tests.app.web_page.conftest import HOSTILE
from tests.app.web_page.page_tab import Opened, check_picture, draw, encode, serve
from tests.helpers.axe import list_violations

pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")


def test_the_page_opens_with_a_sample_and_asks_for_its_own_files_alone(
    opened: Opened, address: str, demo: Loaded, sample: Image.Image
) -> None:
    check_picture(opened, demo, sample)
    names = {request.removeprefix(address) for request in opened.requests if not request.startswith(("blob:", "data:"))}
    assert names == {"", "model.onnx", "runtime.js", "runtime.wasm", "sample.png"}


def test_classes_methods_and_looks_are_those_of_python(opened: Opened, demo: Loaded, sample: Image.Image) -> None:
    second = opened.tab.locator("#bars .bar").nth(1)
    name = second.locator("span").first.inner_text()
    second.click()
    opened.wait()
    opened.tab.select_option("#method", "layercam")
    opened.wait()
    check_picture(opened, demo, sample, name, "layercam")
    opened.tab.fill("#class", "fish")
    opened.tab.press("#class", "Enter")
    opened.tab.locator("#first h2", has_text="fish").wait_for()
    check_picture(opened, demo, sample, "fish", "layercam")
    opened.tab.fill("#other", "heart")
    opened.tab.press("#other", "Enter")
    opened.tab.locator("#second h2", has_text="heart").wait_for()
    heart = camtool.explain(demo, sample, "heart", method="layercam")
    assert np.abs(opened.read("second").astype(int) - heart.overlay()).max() <= 1
    opened.tab.select_option("#colormap", "turbo")
    opened.wait()
    fish = camtool.explain(demo, sample, "fish", method="layercam")
    assert np.abs(opened.read().astype(int) - fish.overlay(colormap="turbo")).max() <= 1
    opened.tab.check("[value=masked]")
    opened.wait()
    assert np.abs(opened.read().astype(int) - fish.masked()).max() <= 1
    opened.tab.check("[value=heatmap]")
    opened.wait()
    assert np.abs(opened.read().astype(int) - colorize(fish.heatmap, "turbo")).max() <= 1
    opened.tab.check("[value=contours]")
    opened.wait()
    lines = draw_contours(np.asarray(sample), fish.contours())
    assert not opened.tab.locator("#legend").is_visible()
    different = np.abs(opened.read().astype(int) - lines).max(2)
    drawn = (lines != np.asarray(sample)).any(2)
    assert drawn.mean() > 0.005
    # OpenCV and browsers smooth the edges of lines in different ways.
    assert different[~cv2.dilate(drawn.astype(np.uint8), np.ones((3, 3))).astype(bool)].max() == 0
    assert different[drawn].mean() < 20
    opened.tab.check("[value=overlay]")
    opened.tab.locator("#alpha").fill("0")
    opened.wait()
    assert (opened.read() == np.asarray(sample)).all()
    opened.tab.fill("#class", "no such class")
    opened.tab.press("#class", "Enter")
    assert "not among the 10 classes" in opened.tab.locator("#status.bad").inner_text()


def test_two_classes_stand_side_by_side_and_are_swapped(opened: Opened, demo: Loaded, sample: Image.Image) -> None:
    names = opened.tab.locator("#bars .bar .label").all_inner_texts()
    compare = opened.tab.get_by_role("button", name=f"Compare with {names[2]}")
    compare.focus()
    opened.tab.keyboard.press("Enter")
    opened.tab.locator("#second h2", has_text=names[2]).wait_for()
    opened.wait()
    assert opened.tab.evaluate("document.activeElement.title") == f"Compare with {names[2]}"
    pictures = opened.read("first"), opened.read("second")
    opened.tab.click("#swap")
    opened.tab.locator("#first h2", has_text=names[2]).wait_for()
    opened.wait()
    check_picture(opened, demo, sample, names[2])
    assert (opened.read("first") == pictures[1]).all()
    assert (opened.read("second") == pictures[0]).all()
    opened.tab.get_by_role("button", name=f"Compare with {names[0]}").click()
    opened.tab.locator("#second").wait_for(state="hidden")


def turn(image: Image.Image) -> bytes:
    """Return a file whose EXIF data say that its pixels are turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(image, exif=exif)


def test_photos_of_all_kinds(opened: Opened, demo: Loaded) -> None:
    scene = draw(8, size=200)
    opened.choose(("turned.png", turn(scene)))
    check_picture(opened, demo, scene.transpose(Image.Transpose.ROTATE_270))
    flat = draw(9, size=400).resize((4000, 20))
    for image in (scene.convert("L"), scene.crop((0, 0, 200, 9)), Image.new("RGB", (1, 1), (9, 200, 40)), flat):
        opened.choose(("photo.png", encode(image)))
        check_picture(opened, demo, image)
        check_numbers(opened, demo, image)
    clear = scene.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(scene.size))
    opened.choose(("clear.png", encode(clear)))
    check_picture(opened, demo, clear)


def check_numbers(opened: Opened, demo: Loaded, image: Image.Image) -> None:
    """Check the logits to 1e-4, and the raw map to 1e-3 of its peak."""
    logits, maps = opened.read_answer()
    assert demo.transform is not None
    with torch.no_grad():
        expected = demo.model(demo.transform(image.convert("RGB"))[None])[0].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    raw = camtool.explain(demo, image).raw
    assert np.abs(maps["gradcam"] - raw).max() <= 1e-3 * np.abs(raw).max()


def test_a_photo_of_50_megapixels(opened: Opened, demo: Loaded) -> None:
    photo, step = draw(10, size=500).resize((8660, 5774), Image.Resampling.BILINEAR), 37
    opened.choose(("large.png", encode(photo, compress_level=1)))
    check_numbers(opened, demo, photo)
    explanation = camtool.explain(demo, photo)
    overlay = explanation.overlay()[::step, ::step].astype(int)
    assert np.abs(opened.read_pixels(step) - overlay).max() <= 1


def test_many_images_can_be_stopped_and_clicks_go_first(opened: Opened) -> None:
    names = [f"{number}.png" for number in range(150)]
    content = encode(draw(11, size=64))
    files = [{"name": name, "mimeType": "", "buffer": content} for name in names]
    opened.tab.set_input_files("#files", files)
    opened.tab.locator("#rows tr").nth(2).wait_for()
    assert opened.tab.get_attribute("#stage", "aria-busy") == "true"
    opened.tab.click("#stop")
    opened.tab.locator("#stop").wait_for(state="hidden")
    opened.wait()
    assert 3 <= opened.tab.locator("#rows tr").count() < len(names) + 1
    with opened.tab.expect_download() as download:
        opened.tab.click("#csv")
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + opened.tab.locator("#rows tr").count()


def test_images_are_pasted_and_dropped_and_colors_are_switched(opened: Opened, demo: Loaded) -> None:
    scenes = [draw(seed, size=128) for seed in (31, 32)]
    for scene, event, field in zip(scenes, ("paste", "drop"), ("clipboardData", "dataTransfer"), strict=True):
        opened.tab.evaluate(
            "([text, event, field]) => { const data = new DataTransfer();"
            " data.items.add(new File([Uint8Array.from(atob(text), (one) => one.charCodeAt(0))], `${event}.png`));"
            " const happened = new Event(event, {bubbles: true, cancelable: true}); happened[field] = data;"
            " document.body.dispatchEvent(happened); }",
            [base64.b64encode(encode(scene)).decode(), event, field],
        )
        opened.tab.locator(f"#thumbnails [aria-label='{event}.png'][aria-pressed=true]").wait_for()
        opened.wait()
        check_picture(opened, demo, scene)
    opened.tab.click("#paste")
    opened.tab.locator("#status.bad", has_text="press Ctrl-V").wait_for()
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    before = opened.tab.evaluate(paper)
    opened.tab.click("#theme")
    assert opened.tab.evaluate(paper) != before
    opened.tab.locator("#thumbnails button").first.click()
    opened.tab.locator("#thumbnails [aria-label='sample.png'][aria-pressed=true]").wait_for()


def test_a_folder_of_images_becomes_a_table_and_a_file(opened: Opened, demo: Loaded) -> None:
    scenes = [draw(seed, size=128) for seed in (20, 21, 22)]
    opened.choose(*((f"=scene{number}.png", encode(scene)) for number, scene in enumerate(scenes)))
    opened.tab.locator("#rows tr").nth(3).wait_for()
    expected = [camtool.explain(demo, scene) for scene in scenes]
    rows = opened.tab.locator("#rows tr").all_inner_texts()[1:]
    assert [row.split("\t")[1].strip() for row in rows] == [one.label for one in expected]
    with opened.tab.expect_download() as download:
        opened.tab.click("#csv")
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "image,class,probability"
    assert lines[2].startswith('"\'=scene0.png"')  # no formula of a spreadsheet
    shares = [float(line.rpartition(",")[2]) for line in lines[2:]]
    assert shares == pytest.approx([one.probability for one in expected], abs=1e-4)
    opened.tab.locator("#rows button").nth(2).click()
    opened.wait()
    check_picture(opened, demo, scenes[1])
    with opened.tab.expect_download() as download:
        opened.tab.click("#save")
    saved = np.asarray(Image.open(download.value.path()).convert("RGB"))
    assert (saved == opened.read()).all()


def test_what_is_no_image_and_no_model_gets_a_sentence(opened: Opened, folder: Path) -> None:
    content = (folder / "model.onnx").read_bytes()
    cases = {
        "bad.png": (b"no image", "no image that the browser can read"),
        "bad.onnx": (b"\xff" * 99, "cannot be used"),
        "cut.onnx": (content[: len(content) // 2], "cannot be used"),
    }
    for name, (bad, words) in cases.items():
        opened.tab.set_input_files("#files", [{"name": name, "mimeType": "", "buffer": bad}])
        opened.tab.locator("#status.bad", has_text=name).wait_for()
        assert words in opened.tab.locator("#status.bad").inner_text()
    # The former model still works.
    second = opened.tab.locator("#bars .bar").nth(1)
    name = second.locator("span").first.inner_text()
    second.click()
    opened.tab.locator("#first h2", has_text=name).wait_for()


def test_the_worker_may_ask_nobody_either(browser: Any, folder: Path, tmp_path: Path) -> None:
    with serve(folder) as address, serve(tmp_path) as foreign:
        opened = Opened(browser, address)
        opened.tab.context.set_offline(False)
        ask = """(url) => new Promise((resolve) => {
          self.addEventListener('securitypolicyviolation', ({effectiveDirective}) => resolve(effectiveDirective));
          fetch(url, {mode: 'no-cors'}).then(() => resolve('answered'), () => null);
        })"""
        assert opened.tab.workers[0].evaluate(ask, f"{address}sample.png") == "answered"  # a file of the page
        assert opened.tab.workers[0].evaluate(ask, foreign) == "connect-src"
        opened.tab.close()


def test_a_label_that_is_markup_is_text(opened: Opened) -> None:
    opened.tab.fill("#class", "0")
    opened.tab.press("#class", "Enter")
    opened.tab.locator("#first h2", has_text="onerror").wait_for()
    assert opened.label() == HOSTILE


def test_another_model_is_dropped(opened: Opened, tmp_path: Path) -> None:
    loaded = load_bundled_model("demo-cheat")
    camtool.export(loaded, tmp_path / "other.onnx", ["hirescam"], dynamic_batch=False)
    opened.drop(tmp_path / "other.onnx", loaded.name)
    scene = draw(30, size=128, mark=True)
    opened.choose(("scene.png", encode(scene)))
    check_picture(opened, loaded, scene, method="hirescam")


def test_the_camera_is_live_until_it_is_stopped(opened: Opened) -> None:
    opened.tab.click("#camera")
    opened.tab.locator("#status", has_text="frames a second").wait_for()
    assert opened.tab.get_attribute("#camera", "aria-pressed") == "true"
    opened.tab.click("#camera")
    opened.tab.locator("#status", has_text="frames").wait_for(state="hidden")
    assert opened.tab.get_attribute("#camera", "aria-pressed") == "false"


def test_several_samples_are_there_to_choose(browser: Any, demo: Loaded, runtime: Path, tmp_path: Path) -> None:
    samples = [draw(seed, size=96) for seed in (40, 41, 42)]
    page = camtool.export_page(demo, tmp_path / "page", "gradcam", sample=samples, runtime=runtime)
    with serve(page) as address:
        opened = Opened(browser, address)
        assert not opened.tab.locator("#many").is_visible()
        check_picture(opened, demo, samples[0])
        opened.tab.locator("#thumbnails button").nth(2).click()
        opened.tab.locator("#thumbnails [aria-label='sample-3.png'][aria-pressed=true]").wait_for()
        opened.wait()
        check_picture(opened, demo, samples[2])
        opened.tab.close()
        assert len(opened.requests) == opened.loaded


def test_one_file_opens_by_a_double_click(browser: Any, runtime: Path, tmp_path: Path) -> None:
    model = mobilenet_v2(weights=None).eval()
    weights = MobileNet_V2_Weights.IMAGENET1K_V1
    loaded = Loaded(model, weights.transforms(), list(weights.meta["categories"]), name="mobilenet_v2")
    sample = draw(4, size=400).crop((0, 0, 400, 250))
    path = camtool.export_page(loaded, tmp_path / "page.html", ["hirescam", "xgradcam"], sample=sample, runtime=runtime)
    opened = Opened(browser, path.as_uri())
    check_picture(opened, loaded, sample, method="hirescam")
    assert [request.partition(":")[0] for request in opened.requests] == ["file", "blob"]  # the page, and its worker
    assert opened.tab.locator("#device").inner_text() == "Computed by WebAssembly, 1 thread."
    assert opened.problems == []
    opened.tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_accessibility(browser: Any, address: str, scheme: str, width: int) -> None:
    opened = Opened(browser, address, color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True)
    opened.choose(("more.png", encode(draw(5, size=128))), ("bad.png", b"no image"))
    opened.tab.locator("#rows td.bad").wait_for()
    opened.tab.locator("#bars .both .icon-button").nth(1).click()
    opened.wait()
    opened.tab.fill("#class", "no such class")
    opened.tab.press("#class", "Enter")
    opened.tab.locator("#status.bad").wait_for()
    assert list_violations(opened.tab) == []
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    opened.tab.close()


def test_controls_are_where_the_picture_is(browser: Any, address: str) -> None:
    names = ("figures", "source", "classes", "look")

    def measure(width: int, height: int) -> dict[str, dict[str, float]]:
        opened = Opened(browser, address, viewport={"width": width, "height": height})
        boxes = {name: opened.tab.locator(f"#{name}").bounding_box() for name in names}
        assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
        opened.tab.close()
        return {name: box | {"end": box["y"] + box["height"]} for name, box in boxes.items()}

    wide = measure(1440, 900)
    assert max(box["end"] for box in wide.values()) <= 900, "nothing is below the first screen"
    assert wide["look"]["x"] == wide["figures"]["x"], "no empty half below the picture"
    phone = measure(390, 844)
    assert sorted(phone, key=lambda name: phone[name]["y"]) == ["figures", "classes", "look", "source"]
    assert phone["look"]["y"] <= 1.5 * 844
