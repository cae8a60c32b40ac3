"""The page in Chromium: the same numbers and pixels as in Python, no request, and every control used once."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.models import MobileNet_V2_Weights, mobilenet_v2

import camtool
from camtool.app.web_page.building import WARNINGS
from camtool.demo.camnet import load_bundled_model
from camtool.demo.scenes import draw_scene
from camtool.models import Loaded
from camtool.warning_codes import WARNING_KINDS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning")]

_HOSTILE = "<img src=x onerror=alert(1)>"
_WAIT = 60_000


def draw(seed: int, **settings: Any) -> Image.Image:
    return Image.fromarray(draw_scene(seed, **settings).image)


def name_first_class(loaded: Loaded) -> Loaded:
    """Return the demo's model with a label that would be markup, if it were not text."""
    assert loaded.labels is not None
    return Loaded(loaded.model, loaded.transform, [_HOSTILE, *loaded.labels[1:]], name="demo")


@pytest.fixture(scope="module")
def demo() -> Loaded:
    return name_first_class(load_bundled_model("demo"))


@pytest.fixture(scope="module")
def sample() -> Image.Image:
    return draw(3, objects=2, size=300)


@pytest.fixture(scope="module")
def folder(demo: Loaded, sample: Image.Image, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo"
    return camtool.export_page(demo, path, sample=sample, runtime=runtime)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Write nothing to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


class Opened:
    """The page in a tab, with what it asked for and what went wrong."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.tab = browser.new_page(**settings)
        self.requests, self.problems = list[str](), list[str]()
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.tab.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.tab.goto(address)
        self.wait()
        self.loaded = len(self.requests)
        self.tab.context.set_offline(True)

    def wait(self) -> None:
        """Wait for the end of the work."""
        self.tab.locator("#status").filter(has_text="...").wait_for(state="hidden", timeout=_WAIT)
        self.tab.locator("#first h2:not(:empty)").wait_for(timeout=_WAIT)

    def read(self, which: str = "first") -> np.ndarray:
        """Return the pixels of a figure, RGB."""
        data = self.tab.evaluate(f"document.querySelector('#{which} canvas').toDataURL()")
        return np.asarray(Image.open(BytesIO(base64.b64decode(data.partition(",")[2]))).convert("RGB"))

    def choose(self, *images: tuple[str, bytes]) -> None:
        """Choose files as a user does."""
        files = [{"name": name, "mimeType": "", "buffer": content} for name, content in images]
        self.tab.set_input_files("#files", files)
        self.tab.wait_for_timeout(100)
        self.wait()

    def label(self) -> str:
        text: str = self.tab.locator("#first h2").inner_text()
        return text


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    opened = Opened(browser, address, viewport={"width": 1440, "height": 900})
    yield opened
    opened.tab.close()
    assert len(opened.requests) == opened.loaded, "the page asked for something after it was loaded"
    assert opened.problems == []


def encode(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def check_picture(opened: Opened, loaded: Loaded, image: Any, target: Any = None, method: str = "gradcam") -> None:
    """Check a figure against Python's: the label, the probability, and each pixel up to a gray level."""
    explanation = camtool.explain(loaded, image, target, method=method)
    assert opened.label() == explanation.label
    assert explanation.probability is not None
    shown = float(opened.tab.locator("#first .facts").inner_text().partition("%")[0])
    assert shown == pytest.approx(100 * explanation.probability, abs=0.06)
    known = {warning.code for warning in explanation.warnings if warning.code in WARNINGS}
    sentences = [f"{WARNING_KINDS[code].condition} {WARNING_KINDS[code].remedy}" for code in sorted(known)]
    assert sorted(opened.tab.locator("#first .warnings li").all_inner_texts()) == sorted(sentences)
    overlay = explanation.overlay()
    assert np.abs(opened.read().astype(int) - overlay).max() <= 1


def test_the_page_opens_with_a_sample_and_asks_for_its_own_files_alone(
    opened: Opened, address: str, demo: Loaded, sample: Image.Image
) -> None:
    check_picture(opened, demo, sample)
    names = {request.removeprefix(address) for request in opened.requests if not request.startswith(("blob:", "data:"))}
    assert names == {"", "model.onnx", "runtime.wasm", "sample.png"}


def test_classes_methods_and_looks_are_those_of_python(opened: Opened, demo: Loaded, sample: Image.Image) -> None:
    second = opened.tab.locator("#bars button").nth(1)
    name = second.locator("span").first.inner_text()
    second.click()
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
    opened.tab.check("[value=overlay]")
    opened.tab.locator("#alpha").fill("0")
    opened.wait()
    assert (opened.read() == np.asarray(sample)).all()
    opened.tab.fill("#class", "no such class")
    opened.tab.press("#class", "Enter")
    assert "not among the 10 classes" in opened.tab.locator("#status.bad").inner_text()


def test_photos_of_all_kinds(opened: Opened, demo: Loaded) -> None:
    scene = draw(8, size=200)
    turned = Image.Exif()
    turned[0x0112] = 6
    opened.choose(("turned.png", encode(scene, exif=turned)))
    check_picture(opened, demo, scene.transpose(Image.Transpose.ROTATE_270))
    for image in (scene.convert("L"), scene.crop((0, 0, 200, 9)), Image.new("RGB", (1, 1), (9, 200, 40))):
        opened.choose(("photo.png", encode(image)))
        check_picture(opened, demo, image)
    clear = scene.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(scene.size))
    opened.choose(("clear.png", encode(clear)))
    expected = camtool.explain(demo, clear)
    assert np.abs(opened.read().astype(int) - expected.overlay()).mean() < 2  # browsers composite with other rounding


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
        opened.tab.locator("#status.bad", has_text=name).wait_for(timeout=_WAIT)
        assert words in opened.tab.locator("#status.bad").inner_text()
    # The former model still works.
    opened.tab.locator("#bars button").nth(1).click()
    opened.wait()
    assert opened.tab.locator("#first h2").inner_text()


