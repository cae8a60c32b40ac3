"""Everything the user can do on the page, without a browser: what is shown, and what is computed again."""

from __future__ import annotations

import base64
import copy
import gc
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import Compose, Resize, ToTensor

import camtool
from camtool.app.actions import FILE_KINDS, Actions, ModelCode, PageSettings
from camtool.app.drawing import VIEWS, Look, draw_difference, make_screen
from camtool.app.error_sentences import to_sentence
from camtool.app.stores import DiskSpace, ImageFolder, ModelStore
from camtool.app.workbench import Request, Session, Workbench, choose_layers, list_methods
from camtool.demo.camnet import load_bundled_model
from camtool.errors import CamtoolError, ImageError, ModelError, TargetError
from camtool.models import Loaded
from tests.helpers.photos import save, unseen


@pytest.fixture
def actions(tmp_path: Path) -> Actions:
    (tmp_path / "photos").mkdir()
    for number in range(2):
        save(unseen(number), tmp_path / "photos" / f"{number}.png")
    workbench = Workbench(ModelStore(["demo", "demo-cheat", "missing"], load_bundled_model), max_pixels=1_000_000)
    return Actions(workbench, PageSettings(ImageFolder(tmp_path / "photos"), DiskSpace(tmp_path, 2**30)))


@pytest.fixture
def started(actions: Actions) -> Session:
    session: Session = actions.start()["session"]
    return session


def decode(html: str) -> np.ndarray[Any, Any]:
    """Return the pixels of the first picture in a piece of HTML."""
    found = re.search(r"data:image/jpeg;base64,([^\"]+)", html)
    assert found
    return np.asarray(Image.open(BytesIO(base64.b64decode(found[1]))), np.float32)


