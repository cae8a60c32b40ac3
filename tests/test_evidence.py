"""Evidence: what one forward lets a method see, what it costs, and that the tail, the score and the head are true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torchvision.models as zoo
from nets import Apply
from torch import Tensor, nn
from torch.testing import assert_close

from camtool import streaming
from camtool.errors import LayerError, MethodError
from camtool.evidence import Evidence, Scene
from camtool.layers import resolve
from camtool.methods import METHODS
from camtool.targets import ClassScore, Contrast, Custom, Negated, Probability, Target

CLASSES = 5


class Twice(nn.Module):
    """A block that runs two times in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 6, 3, stride=4, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.tail = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.block(self.block(self.stem(x)).relu()))


def cnn() -> nn.Module:
    trunk = [nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1)]
    tail = [nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 6), nn.GELU()]
    return nn.Sequential(*trunk, *tail, nn.Linear(6, CLASSES)).eval()


def vit() -> nn.Module:
    model = zoo.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=CLASSES)
    nn.init.normal_(model.heads.head.weight)  # torchvision leaves it all zeros
    return model.eval()


def swin() -> nn.Module:
    swin = zoo.swin_transformer.SwinTransformer
    return swin([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES).eval()


MODELS = {
    "channels first": (cnn, "2"),
    "tokens": (vit, "encoder.layers.encoder_layer_0"),
    "channels last": (swin, "features.1"),
    "run twice": (lambda: Twice().eval(), "block"),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, str]:
    make, layer = request.param
    return make(), layer


def scene_of(model: nn.Module, *layers: str, images: int = 3, dtype: torch.dtype = torch.float32) -> Scene:
    inputs = torch.randn(images, 3, 32, 32, dtype=dtype)
    return Scene(model, inputs, resolve(model, inputs, layers or None))


def look(model: nn.Module, layer: str, targets: Sequence[Target] | None = None, **options: Any) -> Evidence:
    scene = scene_of(model, layer, **options)
    return scene.evidence(targets or [ClassScore(i % CLASSES) for i in range(len(scene.logits))])[0]


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every backward pass, by how many tensors it led to."""
    ran: list[int] = []
    real = torch.autograd.grad

    def grad(outputs: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        ran.append(len(inputs))
        return real(outputs, inputs, *args, **options)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    return ran


# ---------------------------------------------------------------------------------------- activations and gradients


def test_activations_and_gradients_are_those_of_plain_autograd() -> None:
    model, targets = cnn(), [ClassScore(1), Contrast(2, 0), ClassScore(4)]
    scene = scene_of(model, "2")
    (evidence,) = scene.evidence(targets)
    activations = model[:3](scene.inputs).detach().requires_grad_()
    output = model[3:](activations.clone())
    scores = torch.stack([output[0, 1], output[1, 2] - output[1, 0], output[2, 4]])
    (expected,) = torch.autograd.grad(scores.sum(), activations)
    assert torch.equal(evidence.activations, activations)
    assert_close(evidence.gradients, expected)
    assert_close(evidence.scores, scores.detach())


def test_nothing_that_evidence_shows_is_on_a_graph() -> None:
    evidence = look(cnn(), "2")
    shown = [evidence.activations, evidence.gradients, evidence.scores, evidence.tail(evidence.activations[:1])]
    assert not any(tensor.requires_grad for tensor in shown)


def test_a_backward_pass_runs_only_when_gradients_are_read_and_then_once(backwards: list[int]) -> None:
    scene = scene_of(cnn(), "0", "2")
    backwards.clear()  # finding the layers asked for one
    first, second = scene.evidence([ClassScore(0)] * 3)
    assert first.tail(first.activations[:1]).shape == first.score(scene.inputs[:1]).shape == (1,)
    assert (first.gradients_used, backwards) == (False, [])
    assert first.gradients.shape == (3, 4, 8, 8)
    assert second.gradients.shape == (3, 6, 4, 4)
    assert (first.gradients_used, second.gradients_used, backwards) == (True, True, [2])


def test_gradients_at_several_layers_are_those_of_each_alone() -> None:
    model, targets = cnn(), [ClassScore(3)]
    inputs = torch.randn(1, 3, 32, 32)
    together = Scene(model, inputs, resolve(model, inputs, ["0", "2"])).evidence(targets)
    alone = [Scene(model, inputs, resolve(model, inputs, [name])).evidence(targets)[0] for name in ("0", "2")]
    for one, other in zip(together, alone, strict=True):
        assert_close(one.gradients, other.gradients)
        assert one.gradients.any()


def test_two_questions_may_be_asked_of_one_scene_in_any_order() -> None:
    scene = scene_of(cnn(), "2")
    (first,), (second,) = scene.evidence([ClassScore(0)] * 3), scene.evidence([Probability(1)] * 3)
    (fresh,) = scene.evidence([ClassScore(0)] * 3)
    assert not torch.equal(second.gradients, first.gradients)
    assert_close(fresh.gradients, first.gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype: torch.dtype) -> None:
    evidence = look(cnn().to(dtype), "2", dtype=dtype)
    assert evidence.activations.dtype == evidence.gradients.dtype == torch.float32
    assert_close(evidence.tail(evidence.activations[:1]), evidence.scores[:1])  # and narrowed again for the model
    assert evidence.scores.dtype == dtype


def test_double_precision_is_kept() -> None:
    evidence = look(cnn().double(), "2", dtype=torch.float64)
    assert evidence.activations.dtype == evidence.gradients.dtype == torch.float64


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_are_had_where_the_caller_switched_them_off(mode: Any) -> None:
    model = cnn()
    with mode():
        evidence = look(model, "2")
        assert evidence.gradients.any()
        assert_close(evidence.tail(evidence.activations[:1]), evidence.scores[:1])


def test_a_target_that_detaches_is_refused_when_gradients_are_read() -> None:
    evidence = look(cnn(), "2", [Custom(lambda one: one.detach()[0])] * 3)
    assert evidence.scores.shape == (3,)
    with pytest.raises(LayerError, match=r"does not depend on the layers \['2'\].* target that does not detach"):
        _ = evidence.gradients


# -------------------------------------------------------------------------------------------------- tail and score


def test_the_tail_of_an_images_own_activations_is_its_score(case: tuple[nn.Module, str]) -> None:
    model, layer = case
    evidence = look(model, layer, [ClassScore(1), Contrast(2, 0), Probability(4)])
    for image in range(3):
        own = evidence.activations[image : image + 1]
        assert_close(evidence.tail(own, image), evidence.scores[image : image + 1])


def test_the_tail_scores_each_variant_as_if_it_were_alone(case: tuple[nn.Module, str]) -> None:
    evidence = look(*case)
    variants = torch.randn(4, *evidence.activations.shape[1:])
    together = evidence.tail(variants, row=2)
    assert together.unique().numel() == 4
    assert_close(together, torch.cat([evidence.tail(variant[None], row=2) for variant in variants]))


def test_the_tail_keeps_the_prefix_tokens_of_its_own_image() -> None:
    model = vit()
    evidence = look(model, "encoder.layers.encoder_layer_0", [ClassScore(0)] * 3)
    blank = torch.zeros_like(evidence.activations[:1])
    by_image = torch.cat([evidence.tail(blank, image) for image in range(3)])
    assert by_image.unique().numel() == 3  # the patches are the same, so it is the class token that differs


def test_what_goes_around_the_layer_is_of_the_tails_own_image() -> None:
    class Around(Twice):
        def forward(self, x: Tensor) -> Tensor:
            stem = self.stem(x)
            return self.tail(stem + self.block(stem))

    model = Around().eval()
    evidence = look(model, "block", [ClassScore(0)] * 3)
    for image in range(3):
        own = evidence.activations[image : image + 1]
        assert_close(evidence.tail(own.expand(2, -1, -1, -1), image), evidence.scores[image].expand(2))


def test_ablating_a_channel_is_what_a_hook_by_hand_gives() -> None:
    model = cnn()
    scene = scene_of(model, "2")
    (evidence,) = scene.evidence([ClassScore(2)] * 3)
    ablated = evidence.activations[1:2].clone()
    ablated[:, 3] = 0
    assert_close(evidence.tail(ablated, row=1), model[3:](ablated.clone())[:, 2].detach())


def test_score_is_the_model_itself(case: tuple[nn.Module, str]) -> None:
    model, layer = case
    evidence = look(model, layer, [ClassScore(1), Contrast(2, 0), ClassScore(4)])
    pictures = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        output = model(pictures)
    assert_close(evidence.score(pictures), output[:, 1])
    assert_close(evidence.score(pictures, row=1), output[:, 2] - output[:, 0])


def test_a_layer_that_runs_twice_is_seen_at_its_last_run() -> None:
    model = Twice().eval()
    scene = scene_of(model, "block")
    (evidence,) = scene.evidence([ClassScore(0)] * 3)
    last = model.block(model.block(model.stem(scene.inputs)).relu())
    assert (evidence.layer, evidence.times_run) == ("block", 2)
    assert torch.equal(evidence.activations, last)


def test_evidence_leaves_the_model_as_it_was(case: tuple[nn.Module, str]) -> None:
    model, layer = case
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evidence = look(model, layer)
    _ = evidence.gradients, evidence.tail(evidence.activations[:1]), evidence.score(torch.randn(1, 3, 32, 32))
    assert all(module.training and not module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# ----------------------------------------------------------------------------------------------------- linear head

CONV = nn.Conv2d


def headed(*tail: nn.Module) -> nn.Module:
    """A stem of six channels, some of them negative, and a tail."""
    return nn.Sequential(CONV(3, 6, 3, stride=4, padding=1), *tail).eval()


def pooled(*tail: nn.Module) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *tail]


def mean_of_tokens(maps: Tensor) -> Tensor:
    return maps.flatten(2).mean(2)


HEADS = {
    "pool, linear": lambda: headed(*pooled(nn.Linear(6, CLASSES))),
    "no bias": lambda: headed(*pooled(nn.Linear(6, CLASSES, bias=False))),
    "dropout between": lambda: headed(*pooled(nn.Dropout(), nn.Linear(6, CLASSES))),
    "mean, linear": lambda: headed(Apply(mean_of_tokens), nn.Linear(6, CLASSES)),
    "1 x 1 convolution, pool": lambda: headed(CONV(6, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "ReLU, pool, linear": lambda: headed(nn.ReLU(), *pooled(nn.Linear(6, CLASSES))),
    "as many channels as classes": lambda: headed(CONV(6, CLASSES, 1), *pooled(nn.Linear(CLASSES, CLASSES))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_a_linear_head_gives_just_what_the_model_returned(name: str, dtype: torch.dtype) -> None:
    model = HEADS[name]().to(dtype)
    layer = "1" if name == "as many channels as classes" else "0"
    scene = scene_of(model, layer, dtype=dtype)
    (evidence,) = scene.evidence([ClassScore(1), ClassScore(4), Contrast(0, (2, 3), weight=0.5)])
    head = evidence.head
    assert head.weight.dtype == torch.promote_types(dtype, torch.float32)
    again = head.maps.flatten(2).mean(2) @ head.weight.T + head.bias
    loose = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
    assert_close(again, scene.logits.to(again), **loose)
    w = head.weight
    assert_close(evidence.head_weights, torch.stack([w[1], w[4], w[0] - 0.25 * (w[2] + w[3])]))


def test_where_a_relu_stands_before_the_pool_the_heads_maps_are_the_positive_part() -> None:
    evidence = look(HEADS["ReLU, pool, linear"](), "0")
    assert evidence.activations.min() < 0
    assert torch.equal(evidence.head.maps, evidence.activations.relu())


NO_HEADS = {
    "two linear layers": lambda: headed(*pooled(nn.Linear(6, 6), nn.Linear(6, CLASSES))),
    "a linear layer bypassed": lambda: headed(*pooled(Apply(torch.tanh), nn.Linear(6, CLASSES))),
    "max pooling": lambda: headed(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)),
    "a scaled output": lambda: headed(*pooled(nn.Linear(6, CLASSES), Apply(lambda x: 1.1 * x))),
    "flattened positions": lambda: headed(nn.Flatten(), nn.Linear(6 * 64, CLASSES)),
    "score maps": lambda: headed(CONV(6, CLASSES, 1)),
}


@pytest.mark.parametrize("name", NO_HEADS)
def test_another_head_is_refused(name: str) -> None:
    evidence = look(NO_HEADS[name](), "0", [Custom(lambda one: one.sum())] * 3)
    with pytest.raises(MethodError, match=r"needs a model that ends in global average pooling.* 6 channels to"):
        _ = evidence.head


def test_a_method_that_asks_for_the_head_alone_reads_no_gradient_at_the_layer() -> None:
    evidence = look(HEADS["pool, linear"](), "0")
    assert METHODS["cam"](evidence).shape == (3, 8, 8)
    assert not evidence.gradients_used


# ------------------------------------------------------------------------------------------------- rows and sharing


def test_rows_of_one_image_are_as_if_each_were_asked_alone(case: tuple[nn.Module, str], backwards: list[int]) -> None:
    model, layer = case
    scene = scene_of(model, layer)
    wanted, images = [ClassScore(2), ClassScore(0), Contrast(1, 3), ClassScore(2)], [1, 1, 2, 0]
    backwards.clear()
    (together,) = scene.evidence(wanted, images)
    assert together.gradients.shape[0] == 4
    assert len(backwards) == 1
    for row, (target, image) in enumerate(zip(wanted, images, strict=True)):
        (alone,) = scene.evidence([target], [image])
        assert_close(together.gradients[row : row + 1], alone.gradients)
        assert torch.equal(together.activations[row : row + 1], alone.activations)
        assert_close(together.scores[row : row + 1], alone.scores)
        assert_close(together.tail(together.activations[row : row + 1], row), together.scores[row : row + 1])
    assert together.by_image == [[0, 1], [2], [3]]


def test_a_tail_that_cannot_be_batched_gives_the_same_gradients_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(cnn(), "2")
    wanted, images = [ClassScore(2), ClassScore(0)], [1, 1]
    batched = scene.evidence(wanted, images)[0].gradients
    real = torch.autograd.grad

    def unable(*args: Any, is_grads_batched: bool = False, **options: Any) -> Any:
        if is_grads_batched:
            raise RuntimeError("no batching rule")
        return real(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", unable)
    assert_close(Scene(scene.model, scene.inputs, scene.layers).evidence(wanted, images)[0].gradients, batched)


def test_the_same_question_asked_again_shares_its_backward_pass(backwards: list[int]) -> None:
    scene = scene_of(cnn(), "0", "2")
    backwards.clear()
    for _ in range(2):
        first, second = scene.evidence([ClassScore(1)] * 3)
        _ = first.gradients, second.gradients, first.about([ClassScore(1)] * 3, [0, 1, 2]).gradients
    assert backwards == [2]


def test_other_pictures_are_seen_at_the_same_layer(case: tuple[nn.Module, str]) -> None:
    model, layer = case
    evidence, pictures = look(model, layer, [ClassScore(1)] * 3), torch.randn(3, 3, 32, 32)
    (expected,) = Scene(model, pictures, resolve(model, pictures, [layer])).evidence([ClassScore(1)] * 3)
    assert torch.equal(evidence.again(pictures).activations, expected.activations)
    assert_close(evidence.again(pictures).gradients, expected.gradients)
    on_graph = evidence.on_graph(pictures.requires_grad_())
    assert_close(on_graph.detach(), expected.scores)
    assert torch.autograd.grad(on_graph.sum(), pictures)[0].any()


def test_the_same_pictures_are_seen_at_another_layer(case: tuple[nn.Module, str]) -> None:
    model, layer = case
    scene = scene_of(model, layer)
    (expected,) = scene.evidence([ClassScore(1)] * 2, [2, 0])
    (blind,) = Scene(model, scene.inputs, []).evidence([ClassScore(1)] * 2, [2, 0])
    assert_close(blind.at(layer).activations, expected.activations)
    assert_close(blind.at(layer).gradients, expected.gradients)
    with pytest.raises(LayerError, match="no layer 'nowhere'"):
        blind.at("nowhere")


def test_black_pictures_are_what_the_model_gets_for_black() -> None:
    model, inputs = cnn(), torch.randn(2, 3, 32, 32)
    layers, black = resolve(model, inputs, ["2"]), torch.tensor([-2.0, -1.0, -3.0])
    (known,) = Scene(model, inputs, layers, black=black).evidence([ClassScore(1)] * 2)
    (unknown,) = Scene(model, inputs, layers).evidence([ClassScore(1)] * 2)
    assert torch.equal(known.black_pictures, black[None, :, None, None].expand(2, 3, 32, 32))
    assert not unknown.black_pictures.any()


def test_as_many_tails_run_at_once_as_fit_with_what_follows_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder makes more of little: 64 x 64 of 4 x 4."""
    decoder = nn.Sequential(nn.Upsample(scale_factor=16), nn.Conv2d(6, 6, 3, padding=1), *pooled(nn.Linear(6, CLASSES)))
    model = nn.Sequential(nn.Conv2d(3, 6, 3, stride=8, padding=1), decoder).eval()
    evidence = look(model, "0")
    monkeypatch.setitem(streaming._BUDGET, "cpu", 3 * streaming._COPIES * 6 * 64 * 64 * 4)
    sizes: list[int] = []

    def make(part: slice) -> Tensor:
        sizes.append(part.stop - part.start)
        return evidence.activations[:1].expand(sizes[-1], -1, -1, -1)

    evidence.tails([0], 7, make)
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize(
    "target", [Custom(lambda one: one["logits"][1]), Negated(Custom(lambda one: one["logits"][1]))]
)
def test_a_target_of_the_whole_output_is_not_scored_by_the_logits_alone(target: Target) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = HEADS["pool, linear"]()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x)}

    evidence = look(Wrapped().eval(), "inner.0", [target] * 3)
    assert evidence.shortcut is None
    assert METHODS["ablationcam"](evidence).shape == (3, 8, 8)
    with pytest.raises(MethodError, match=r"function of the model's whole output; use method='gradcam'"):
        METHODS["cam"](evidence)


def test_passes_and_tails_run_in_the_autocast_mode_of_the_forward() -> None:
    model = cnn()
    with torch.autocast("cpu", torch.bfloat16):
        evidence = look(model, "2", [ClassScore(1)] * 3)
    own, picture = evidence.activations[:1], evidence.inputs[:1]
    assert evidence.tail(own).dtype == evidence.scores.dtype == torch.bfloat16
    assert torch.equal(evidence.tail(own), evidence.scores[:1])
    assert torch.equal(evidence.score(picture), evidence.scores[:1])
    assert_close(evidence.passes([0], 1, lambda _: picture)[:, 0], evidence.scores[:1], rtol=0.02, atol=0.02)


def test_a_model_that_writes_to_what_it_is_given_changes_no_picture() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), cnn()).eval()
    inputs = torch.randn(2, 3, 32, 32)
    before = inputs.clone()
    evidence = Scene(model, inputs, resolve(model, inputs, ["1.2"])).evidence([ClassScore(1)] * 2)[0]
    _ = evidence.score(inputs), evidence.again(inputs).gradients, evidence.tail(evidence.activations[:1])
    assert torch.equal(inputs, before)
    assert torch.equal(evidence.inputs, before)
