"""Functions as models: maps by hand, what is refused, services that fail, are slow or may be asked so often only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

import camtool
from camtool import FunctionError, ImageError, MethodError, ModelError
from camtool.demo.scenes import draw_scene

PHOTO = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4, 1).repeat(3, 2) * 10)


def to_tensor(photo: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(photo).transpose(2, 0, 1).copy()).float() / 255


def corner(images: Tensor) -> NDArray[np.float64]:
    """Score the sums of the upper left and of the lower right quarter, in float64."""
    pixels = images.numpy().astype(np.float64)
    return np.stack([pixels[:, :, :2, :2].sum((1, 2, 3)), pixels[:, :, 2:, 2:].sum((1, 2, 3))], 1)


class Service:
    """Answers as a small network does, one image at a time, and fails when it is told to."""

    def __init__(self, fails_at: int = 0) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(196, 3)).eval()
        self.sizes: list[int] = []
        self.fails_at = fails_at

    def __call__(self, images: Tensor) -> Any:
        self.sizes.append(len(images))
        if len(self.sizes) == self.fails_at:
            raise TimeoutError("no answer within 30 s.\nTry later")
        return self.network(images)


IMAGE = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1))
RISE: dict[str, Any] = {"method": "rise", "samples": 60, "cells": 4}


def test_occlusion_of_a_function_is_what_the_hand_computes() -> None:
    x = torch.ones(3, 4, 4)
    result = camtool.explain(corner, x, 1, method="occlusion", window=0.5, stride=0.5)
    # Covering the lower right quarter takes its 3 * 4 ones away, covering any other quarter takes nothing.
    expected = np.zeros((4, 4))
    expected[2:, 2:] = 12
    np.testing.assert_array_equal(result.raw, expected)
    assert result.score == 12


def test_a_function_and_its_network_have_the_same_maps() -> None:
    service = Service()
    for options in (RISE, {"method": "occlusion"}):
        mine = camtool.explain(service, IMAGE, 2, **options)
        expected = camtool.explain(service.network, IMAGE, 2, **options)
        np.testing.assert_allclose(mine.raw, expected.raw, atol=1e-6 * np.abs(expected.raw).max())


@pytest.mark.parametrize(
    "answer",
    [
        lambda scores: scores.numpy(),
        lambda scores: scores.tolist(),
        lambda scores: {"logits": scores.numpy()},
        lambda scores: (scores, np.zeros((len(scores), 2, 2))),
        lambda scores: (scores.numpy(), scores.numpy() - 1),
        list,
        lambda scores: list(scores.numpy()),
        lambda scores: [*scores.split(1)],
    ],
)
def test_scores_may_come_as_arrays_lists_mappings_and_tuples(answer: Callable[[Tensor], Any]) -> None:
    service = Service()
    mine = camtool.explain(lambda x: answer(service(x)), IMAGE, 0, **RISE)
    expected = camtool.explain(service.network, IMAGE, 0, **RISE)
    np.testing.assert_allclose(mine.raw, expected.raw, atol=1e-6 * np.abs(expected.raw).max())


@pytest.mark.parametrize("make", [torch.ones, np.ones])
def test_a_list_has_a_row_for_each_image_and_a_tuple_is_several_outputs(make: Callable[[Any], Any]) -> None:
    """There are as many images as classes, so numbers of entries do not tell."""

    def ask(answer: Callable[[Tensor], Any]) -> Any:
        return camtool.load(lambda x: answer(x.mean((1, 2, 3)))).model(torch.stack([IMAGE * 0, IMAGE * 0 + 1]))

    rows = torch.tensor([[0.0, 10.0], [1.0, 11.0]])
    assert torch.equal(ask(lambda means: [make(2) * float(mean) + make(2).cumsum(0) * 10 - 10 for mean in means]), rows)
    first, second = ask(lambda means: (make(2), make(2) * 0))
    assert first.tolist(), second.tolist() == ([1, 1], [0, 0])
    with pytest.raises(FunctionError, match=r"a list of 2 arrays \(2, 3\) for 2 images, which may be one for each"):
        ask(lambda means: [make((2, 3)), make((2, 3))])


def test_a_service_that_answers_about_one_image_may_leave_the_batch_axis_out() -> None:
    service = Service()
    alone = camtool.load(lambda x: service.network(x)[0], batch=1)
    expected = service.network(IMAGE[None]).detach()[0, 0].item()
    assert camtool.explain(alone, IMAGE, 0, **RISE).score == pytest.approx(expected, rel=1e-5)


def test_what_fails_at_call_37_goes_on_with_the_missing_calls_alone() -> None:
    whole, failing = Service(), Service(fails_at=37)
    undisturbed = camtool.load(whole, batch=1)
    expected = camtool.explain(undisturbed, IMAGE, 1, **RISE)
    model = camtool.load(failing, batch=1)
    message = r"^the function Service failed on 1 image \(3, 16, 16\): TimeoutError: no answer within 30 s\. "
    with pytest.raises(
        FunctionError, match=message + "36 answers are kept; the same call goes on from there.$"
    ) as caught:
        camtool.explain(model, IMAGE, 1, **RISE)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert len(failing.sizes) == 37  # it is not asked again
    result = camtool.explain(model, IMAGE, 1, **RISE)
    assert len(failing.sizes) == len(whole.sizes) + 1
    np.testing.assert_array_equal(result.raw, expected.raw)
    camtool.explain(model, IMAGE, 1, **RISE)
    assert len(failing.sizes) == len(whole.sizes) + 1


def test_the_limit_is_checked_before_the_passes_and_known_answers_are_free() -> None:
    service = Service()
    model = camtool.load(service, limit=50, batch=8)
    with pytest.raises(FunctionError, match=r"60 more images, but limit=50 leaves 49 \(1 were sent\)\. Raise limit="):
        camtool.explain(model, IMAGE, 1, **RISE)
    assert sum(service.sizes) == 1
    camtool.explain(model, IMAGE, 1, **{**RISE, "samples": 49})
    assert sum(service.sizes) == 50
    assert max(service.sizes) <= 8
    camtool.explain(model, IMAGE, 1, **{**RISE, "samples": 49})  # all from the cache
    assert sum(service.sizes) == 50


@pytest.mark.parametrize("cache", [True, False])
def test_a_function_may_write_each_answer_into_the_same_memory(cache: bool) -> None:
    service, memory = Service(), torch.empty(1, 3)
    model = camtool.load(lambda images: memory.copy_(service.network(images)), batch=1, cache=cache)
    images = torch.stack([IMAGE, 1 - IMAGE, IMAGE.flip(1)])
    torch.testing.assert_close(model(images), service.network(images).detach())


def test_kept_answers_are_those_of_one_service_and_change_with_any_pixel() -> None:
    first, second = Service(), Service()
    model, other_model = camtool.load(first), camtool.load(second)
    other = IMAGE.clone()
    other[2, 15, 15] = torch.nextafter(other[2, 15, 15], torch.tensor(2.0))
    for _ in range(2):
        for image in (IMAGE, other, IMAGE.permute(0, 2, 1), IMAGE.flip(0)):
            model(image[None])
    assert len(first.sizes) == 4
    other_model(IMAGE[None])
    assert len(second.sizes) == 1


def test_what_the_caller_does_to_an_answer_does_not_change_the_kept_one() -> None:
    boxes = {"boxes": np.ones((1, 4)), "labels": np.ones(1, int), "scores": np.ones(1)}
    for model in (camtool.load(lambda x: x.mean((2, 3))), camtool.load(lambda x: [boxes for _ in x])):
        (first,), before = model(IMAGE[None]), str(model(IMAGE[None]))
        for tensor in first.values() if isinstance(first, dict) else [first]:
            tensor.zero_()
        assert str(model(IMAGE[None])) == before


def test_what_a_service_knows_of_its_user_is_in_no_message_and_no_name() -> None:
    class Client:
        def __init__(self, key: str) -> None:
            self.key = key

        def __call__(self, images: Tensor) -> Any:
            raise ConnectionError("closed")

        def __repr__(self) -> str:
            return f"Client({self.key})"

    model = camtool.load(Client("my-key"))
    with pytest.raises(FunctionError) as caught:
        model(IMAGE[None])
    assert "my-key" not in f"{caught.value} {model!r} {model.model!r} {model.name}"


def test_without_a_cache_a_function_whose_answers_change_is_asked_again() -> None:
    service = Service()
    model = camtool.load(service, cache=False)
    before = model(IMAGE[None])
    with torch.no_grad():
        service.network.get_parameter("3.bias").add_(1)
    np.testing.assert_allclose(model(IMAGE[None]), before + 1, rtol=1e-5)
    assert camtool.load(service)(IMAGE[None]).shape == (1, 3)


def test_methods_of_layers_and_gradients_are_refused_by_a_sentence_that_names_others() -> None:
    for method in ("gradcam", "eigencam", "scorecam"):
        with pytest.raises(
            MethodError, match=f"is a function, .* method '{method}' .*use one of rise, drise, occlusion"
        ):
            camtool.explain(corner, IMAGE, method=method)
    with pytest.raises(MethodError, match=r"runs outside of torch and has no gradients.*use one of rise, drise"):
        camtool.explain(corner, IMAGE, method="smoothgrad")


def test_a_photo_needs_a_transform() -> None:
    with pytest.raises(ImageError, match=r"how the function corner takes photos is not known; pass transform="):
        camtool.explain(corner, PHOTO, method="occlusion")
    result = camtool.explain(corner, PHOTO, 0, method="occlusion", transform=to_tensor, window=0.5)
    assert result.score == pytest.approx(3 * 100 / 255)
    assert result.raw.argmax() in (0, 1, 4, 5)


def test_answers_that_are_no_rows_for_the_images_are_refused() -> None:
    with pytest.raises(FunctionError, match=r"corner returned \(3, 2\) for 1 image; it must return scores \(N, K\)"):
        camtool.load(named(lambda x: np.zeros((3, 2))))(IMAGE[None])
    with pytest.raises(FunctionError, match=r"load it with batch=1"):
        camtool.load(named(lambda x: [1, 2, 3][5]))(torch.stack([IMAGE, -IMAGE]))


def named(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    function.__name__ = "corner"
    return function


@pytest.mark.parametrize(("settings", "word"), [({"limit": 0}, "limit"), ({"batch": 0}, "batch")])
def test_settings_of_calls_are_checked(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(camtool.CamtoolError, match=f"^{word} must be"):
        camtool.load(corner, **settings)
    with pytest.raises(ModelError, match=rf"^{word}= is no setting of model 'demo', which is loaded without any"):
        camtool.load("demo", **settings)


def test_classes_are_no_functions() -> None:
    with pytest.raises(ModelError, match="model is a type"):
        camtool.explain(nn.ReLU, IMAGE)  # type: ignore[arg-type]


def find_squares(images: Tensor) -> list[dict[str, NDArray[Any]]]:
    """Detect one box in the lower right quarter, as bright as that quarter; its sides follow from nothing else."""
    scores = images[:, :, 8:, 8:].mean((1, 2, 3)).numpy()
    box = np.array([[8, 8, 16, 16]], np.float32)
    return [{"boxes": box, "scores": score[None], "labels": np.array([1])} for score in scores]


def test_drise_explains_a_function_that_detects() -> None:
    result = camtool.explain(find_squares, torch.full((3, 16, 16), 0.8), 1, method="drise", samples=200, cells=4)
    heat = result.raw
    assert result.box == (8, 8, 16, 16)
    assert heat[8:, 8:].mean() > heat[:8, :8].mean() + 0.01


def test_regions_metrics_corrections_and_checks_work_on_functions() -> None:
    model = camtool.load("demo")
    service = camtool.load(lambda x: model.model(x).numpy(), transform=model.transform, labels=model.labels)
    scene = draw_scene(3, classes=["star"]).image
    mine, expected = (camtool.explain(one, scene, "star", method="occlusion") for one in (service, model))
    np.testing.assert_allclose(mine.raw, expected.raw, atol=1e-4 * np.abs(expected.raw).max())
    region = mine.sufficient(passes=60)
    assert 0 < region.share < 1
    assert region.score_alone >= 0.9 * region.score
    assert camtool.refine(mine, passes=16).passes == 16
    values = [
        camtool.evaluate(one, [scene], ["occlusion"], metrics=["single-deletion"]).to_records()[0]["single-deletion"]
        for one in (service, model)
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-3)
    assert "gradient: the method reads no gradients" in str(mine.check())
