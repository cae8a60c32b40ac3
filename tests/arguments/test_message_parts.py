"""Parts of messages: counts, articles and percentages."""

from __future__ import annotations

import math

import pytest

from camtool.arguments.message_parts import (
    add_article,
    format_count,
    format_ends,
    format_percent,
    format_points,
    merge_texts,
    suggest_names,
)


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (1, "warning", "1 warning"),
        (0, "warning", "0 warnings"),
        (2, "class", "2 classes"),
        (1200, "entry", "1,200 entries"),
        (3, "key", "3 keys"),
    ],
)
def test_a_count_agrees_with_its_noun(number: int, thing: str, said: str) -> None:
    assert format_count(number, thing) == said


@pytest.mark.parametrize(
    ("share", "said"), [(0.7, "+70 points"), (-0.012, "-1 point"), (0.009, "+1 point"), (-0.004, "+0 points")]
)
def test_a_change_in_points_has_its_sign(share: float, said: str) -> None:
    assert format_points(share) == said


def test_a_hint_never_repeats_the_name() -> None:
    assert suggest_names("crane", ["crane", "crate", "Crane"]) == " Did you mean 'Crane' or 'crate'?"
    assert suggest_names("crane", ["crane"]) == ""


@pytest.mark.parametrize(
    ("ends", "digits", "sign", "said"),
    [
        ((0.402, 0.457), 2, "-", " (0.40 to 0.46)"),
        ((-0.3, 6.6), 0, "-", " (0 to 7)"),
        ((-3.4, 0.2), 0, "+", " (-3 to +0)"),
        ((math.nan, math.nan), 0, "-", ""),
    ],
)
def test_one_value_has_no_interval(ends: tuple[float, float], digits: int, sign: str, said: str) -> None:
    assert format_ends(*ends, digits, sign) == said


@pytest.mark.parametrize(
    ("noun", "said"),
    [
        ("OrderedDict", "an OrderedDict"),
        ("int", "an int"),
        ("list", "a list"),
        ("LSTM", "an LSTM"),
        ("RNN", "an RNN"),
        ("BatchNorm2d", "a BatchNorm2d"),
        ("CLIPModel", "a CLIPModel"),
    ],
)
def test_the_article_fits_the_sound_of_the_noun(noun: str, said: str) -> None:
    assert add_article(noun) == said


@pytest.mark.parametrize(
    ("probability", "decimals", "said"),
    [(0.876, 0, "88%"), (0.876, 1, "87.6%"), (math.nan, 1, "not a number"), (math.inf, 0, "not a number")],
)
def test_a_percentage_needs_a_finite_number(probability: float, decimals: int, said: str) -> None:
    assert format_percent(probability, decimals) == said


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["rank 6 of 10"], "rank 6 of 10"),
        (["rank 6 of 10", "rank 6 of 10"], "rank 6 of 10"),
        (["rank 6 of 10", "rank 7 of 10"], "rank 6 to 7 of 10"),
        (["0.5 mm", "12 mm"], "0.5 to 12 mm"),
        (["2 to 7 cells", "10 cells"], "2 to 10 cells"),
        (["use a or 1", "use b or 2"], "e.g. use a or 1"),
        (["no number", "1 or 2 numbers"], "e.g. no number"),
    ],
)
def test_texts_of_one_kind_keep_their_numbers(texts: list[str], merged: str) -> None:
    assert merge_texts(texts) == merged