def count_explained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows with every explanation that is computed."""
    calls: list[Any] = []
    original = camtool.explain

    def explain(*arguments: Any, **options: Any) -> Any:
        calls.append(options.get("method"))
        return original(*arguments, **options)

    monkeypatch.setattr(camtool, "explain", explain)
    return calls


def test_the_page_starts_with_the_first_photo_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(b"broken")
    save(unseen(1), tmp_path / "1.png")
    (tmp_path / "2.png").write_bytes(b"broken, too")
    save(unseen(3), tmp_path / "3.png")
    workbench = Workbench(ModelStore(["demo"], load_bundled_model))
    actions = Actions(workbench, PageSettings(ImageFolder(tmp_path), DiskSpace(tmp_path, 2**30)))
    session = actions.start()["session"]
    assert workbench.get_image(session.request.image).name == "1.png"
    thumbnails = actions.show_thumbnails()["thumbnails"]
    assert re.findall(r'data-value="(\d)" title="(.*?)"', thumbnails) == [("1", "1.png"), ("3", "3.png")]
    assert "2 of 4 photos" in thumbnails
    chosen = actions.take_thumbnail(3, session)["session"].request.image
    assert workbench.get_image(chosen).name == "3.png"
    for number, reason in ((2, "2.png"), (4, "there are 4"), (-1, "there are 4")):
        with pytest.raises(ImageError, match=reason):
            actions.take_thumbnail(number, session)


def test_the_legend_follows_view_colors_and_the_gray_frame(actions: Actions, started: Session) -> None:
    pictures = {view: actions.choose_look(view, 0.7, "viridis", started)["picture"] for view in VIEWS}
    assert {view for view, shown in pictures.items() if "rgb(253, 231, 37)" in shown} == {"heatmap"}
    assert {view for view, shown in pictures.items() if "most heat" in shown} == {"overlay", "heatmap", "masked"}
    assert not any("not seen" in shown for shown in pictures.values())
    wide = actions.workbench.add_image(Image.new("RGB", (400, 100)), "wide.png", "'wide.png'")
    session = replace(started, request=Request("demo", wide.key, 1))
    seen = actions.workbench.explain(session.request).seen
    assert ("not seen" in actions.choose_look("overlay", 0.7, "heat", session)["picture"]) is not seen.all()


def test_methods_of_a_comparison_are_few_and_each_runs_once(actions: Actions, started: Session) -> None:
    *_, last = actions.compare(["gradcam", "eigencam"] * 40, started)
    assert last["grid"].count("<figure") == 2
    with pytest.raises(CamtoolError, match="61 chosen; choose 1 to 60"):
        next(actions.compare([str(number) for number in range(61)], started))


def test_images_and_results_stay_within_the_memory(tmp_path: Path) -> None:
    workbench = Workbench(ModelStore(["demo"], load_bundled_model), max_memory=24_000_000)
    for name in ("small.png", "large.webp"):
        Image.new("RGBA", (800, 1000) if name == "small.png" else (1000, 1000)).save(tmp_path / name)
    workbench.read_image(tmp_path / "small.png", "small.png", "")
    with pytest.raises(ImageError, match="MB of memory, and the limit is 12 MB"):
        workbench.read_image(tmp_path / "large.webp", "large.webp", "")
    images = [workbench.add_image(Image.new("RGB", (700, 700), (n, 0, 0)), str(n), "") for n in range(3)]
    with pytest.raises(ImageError, match="no longer in memory"):
        workbench.get_image(images[0].key)


def test_the_page_starts_with_a_scene_and_the_map_of_its_top_class(actions: Actions) -> None:
    shown = actions.start()
    session = shown["session"]
    image = actions.workbench.get_image(session.request.image).image
    expected = camtool.explain(camtool.load("demo"), image)
    assert session.request.target == expected.index
    assert f"<strong>{expected.label}</strong>" in shown["picture"]
    assert f'data-index="{expected.index}" aria-pressed="true"' in shown["bars"]
    drawn = make_screen(expected).draw(Look())
    assert np.abs(decode(shown["picture"]) - drawn).mean() < 2  # JPEG
    assert shown["class"]["value"] == expected.index
    assert len(shown["class"]["choices"]) == 10


def test_the_bars_have_the_probabilities_of_the_model(actions: Actions, started: Session) -> None:
    request = started.request
    loaded, image = actions.workbench.models.get("demo"), actions.workbench.get_image(request.image).image
    probabilities = loaded(loaded.transform(image)[None]).softmax(1)[0]  # type: ignore[misc]
    ranked = actions.workbench.rank_classes(request.model, request.image)
    assert [each.index for each in ranked] == probabilities.topk(5).indices.tolist()
    assert [each.probability for each in ranked] == pytest.approx(probabilities.topk(5).values.tolist(), rel=1e-4)


def test_a_click_on_a_class_shows_its_map_and_marks_its_bar(actions: Actions, started: Session) -> None:
    other = actions.workbench.rank_classes("demo", started.request.image)[1]
    before = actions.start()["picture"]
    shown = actions.choose_class(other.index, started)
    assert f"<strong>{other.label}</strong>" in shown["picture"]
    assert f'data-index="{other.index}" aria-pressed="true"' in shown["bars"]
    assert np.abs(decode(shown["picture"]) - decode(before)).max() > 50


def test_a_text_asks_about_groups_of_classes(actions: Actions, started: Session) -> None:
    shown = actions.choose_class("heart vs cross", started)
    assert "<strong>heart rather than cross</strong>" in shown["picture"]
    assert shown["class"] == "heart vs cross"
    assert "'heart vs cross'" in shown["snippet"]
    assert "heart rather than cross" in actions.show_pair(shown["session"])["pair"]
    with pytest.raises(TargetError, match="hart"):
        actions.choose_class("hart vs cross", started)


def test_a_change_of_the_look_computes_nothing(
    actions: Actions, started: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_explained(monkeypatch)
    pictures = [actions.choose_look(view, 0.7, "turbo", started)["picture"] for view in VIEWS]
    pictures.append(actions.choose_look("overlay", 0.2, "turbo", started)["picture"])
    pictures.append(actions.choose_colors("viridis", started)["picture"])
    assert calls == []
    assert len({*pictures}) == len(pictures)


def test_a_result_is_computed_once(actions: Actions, started: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_explained(monkeypatch)
    for _ in range(2):
        actions.choose_method("layercam", started)
    assert calls == ["layercam"]


def test_colors_come_with_their_usual_opacity(actions: Actions, started: Session) -> None:
    assert actions.choose_colors("viridis", started)["alpha"] == 0.5
    assert actions.choose_colors("heat", started)["alpha"] == 0.7


def test_the_slider_goes_from_early_to_deep(actions: Actions, started: Session) -> None:
    layers = actions.workbench.list_layers("demo", started.request.image)
    grids = [each.grid[0] for each in layers]
    assert grids == sorted(grids, reverse=True)
    assert [each.is_default for each in layers].count(True) == 1
    shown = actions.choose_layer(0, started)
    assert shown["session"].request.layer == layers[0].name
    assert f"{layers[0].name}, {grids[0]} x {grids[0]}" in shown["scale"]
    chosen = actions.choose_layer(len(layers) - 1, started)
    assert chosen["session"].request.layer is None
    assert "chosen by camtool" in chosen["scale"]


def test_a_deep_network_has_few_stops_that_cover_all_depths() -> None:
    layers = choose_layers(camtool.candidate_layers(build_resnet(), np.zeros((64, 64, 3), np.uint8)))
    assert 4 <= len(layers) <= 24
    assert layers[0].grid[0] >= 56
    assert layers[-1].grid == (7, 7)
    assert layers[-1].is_default


def build_resnet() -> Any:
    from torchvision.models import resnet18

    return resnet18().eval()


def test_two_classes_and_their_difference(actions: Actions, started: Session) -> None:
    ranked = actions.workbench.rank_classes("demo", started.request.image)
    shown = actions.choose_second(ranked[2].index, started)["pair"]
    assert re.findall(r"<strong>(\w+)</strong>", shown) == [ranked[0].label, ranked[2].label, "difference"]
    assert f"blue: more for {ranked[2].label}" in shown


def test_the_difference_is_orange_for_the_first_blue_for_the_second_and_gray_elsewhere(
    actions: Actions, started: Session
) -> None:
    screen = actions.workbench.make_screen(started.request)
    first, second = (replace(screen, heatmap=np.zeros_like(screen.heatmap)) for _ in range(2))
    first.heatmap[:10], second.heatmap[-10:] = 1, 1
    drawn = draw_difference(first, second, alpha=1).astype(int)
    assert (drawn[:10] == (255, 122, 20)).all()
    assert (drawn[-10:] == (38, 122, 255)).all()
    assert (drawn[20:-20].max(-1) == drawn[20:-20].min(-1)).all()


def test_methods_come_one_after_the_other_and_failures_say_why(actions: Actions, started: Session) -> None:
    steps = [each["grid"] for each in actions.compare(["gradcam", "rollout", "layercam"], started)]
    assert [step.count('class="waiting"') for step in steps] == [3, 2, 1, 0]
    assert re.findall(r"<strong>([\w+-]+)</strong>", steps[-1]) == ["gradcam", "rollout", "layercam"]
    assert len(re.findall(r"\d+ ms", steps[-1])) == 2
    assert "no attention" in steps[-1]


def test_a_comparison_of_nothing_is_an_error(actions: Actions, started: Session) -> None:
    with pytest.raises(CamtoolError, match="none chosen; choose 1 to 60"):
        list(actions.compare([], started))


def test_warnings_are_shown_with_the_map(actions: Actions, started: Session) -> None:
    by_class = [
        actions.workbench.explain(replace(started.request, target=index, method="random")) for index in range(10)
    ]
    found = next(each for each in by_class if each.warnings)  # a class that the model ranks low
    shown = actions.choose_method("random", actions.choose_class(found.index, started)["session"])["picture"]
    assert shown.count("<li ") == len(found.warnings) > 0
    assert found.warnings[0].code in shown


def test_an_upload_is_explained(actions: Actions, started: Session, tmp_path: Path) -> None:
    path = save(unseen(3), tmp_path / "mine.png")
    shown = actions.take_upload(str(path), started)
    assert actions.workbench.get_image(shown["session"].request.image).name == "mine.png"
    assert shown["session"].request.target == camtool.explain(camtool.load("demo"), path).index
    # The demo's model calls a robin a drop.
    assert "knows the shapes of its scenes only" in shown["bars"]
    actions.photos.clear()  # so that there are scenes
    assert "knows the shapes" not in actions.take_thumbnail(1, shown["session"])["bars"]


def test_a_broken_or_large_upload_is_a_sentence_without_the_folder_of_the_server(
    actions: Actions, started: Session, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    Image.new("L", (1001, 1000)).save(tmp_path / "large.png")
    for name, reason in (("broken.png", "damaged|no image"), ("large.png", "1,001,000 pixels, and the limit")):
        with pytest.raises(ImageError, match=reason) as caught:
            actions.take_upload(str(tmp_path / name), started)
        sentence = to_sentence(caught.value)
        assert sentence.startswith(name)
        assert str(tmp_path) not in sentence
    with pytest.raises(ImageError, match="no image came"):
        actions.take_upload(None, started)


def test_an_image_of_the_folder_is_explained_and_no_other(actions: Actions, started: Session) -> None:
    shown = actions.take_from_folder("1.png", started)
    assert actions.workbench.get_image(shown["session"].request.image).name == "1.png"
    with pytest.raises(ImageError, match="no image"):
        actions.take_from_folder("../files/x.png", started)
    with pytest.raises(ImageError, match="no image is chosen"):
        actions.take_from_folder(None, started)


def test_another_model_says_that_it_loads_and_keeps_image_and_look(actions: Actions, started: Session) -> None:
    looked = actions.choose_look("contours", 0.3, "heat", started)["session"]
    loading, shown = actions.take_model("demo-cheat", looked)
    assert "Loading demo-cheat ..." in loading["status"]
    session = shown["session"]
    assert (session.request.model, session.request.image) == ("demo-cheat", started.request.image)
    assert session.look == looked.look


def test_a_model_that_cannot_be_loaded_leaves_the_page_with_the_former_one(actions: Actions, started: Session) -> None:
    steps = actions.take_model("missing", started)
    assert "Loading" in next(steps)["status"]
    assert next(steps) == {"model": "demo"}
    with pytest.raises(ModelError, match="is not bundled"):
        next(steps)
    with pytest.raises(ModelError, match="not on the list"):
        list(actions.take_model("os:getcwd", started))


def test_the_list_of_methods_has_all_for_images_and_begins_with_the_usual_one() -> None:
    names = [name for _, name in list_methods()]
    assert names[0] == "gradcam"
    assert {*names} == {name for name, method in camtool.METHODS.items() if "text" not in method.needs}
    assert len(names) == len({*names})


# -------------------------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize(("method", "position"), [("gradcam", None), ("layercam", 2)])
def test_the_snippet_gives_exactly_the_result(
    actions: Actions,
    started: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    position: int | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    session = actions.choose_class(0, actions.choose_method(method, started)["session"])["session"]
    if position is not None:
        session = actions.choose_layer(position, session)["session"]
    shown = actions.choose_look("overlay", 0.4, "viridis", session)
    names: dict[str, Any] = {}
    exec(shown["snippet"], names)
    expected = actions.workbench.explain(session.request)
    np.testing.assert_array_equal(names["result"].raw, expected.raw)
    np.testing.assert_array_equal(names["result"].heatmap, expected.heatmap)
    saved = np.asarray(Image.open("explained.png"))
    np.testing.assert_array_equal(saved, expected.overlay(0.4, "viridis", enlarge=True, legend=True))


def test_the_snippet_for_an_image_of_the_folder_reads_it(
    actions: Actions, started: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = actions.take_from_folder("0.png", started)
    names: dict[str, Any] = {}
    exec(shown["snippet"], names)
    expected = actions.workbench.explain(shown["session"].request)
    np.testing.assert_array_equal(names["result"].raw, expected.raw)


def test_the_snippet_names_the_weights_and_hostile_names_stay_text(
    actions: Actions, started: Session, tmp_path: Path
) -> None:
    actions.settings.model_codes["demo"] = ModelCode("demo", "a 'b'.safetensors")
    path = save(unseen(3), tmp_path / "a'; import os; x='\n.png")
    code = actions.take_upload(str(path), started)["snippet"]
    compile(code, "snippet", "exec")
    assert "camtool.load('demo', \"a 'b'.safetensors\")" in code
    assert not re.search(r"^import os", code, re.MULTILINE)


def test_the_numbers_are_those_of_the_result(actions: Actions, started: Session) -> None:
    expected = actions.workbench.explain(started.request)
    with np.load(actions.save("numbers", started), allow_pickle=False) as found:
        np.testing.assert_array_equal(found["raw"], expected.raw)
        np.testing.assert_array_equal(found["heatmap"], expected.heatmap)
        assert (str(found["label"]), int(found["index"])) == (expected.label, expected.index)


def test_the_picture_has_the_full_size_and_the_look(actions: Actions, started: Session) -> None:
    session = actions.choose_look("heatmap", 0.4, "viridis", started)["session"]
    saved = np.asarray(Image.open(actions.save("picture", session)))
    expected = actions.workbench.explain(started.request)
    np.testing.assert_array_equal(saved, camtool.rendering.colorize(expected.heatmap, "viridis"))


def test_the_figure_is_a_pdf(actions: Actions, started: Session) -> None:
    assert actions.save("figure", started).read_bytes().startswith(b"%PDF")


def test_files_have_safe_names_in_the_folder_of_the_server(actions: Actions, started: Session, tmp_path: Path) -> None:
    path = save(unseen(3), tmp_path / "..%2f a&b.png")
    session = actions.take_upload(str(path), started)["session"]
    for kind, (suffix, _) in FILE_KINDS.items():
        saved = actions.save(kind, session)
        assert saved.is_relative_to(tmp_path / "files")
        assert re.fullmatch(r"[A-Za-z0-9-]+", saved.stem)
        assert saved.suffix == suffix


# ------------------------------------------------------------------------------------------------ many at once


def test_ten_users_at_once_each_get_the_map_of_their_own_image(actions: Actions, started: Session) -> None:
    scenes = [unseen(number) for number in range(10)]
    keys = [
        actions.workbench.add_image(Image.fromarray(each.image), f"{n}", f"{n}").key for n, each in enumerate(scenes)
    ]

    def ask(number: int) -> tuple[Any, Any]:
        request = Request("demo", keys[number], method=("gradcam", "layercam")[number % 2])
        shown = actions.choose_class(3, Session(request))
        return actions.workbench.explain(shown["session"].request).raw, decode(shown["picture"])

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(ask, range(10)))
    for number, (raw, pixels) in enumerate(found):
        method = ("gradcam", "layercam")[number % 2]
        expected = camtool.explain(camtool.load("demo"), Image.fromarray(scenes[number].image), 3, method=method)
        np.testing.assert_allclose(raw, expected.raw, rtol=1e-4, atol=1e-6)
        assert np.abs(pixels - make_screen(expected).draw(Look())).mean() < 4


# ------------------------------------------------------------------------------------------------------- drawing


def test_unknown_views_and_colors_are_refused() -> None:
    with pytest.raises(CamtoolError, match="view 'x' is unknown"):
        Look("x")
    with pytest.raises(CamtoolError, match="color map 'x' is unknown"):
        Look(colormap="x")


def test_large_photos_are_reduced_for_the_screen_and_small_ones_are_not(actions: Actions, started: Session) -> None:
    explanation = camtool.explain(camtool.load("demo"), np.zeros((200, 400, 3), np.uint8), 0)
    assert make_screen(explanation, 100).draw(Look()).shape == (50, 100, 3)
    assert make_screen(explanation).photo.shape == (200, 400, 3)


def test_an_error_is_one_sentence() -> None:
    assert to_sentence(ModelError("model 'a'\n is unknown")) == "Model 'a' is unknown."
    assert to_sentence(KeyError("x")) == "KeyError: 'x'."
    assert to_sentence(ValueError()) == "ValueError."
    assert "not enough memory" in to_sentence(MemoryError())
    assert len(to_sentence(ModelError("a " * 1000))) < 410


# ------------------------------------------------------------------------------------------------ kinds of models


def build_actions(load: Any, tmp_path: Path) -> Actions:
    return Actions(Workbench(ModelStore(["model"], load)), PageSettings(None, DiskSpace(tmp_path, 2**30)))


def build_segmenter(name: str) -> Loaded:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    return Loaded(layers.eval(), Compose([Resize((32, 32)), ToTensor()]), name=name)


def test_a_segmenter_without_names_is_explained_and_its_classes_can_be_chosen(tmp_path: Path) -> None:
    shown = build_actions(build_segmenter, tmp_path).start()
    choices = shown["class"]["choices"]
    assert choices
    assert all(label == f"class {index}" for label, index in choices)
    assert "<strong>class" in shown["picture"]


def test_one_class_alone_has_no_second_to_compare_with(tmp_path: Path) -> None:
    actions = build_actions(build_segmenter, tmp_path)
    session = actions.start()["session"]
    only = actions.workbench.rank_classes("model", session.request.image)[:1]
    actions.workbench.rank_classes = lambda *_: only  # type: ignore[method-assign]
    assert "Choose one to compare with" in actions.show_pair(session)["pair"]


def build_text_model(name: str) -> Loaded:
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6))
    transform = Compose([Resize((32, 32)), ToTensor()])
    return Loaded(
        tower.eval(), transform, name=name, text=lambda texts: torch.eye(6)[[len(each) % 6 for each in texts]]
    )


def test_a_model_of_texts_shows_the_photo_until_a_text_is_given(tmp_path: Path) -> None:
    actions = build_actions(build_text_model, tmp_path)
    shown = actions.start()
    assert 'id="map"' in shown["picture"]
    assert "what to look for" in shown["bars"]
    assert shown["class"]["allow_custom_value"] is True
    asked = actions.choose_class("a dog", shown["session"])
    assert "<strong>a dog</strong>" in asked["picture"]


def test_the_pair_follows_the_class_while_it_is_shown(actions: Actions, started: Session) -> None:
    ranked = actions.workbench.rank_classes("demo", started.request.image)
    session = actions.show_pair(started)["session"]
    assert f"<strong>{ranked[2].label}</strong>" in actions.choose_class(ranked[2].index, session)["pair"]
    assert actions.choose_class(ranked[2].index, actions.leave_pair(session)["session"])["pair"] == ""


def test_a_model_that_made_room_is_kept_alive_by_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Loaded:
        bundled = load_bundled_model("demo")
        return Loaded(copy.deepcopy(bundled.model), bundled.transform, bundled.labels, name=name)

    store = ModelStore(["first", "second"], load, max_loaded=1)
    workbench = Workbench(store)
    image = workbench.add_image(Image.fromarray(unseen(0).image), "scene", "scene")
    calls = count_explained(monkeypatch)
    for _ in range(2):
        workbench.explain(Request("first", image.key, 0))
    assert len(calls) == 1
    model = weakref.ref(store.get("first").model)
    workbench.explain(Request("second", image.key, 0))
    gc.collect()
    assert model() is None
    workbench.explain(Request("first", image.key, 0))
    assert len(calls) == 3