def test_a_label_that_is_markup_is_text(opened: Opened) -> None:
    opened.tab.fill("#class", "0")
    opened.tab.press("#class", "Enter")
    opened.tab.locator("#first h2", has_text="onerror").wait_for()
    assert opened.label() == _HOSTILE


def test_another_model_is_dropped(opened: Opened, tmp_path: Path) -> None:
    loaded = load_bundled_model("demo-cheat")
    camtool.export(loaded, tmp_path / "other.onnx", ["hirescam"], dynamic_batch=False)
    opened.tab.set_input_files("#files", str(tmp_path / "other.onnx"))
    opened.tab.locator("#method option", has_text="hirescam").wait_for(state="attached", timeout=_WAIT)
    opened.wait()
    scene = draw(30, size=128, mark=True)
    opened.choose(("scene.png", encode(scene)))
    check_picture(opened, loaded, scene, method="hirescam")


def test_the_camera_is_live_until_it_is_stopped(opened: Opened) -> None:
    opened.tab.click("#camera")
    opened.tab.locator("#status", has_text="frames a second").wait_for(timeout=_WAIT)
    assert opened.tab.get_attribute("#camera", "aria-pressed") == "true"
    opened.tab.click("#camera")
    opened.tab.locator("#status", has_text="frames").wait_for(state="hidden")
    assert opened.tab.get_attribute("#camera", "aria-pressed") == "false"


def test_one_file_opens_by_a_double_click(browser: Any, runtime: Path, tmp_path: Path) -> None:
    model = mobilenet_v2(weights=None).eval()
    weights = MobileNet_V2_Weights.IMAGENET1K_V1
    loaded = Loaded(model, weights.transforms(), list(weights.meta["categories"]), name="mobilenet_v2")
    sample = draw(4, size=400).crop((0, 0, 400, 250))
    path = camtool.export_page(loaded, tmp_path / "page.html", ["hirescam", "xgradcam"], sample=sample, runtime=runtime)
    opened = Opened(browser, path.as_uri())
    check_picture(opened, loaded, sample, method="hirescam")
    assert [request[:5] for request in opened.requests] == ["file:"]
    assert opened.problems == []
    opened.tab.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    assert npm is not None
    subprocess.run([npm, "pack", "axe-core@4.10.3", "--silent"], cwd=folder, check=True, capture_output=True)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        content = files.extractfile("package/axe.min.js")
        assert content is not None
        return content.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_accessibility(browser: Any, address: str, axe: str, scheme: str, width: int) -> None:
    opened = Opened(browser, address, color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True)
    opened.choose(("more.png", encode(draw(5, size=128))))
    opened.tab.evaluate(axe)
    violations = opened.tab.evaluate("axe.run().then((result) => result.violations)")
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in violations] == []
    assert opened.tab.evaluate("document.documentElement.scrollWidth") <= width
    opened.tab.close()
