"""Equations of ``einsum`` and matrix products, read as products of rows and columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import camtool
from camtool.errors import MethodError
from camtool.hooks.attention.capture import capture_attention
from camtool.hooks.tensor_products import Equation, read_equation, read_product
from tests.helpers.nets import Apply
from tests.helpers.vision_transformers import ATTENTION_FUNCTIONS, make_images, make_tiny_vit


def make(*sizes: int) -> Tensor:
    return torch.randn(sizes, dtype=torch.float64)


@pytest.mark.parametrize(
    ("text", "left", "right", "terms", "output"),
    [
        ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5), ("bhid", "bhjd"), "bhij"),
        ("b h i d, b h j d -> b h i j", (2, 3, 4, 5), (2, 3, 6, 5), ("bhid", "bhjd"), "bhij"),
        ("...id,...jd->...ij", (2, 3, 4, 5), (2, 3, 6, 5), ("abid", "abjd"), "abij"),
        ("...id,...jd->...ij", (2, 3, 4, 5), (3, 6, 5), ("abid", "bjd"), "abij"),
        ("bid,bjd", (2, 4, 5), (2, 6, 5), ("bid", "bjd"), "ij"),  # only i and j occur once
        ("...ik,...kj", (2, 4, 5), (2, 5, 6), ("aik", "akj"), "aij"),
    ],
)
def test_an_equation_has_a_letter_for_each_axis(
    text: str, left: Any, right: Any, terms: tuple[str, str], output: str
) -> None:
    factors = make(*left), make(*right)
    assert read_equation((text, *factors)) == Equation(terms, output)
    assert read_equation((text, [*factors])) == Equation(terms, output)
    assert_close(torch.einsum(text, *factors), torch.einsum(f"{','.join(terms)}->{output}", *factors))


@pytest.mark.parametrize("text", ["bhid,bhjd->bhij", "bdih,bdjh->ijbh", "jdbh,dihb->bjhi"])
def test_a_product_is_the_sum_over_rows_and_columns(text: str) -> None:
    sizes = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6}
    terms, _ = text.split("->")
    left, right = (make(*(sizes[letter] for letter in term)) for term in terms.split(","))
    product = read_product(torch.einsum, (text, left, right), {})
    assert product is not None
    result = torch.einsum(text, left, right)
    by_hand = product.arrange_left("bh") @ product.arrange_right("bh").mT
    assert by_hand.shape[:2] == (2, 3)
    assert_close(product.arrange_output(result, "bh"), by_hand)
    assert product.restore_output(by_hand, "bh").shape == result.shape
    assert_close(product.restore_output(by_hand, "bh"), result)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("bhid,bhjd->bij", [(2, 3, 4, 5), (2, 3, 6, 5)]),  # heads are summed, too
        ("bhid,bjd->bhij", [(2, 3, 4, 5), (2, 6, 5)]),  # heads may be queries
        ("bii,bij->bij", [(2, 4, 4), (2, 4, 5)]),  # a diagonal
        ("bij,bij->bij", [(2, 4, 5), (2, 4, 5)]),  # no sum
        ("bid->bdi", [(2, 4, 5)]),
        ("bid,bjd,bj->bij", [(2, 4, 5), (2, 6, 5), (2, 6)]),
    ],
)
def test_other_equations_are_not_read(text: str, sizes: list[tuple[int, ...]]) -> None:
    factors = [make(*each) for each in sizes]
    torch.einsum(text, *factors)  # it is valid
    assert read_product(torch.einsum, (text, *factors), {}) is None


@pytest.mark.parametrize("method", ["chefer", "rollout", "legrad", "agcam"])
def test_a_model_with_einsum_has_the_maps_of_one_with_matrix_products(method: str) -> None:
    x = make_images(1)
    maps = [camtool.explain(make_tiny_vit(how), x, 3, method=method)[0].raw for how in ("fused", "written", "einsum")]
    assert maps[0].any()
    for each in maps[1:]:
        assert_close(each, maps[0], rtol=0, atol=1e-5)


def test_attention_by_an_equation_that_is_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend_with_shared_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.einsum("bhid,bjd->bhij", q, k[:, 0]).softmax(-1)
        return torch.einsum("bhij,bjd->bhid", weights, v[:, 0])

    monkeypatch.setitem(ATTENTION_FUNCTIONS, "shared keys", attend_with_shared_keys)
    with pytest.raises(MethodError, match="runs no attention that can be captured"):
        camtool.explain(make_tiny_vit("shared keys"), make_images(1), 3, method="chefer")


def attend(net: Any, tokens: Tensor) -> list[Any]:
    return capture_attention(Apply(net), tokens).calls


def test_heads_that_are_mixed_by_einsum_stay_attention() -> None:
    """As in CaiT, before and behind the softmax."""
    tokens, mix = make(2, 3, 4, 6), make(3, 3)

    def talk(x: Tensor) -> Tensor:
        dots = torch.einsum("bhid,bhjd->bhij", x, x)
        weights = torch.einsum("bhij,hg->bgij", dots, mix).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhij,hg->bgij", weights, mix), x)

    (call,) = attend(talk, tokens)
    logits = torch.einsum("bhij,hg->bgij", torch.einsum("bhid,bhjd->bhij", tokens, tokens), mix)
    assert_close(call.matrix.detach(), logits.softmax(-1))
    assert_close(call.logits(), logits)


@pytest.mark.parametrize("axis", [-1, -2])
def test_weights_that_are_multiplied_along_the_queries_are_no_attention(axis: int) -> None:
    """The sum must be over the axis of the softmax, whose numbers sum to 1."""

    def attend_to_queries(x: Tensor) -> Tensor:
        weights = (x @ x.mT).softmax(axis)
        return (weights if axis == -2 else weights.mT) @ x

    def attend_to_keys(x: Tensor) -> Tensor:
        weights = (x @ x.mT).softmax(axis)
        return (weights if axis == -1 else weights.mT) @ x

    tokens = make(2, 4, 6)
    assert attend(attend_to_queries, tokens) == []
    (call,) = attend(attend_to_keys, tokens)
    assert_close(call.matrix.detach().sum(-1), torch.ones(2, 1, 4, dtype=torch.float64))
    assert_close(call.output.detach(), (tokens @ tokens.mT).softmax(-1)[:, None] @ tokens[:, None])


def test_a_clone_is_returned_that_the_model_may_write_to() -> None:
    def attend_and_write(x: Tensor) -> Tensor:
        out = torch.einsum("bjd,bij->bid", x, torch.einsum("bid,bjd->bij", x, x).softmax(-1))
        out.zero_()
        return out

    (call,) = attend(attend_and_write, make(2, 4, 6))
    assert call.output.detach().any()


def test_parts_of_a_model_that_use_einsum_for_other_things_are_left_alone() -> None:
    class Projects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(make(6, 2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bnd,dhk->bhnk", x, self.weight).softmax(-1)

    net, tokens = Projects(), make(2, 4, 6)
    captured = capture_attention(net, tokens)
    assert captured.calls == []
    assert_close(captured.output, net(tokens))
