"""What the page keeps: models, images, the served folder and results, with many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from camtool.app.stores import ImageFolder, ImageStore, ModelStore, ResultCache
from camtool.errors import ImageError, ModelError
from camtool.models import Loaded


def make_image(level: int, size: tuple[int, int] = (4, 4)) -> Image.Image:
    return Image.new("RGB", size, (level, 0, 0))


# ------------------------------------------------------------------------------------------------------- results


def test_a_result_is_computed_once_however_many_ask_at_the_same_time() -> None:
    cache: ResultCache[int] = ResultCache(10)
    calls, start = [], threading.Barrier(8)

    def compute() -> int:
        calls.append(1)
        return 7

    def ask() -> int:
        start.wait()
        return cache.get("key", compute)

    with ThreadPoolExecutor(8) as pool:
        found = [each.result() for each in [pool.submit(ask) for _ in range(8)]]
    assert found == [7] * 8
    assert len(calls) == 1


def test_the_result_used_least_recently_makes_room() -> None:
    cache: ResultCache[str] = ResultCache(2)
    for key in ("a", "b"):
        cache.get(key, lambda key=key: key)
    cache.get("a", lambda: "not computed again")
    cache.get("c", lambda: "c")
    assert [key in cache for key in "abc"] == [True, False, True]
    assert len(cache) == 2
    assert cache.get("b", lambda: "new") == "new"


def test_large_results_make_room_before_there_are_many() -> None:
    cache: ResultCache[str] = ResultCache(10, len, 8)
    for key in ("abc", "def", "gh"):
        cache.get(key, lambda key=key: key)
    assert [key in cache for key in ("abc", "def", "gh")] == [True, True, True]
    cache.get("i", lambda: "i")
    assert [key in cache for key in ("abc", "def", "gh", "i")] == [False, True, True, True]
    cache.get("long", lambda: 20 * "x")
    assert len(cache) == 1
    assert "long" in cache


def test_an_error_reaches_the_caller_and_is_not_kept() -> None:
    cache: ResultCache[int] = ResultCache(2)

    def fail() -> int:
        raise ImageError("broken")

    with pytest.raises(ImageError, match="broken"):
        cache.get("key", fail)
    assert "key" not in cache
    assert cache.get("key", lambda: 1) == 1


def test_an_error_reaches_those_who_wait_for_the_same_result() -> None:
    cache: ResultCache[int] = ResultCache(2)
    has_started, may_fail = threading.Event(), threading.Event()

    def fail() -> int:
        has_started.set()
        may_fail.wait(20)
        raise ImageError("broken")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "key", fail)
        has_started.wait(20)
        second = pool.submit(cache.get, "key", lambda: 1)
        may_fail.set()
        assert isinstance(first.exception(20), ImageError)
        # The second either waited for the first, or came after it.
        assert isinstance(second.exception(20), ImageError) or second.result() == 1


def test_no_result_is_there_while_it_is_computed() -> None:
    cache: ResultCache[bool] = ResultCache(2)
    assert cache.get("key", lambda: "key" in cache) is False
    assert "key" in cache


# -------------------------------------------------------------------------------------------------------- images


def test_an_image_is_found_by_its_pixels() -> None:
    store = ImageStore(1000)
    first, again, other = (store.add(make_image(n), "a.png", "'a.png'") for n in (1, 1, 2))
    assert first.key == again.key != other.key
    assert store.get(other.key).image.getpixel((0, 0)) == (2, 0, 0)
    assert len(store) == 2


def test_images_of_other_shapes_have_other_keys() -> None:
    store = ImageStore(1000)
    assert store.add(make_image(0, (2, 8)), "a", "a").key != store.add(make_image(0, (8, 2)), "a", "a").key


def test_old_images_make_room_and_asking_for_one_is_an_error_with_advice() -> None:
    store = ImageStore(160)  # two images of 16 pixels, 4 bytes each
    keys = [store.add(make_image(n), "a", "a").key for n in range(2)]
    store.get(keys[0])
    store.add(make_image(2), "a", "a")
    assert store.get(keys[0])
    with pytest.raises(ImageError, match="give it again"):
        store.get(keys[1])


def test_an_image_larger_than_the_limit_stays_until_the_next_comes() -> None:
    store = ImageStore(10)
    assert store.get(store.add(make_image(0, (100, 100)), "a", "a").key)
    assert len(store) == 1


# -------------------------------------------------------------------------------------------------------- folder


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    outside = tmp_path / "secret.png"
    for path in (folder / "b.png", folder / "a.JPG", folder / "deep" / "er" / "c.png", folder / ".hidden" / "d.png"):
        make_image(1).save(path)
    make_image(9).save(outside)
    (folder / "notes.txt").write_text("no image")
    (folder / "out.png").symlink_to(outside)
    (folder / "up").symlink_to(tmp_path)
    (folder / "inside.png").symlink_to(folder / "b.png")
    (folder / "text.png").symlink_to(folder / "notes.txt")
    (folder / "dot.png").symlink_to(folder / ".hidden" / "d.png")
    return folder


def test_the_folder_lists_images_and_follows_no_link_out_of_it(served: Path) -> None:
    assert ImageFolder(served).list_names() == ["a.JPG", "b.png", "deep/er/c.png", "inside.png"]


def test_listed_images_are_found(served: Path) -> None:
    folder = ImageFolder(served)
    assert all(folder.find(name).is_file() for name in folder.list_names())


@pytest.mark.parametrize(
    "name",
    [
        "../secret.png",
        "deep/../../secret.png",
        "out.png",
        "up/secret.png",
        "up/photos/b.png/../../secret.png",
        "/etc/passwd",
        "notes.txt",
        "text.png",
        ".hidden/d.png",
        "dot.png",
        "no.png",
        "deep",
        "",
        ".",
        "b.png\0",
        "x" * 5000 + ".png",
    ],
)
def test_nothing_else_can_be_reached(served: Path, name: str) -> None:
    with pytest.raises(ImageError, match="the folder has no image"):
        ImageFolder(served).find(name)


def test_an_absolute_path_outside_is_refused(served: Path) -> None:
    with pytest.raises(ImageError, match="the folder has no image"):
        ImageFolder(served).find(str(served.parent / "secret.png"))


@pytest.mark.parametrize("name", ["missing", "photos/b.png"])
def test_a_folder_must_be_one(served: Path, name: str) -> None:
    with pytest.raises(ImageError, match=r"FOLDER .* give a folder"):
        ImageFolder(served.parent / name)


# -------------------------------------------------------------------------------------------------------- models


def build_loaded(name: str) -> Loaded:
    return Loaded(nn.Linear(1, 1), name=name)


def test_a_model_is_loaded_once_by_threads_that_ask_together() -> None:
    calls, start = [], threading.Barrier(6)

    def load(name: str) -> Loaded:
        calls.append(name)
        return build_loaded(name)

    store = ModelStore(["a", "b"], load)

    def ask() -> Loaded:
        start.wait()
        return store.get("a")

    with ThreadPoolExecutor(6) as pool:
        found = {id(each.result()) for each in [pool.submit(ask) for _ in range(6)]}
    assert calls == ["a"]
    assert len(found) == 1


def test_one_model_loads_while_another_does() -> None:
    store: ModelStore

    def load(name: str) -> Loaded:
        if name == "a":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(store.get, "b").result(20)
        return build_loaded(name)

    store = ModelStore(["a", "b"], load)
    assert store.get("a").name == "a"


def test_a_model_is_in_memory_once_it_is_loaded() -> None:
    seen = []

    def load(name: str) -> Loaded:
        seen.append(store.is_loaded(name))
        return build_loaded(name)

    store = ModelStore(["a"], load)
    seen.append(store.is_loaded("a"))
    store.get("a")
    seen.append(store.is_loaded("a"))
    assert seen == [False, False, True]


def test_a_failure_is_one_sentence_and_the_next_try_may_succeed(caplog: pytest.LogCaptureFixture) -> None:
    fails = [True]

    def load(name: str) -> Loaded:
        if fails:
            raise OSError("no\nroute")
        return build_loaded(name)

    store = ModelStore(["a"], load)
    with pytest.raises(ModelError, match=r"^model 'a' cannot be loaded: OSError: no route\.$"):
        store.get("a")
    assert not store.is_loaded("a")
    assert "Traceback" in caplog.text
    fails.clear()
    assert store.get("a").name == "a"
    assert store.is_loaded("a")


def test_names_that_are_not_on_the_list_are_refused() -> None:
    store = ModelStore(["resnet18", "resnet18"], build_loaded)
    assert store.names == ("resnet18",)
    for name in ("resnet81", "os:getcwd", "hf:some/model"):
        with pytest.raises(ModelError, match="not on the list"):
            store.get(name)
    with pytest.raises(ModelError, match="Did you mean 'resnet18'"):
        store.is_loaded("resnet81")


def test_the_model_used_least_recently_makes_room() -> None:
    store = ModelStore(["a", "b", "c"], build_loaded, max_loaded=2)
    for name in ("a", "b", "a", "c"):
        store.get(name)
    assert [store.is_loaded(name) for name in "abc"] == [True, False, True]


def test_pixels_decide_the_key_and_not_the_object() -> None:
    store = ImageStore(1000)
    pixels = np.random.default_rng(0).integers(0, 255, (5, 5, 3), dtype=np.uint8)
    keys = {store.add(Image.fromarray(each), "a", "a").key for each in (pixels, pixels.copy())}
    assert len(keys) == 1
