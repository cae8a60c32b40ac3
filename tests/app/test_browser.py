"""The page in Chromium without a window: every control, used once. The network is cut off."""

from __future__ import annotations

import base64
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import camtool
from camtool.app.drawing import Look, make_screen
from camtool.models.sources.torchvision import list_photo_models
from tests.app.browser import Opened
from tests.helpers.axe import list_violations
from tests.helpers.photos import save, unseen

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
pytest.importorskip("gradio", reason="needs the package gradio")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
    # Gradio warns of its own use of libraries.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(10):
        save(unseen(number), folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def server(photos: Path) -> Iterator[Any]:
    from camtool.app.server import AppServer, ServerSettings

    settings = ServerSettings(photos, ["demo", "demo-cheat"], port=0, max_pixels=40_000_000, max_upload=1)
    with AppServer(settings) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Containers run as root, for which Chromium's sandbox does not start.
        arguments = [
            "--no-sandbox",
            "--disable-gpu",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
        ]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, server: Any) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    found = Opened(context, server.url)
    yield found.open()
    context.close()
    assert found.errors == []
    assert found.foreign == []


def explain(image: Any, *arguments: Any, **options: Any) -> camtool.Explanation:
    found: camtool.Explanation = camtool.explain(camtool.load("demo"), image, *arguments, **options)
    return found


def draw(explanation: camtool.Explanation, look: Look = Look()) -> np.ndarray[Any, Any]:  # noqa: B008
    return make_screen(explanation).draw(look).astype(np.float32)


def is_same(pixels: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Return True for pictures that differ by no more than a JPEG does."""
    return pixels.shape == expected.shape and float(np.abs(pixels - expected).mean()) < 4


def click_bar(opened: Opened, number: int) -> None:
    opened.page.locator(".bar").nth(number).click()


# ----------------------------------------------------------------------------------------------- what is explained


def test_the_page_starts_with_the_first_photo_and_answers_clicks_methods_and_layers(
    opened: Opened, photos: Path
) -> None:
    page = opened.page
    assert is_same(opened.read_pixels(), draw(explain(photos / "0.png")))
    page.wait_for_selector(".thumbnails button")
    assert page.locator(".thumbnails button").count() == 10
    assert page.locator(".bar").count() == 5
    assert page.locator(".bar").first.get_attribute("aria-pressed") == "true"
    first = opened.read_pixels()
    label = page.locator(".bar .label").nth(1).text_content()
    second = opened.change(lambda: click_bar(opened, 1))
    assert np.abs(second - first).max() > 50
    assert page.locator("#picture strong").text_content() == label
    opened.change(lambda: opened.choose("method", "layercam: weigh each position by its positive gradient"))
    assert "layercam at features" in str(page.locator("#picture figcaption").text_content())
    opened.change(lambda: opened.move_slider("layer", 0))
    assert "64 x 64" in str(page.locator("#scale code").text_content())
    opened.change(lambda: opened.choose("class", "heart", typed="hea"))
    assert page.locator("#picture strong").text_content() == "heart"


def test_typing_a_part_of_a_name_lists_all_classes_with_it(opened: Opened) -> None:
    labels = [name for name in camtool.load("demo").labels or () if "ar" in name]
    assert opened.list_options("class", "ar", len(labels)) == labels
    models = [name for name in list_photo_models() if "resnet5" in name]
    assert opened.list_options("model", "resnet5", len(models)) == models


def test_view_opacity_and_colors_change_the_picture(opened: Opened) -> None:
    page, shown = opened.page, [opened.read_pixels()]
    for view in ("heatmap", "masked", "contours", "boxes", "overlay"):
        label = page.locator("#view label").filter(has_text=view)
        shown.append(opened.change(label.click))
    assert is_same(shown[-1], shown[0])
    # Contours and boxes differ in lines alone.
    assert all(np.abs(one - other).max() > 100 for one, other in pairwise(shown))
    faint = opened.change(lambda: opened.move_slider("alpha", 0))
    assert np.abs(faint - shown[0]).max() > 50
    opened.change(lambda: opened.move_slider("alpha", 1))
    turbo = opened.change(lambda: opened.choose("colormap", "turbo"))
    assert not is_same(turbo, faint)
    assert page.locator("#alpha input[type=number]").input_value() == "0.5"


def test_two_classes_side_by_side_and_their_difference(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("tab", name="Two classes").click()
    page.wait_for_selector("#pair img")
    assert page.locator("#pair img").count() == 3
    before = page.locator("#pair strong").all_text_contents()
    opened.change(lambda: opened.choose("second", "heart"), "#pair figure:nth-child(2) img")
    after = page.locator("#pair strong").all_text_contents()
    assert (after[0], after[1], after[2]) == (before[0], "heart", "difference")


def test_methods_are_compared_with_their_times_and_warnings(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("tab", name="Compare methods").click()
    page.locator("#compare-button").click()
    page.wait_for_function("document.querySelectorAll('#grid figure img').length === 8")
    assert page.locator("#grid .waiting").count() == 0
    times = page.locator("#grid figcaption span").all_text_contents()
    assert all(re.fullmatch(r"\d+ ms", each) for each in times)
    pictures = {each.get_attribute("src") for each in page.locator("#grid img").all()}
    assert len(pictures) > 6


@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 900})
    assert list_violations(opened.page) == []


def test_on_a_phone_class_and_method_follow_the_picture(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 844})
    names = ("picture", "look", "bars", "class", "method", "image-box")
    boxes = [opened.page.locator(f"#{name}").bounding_box() for name in names]
    assert all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(boxes))
    assert boxes[4]["y"] - boxes[1]["y"] < 844, "within one screen"


# ----------------------------------------------------------------------------------------------------- images, models


def test_images_come_from_files_from_the_folder_and_by_dropping(opened: Opened, photos: Path) -> None:
    page, chosen_in_list = opened.page, sync_api.expect(opened.page.locator("#folder input"))
    chosen_in_list.to_have_value("0.png")
    uploaded = opened.change(lambda: opened.upload(photos / "1.png"))
    assert is_same(uploaded, draw(explain(photos / "1.png")))
    chosen_in_list.to_have_value("")  # the name is one of the folder, the image is not
    chosen = opened.change(lambda: opened.choose("folder", "2.png", typed="2"))
    assert is_same(chosen, draw(explain(photos / "2.png")))
    clicked = opened.change(lambda: page.locator(".thumbnails button").nth(5).click())
    assert is_same(clicked, draw(explain(photos / "5.png")))
    chosen_in_list.to_have_value("5.png")
    for event, number in (("drop", 3), ("paste", 4)):
        data = base64.b64encode((photos / f"{number}.png").read_bytes()).decode()
        given = opened.change(lambda event=event, data=data: page.evaluate(_GIVE, [event, data]))
        assert is_same(given, draw(explain(photos / f"{number}.png")))


_GIVE = """([event, data]) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const list = new DataTransfer();
    list.items.add(new File([bytes], 'given.png', {type: 'image/png'}));
    const given = event === 'drop'
        ? new DragEvent('drop', {dataTransfer: list, bubbles: true, cancelable: true})
        : new ClipboardEvent('paste', {clipboardData: list, bubbles: true, cancelable: true});
    document.querySelector('#map').dispatchEvent(given);
}"""


def test_the_camera_gives_an_image(opened: Opened) -> None:
    page = opened.page
    page.context.grant_permissions(["camera"])
    page.get_by_role("button", name="Camera").click()
    page.wait_for_function("document.querySelector('.camera video').videoWidth > 0")
    shape = opened.change(lambda: page.get_by_role("button", name="Take photo").click()).shape
    assert shape == (480, 640, 3)
    assert not page.locator(".camera").is_visible()


def test_an_empty_clipboard_is_told(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="Paste").click()
    page.wait_for_function("!document.querySelector('#sources .hint').textContent.includes('drop')")
    assert re.search("clipboard", str(page.locator("#sources .hint").text_content()))


def test_a_broken_and_a_huge_image_are_told_in_a_sentence_and_the_picture_stays(opened: Opened, tmp_path: Path) -> None:
    before = opened.read_source()
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    opened.upload(tmp_path / "broken.png")
    assert str(tmp_path) not in opened.wait_for_status("broken.png is damaged|broken.png is no image")
    Image.new("1", (10_000, 5_000)).save(tmp_path / "huge.png")
    opened.upload(tmp_path / "huge.png")
    opened.wait_for_status("50,000,000 pixels, and the limit is 40,000,000")
    assert opened.read_source() == before
    opened.change(lambda: click_bar(opened, 1))
    assert opened.page.locator("#status .status").count() == 0


def test_a_file_over_the_limit_is_refused_by_the_server(server: Any) -> None:
    import httpx

    files = {"files": ("large.bin", b"0" * 1_500_000)}
    found = httpx.post(f"{server.url}gradio_api/upload", files=files)
    assert found.status_code == 413


def test_another_model_is_chosen_and_a_missing_one_is_told(opened: Opened) -> None:
    page = opened.page
    before = page.locator(".bar .share").all_text_contents()
    opened.choose("model", "demo-cheat")
    page.wait_for_function(
        "(before) => document.querySelector('.bar .share').textContent !== before && !document.querySelector('.busy')",
        arg=before[0],
    )
    # Its weights cannot be downloaded: the test has no network.
    opened.choose("model", "alexnet")
    opened.wait_for_status("weights of 'alexnet' could not be downloaded")
    sync_api.expect(page.locator("#model input")).to_have_value("demo-cheat")


# ----------------------------------------------------------------------------------------------------------- saving


def test_picture_figure_numbers_and_code_are_saved(
    opened: Opened, photos: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    page = opened.page
    # The code has the path of a photo from the folder that FOLDER is in.
    monkeypatch.chdir(photos.parent)
    page.locator("#save button").first.click()
    found = {}
    for kind in ("picture", "figure", "numbers"):
        with page.expect_download() as waiting:
            page.locator(f"#save-{kind}").click()
        found[kind] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(found[kind])
    names: dict[str, Any] = {}
    exec(str(page.locator("#snippet .cm-content").inner_text()), names)
    assert found["figure"].read_bytes().startswith(b"%PDF")
    with np.load(found["numbers"]) as numbers:
        np.testing.assert_allclose(numbers["raw"], names["result"].raw, rtol=1e-5, atol=1e-7)
    picture = np.asarray(Image.open(found["picture"]), np.float32)
    assert np.abs(picture - names["result"].overlay(legend=True)).max() <= 1


# ----------------------------------------------------------------------------------------------------------- safety


def test_ten_users_at_once_each_get_the_map_of_their_own_image(server: Any, photos: Path) -> None:
    from gradio_client import Client, handle_file

    clients = [Client(server.url, verbose=False) for _ in range(10)]
    events = clients[0].config["dependencies"]
    upload = next(n for n, each in enumerate(events) if any(kind == "upload" for _, kind in each["targets"]))

    def ask(number: int) -> np.ndarray[Any, Any]:
        shown = clients[number].predict(handle_file(photos / f"{number}.png"), fn_index=upload)
        pictures = [text for each in shown for text in [str(each)] if 'id="map"' in text]
        data = re.search(r"base64,([^\"]+)", pictures[0])
        assert data
        return np.asarray(Image.open(BytesIO(base64.b64decode(data[1]))), np.float32)

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(ask, range(10)))
    expected = [draw(explain(photos / f"{number}.png")) for number in range(10)]
    assert [[is_same(one, other) for other in expected].index(True) for one in found] == [*range(10)]


@pytest.mark.parametrize("path", ["photos", "photos/0.png", "etc/passwd", "pyproject.toml", "camtool/app/server.py"])
def test_the_server_gives_no_file_that_it_did_not_make(server: Any, photos: Path, path: str) -> None:
    import httpx

    root = Path(camtool.__file__).parent.parent
    real = {"photos": photos, "photos/0.png": photos / "0.png", "etc/passwd": Path("/etc/passwd")}.get(
        path, root / path
    )
    for address in (f"gradio_api/file={real}", f"file={real}", f"gradio_api/file={real.parent}/x/../{real.name}"):
        assert httpx.get(f"{server.url}{address}").status_code in (403, 404)


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_and_the_picture_is_the_largest_thing(
    browser: Any, server: Any, width: int, height: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = Opened(context, server.url).open().page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(
        "[...document.querySelectorAll('#map, .box, #look, #header')]"
        ".map((each) => each.getBoundingClientRect()).map(({x, width, height}) => [x, width, height])"
    )
    assert all(x >= 0 and x + wide <= width for x, wide, _ in boxes)
    picture = page.locator("#picture .frame").bounding_box()
    assert picture["y"] + picture["height"] <= height
    assert picture["width"] * picture["height"] > (0.4 if width > 800 else 0.3) * width * height
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(each) for each in re.findall(r"\d+", background)[:3]]
    assert (max(levels) < 60) is (scheme == "dark")
    context.close()


def test_a_password_is_asked_for() -> None:
    import httpx

    from camtool.app.server import AppServer, ServerSettings

    with AppServer(ServerSettings(port=0, auth=("anna", "secret"))) as running:
        assert httpx.get(f"{running.url}gradio_api/info").status_code == 401
        wrong = httpx.post(f"{running.url}login", data={"username": "anna", "password": "guess"})
        right = httpx.post(f"{running.url}login", data={"username": "anna", "password": "secret"})
        assert (wrong.status_code, right.status_code) == (400, 200)


def test_the_files_of_the_server_are_gone_afterwards() -> None:
    from camtool.app.server import AppServer, ServerSettings

    with AppServer(ServerSettings(port=0)) as running:
        folder = Path(running.folder)
        assert folder.is_dir()
    assert not folder.exists()
    assert "gradio" in sys.modules
