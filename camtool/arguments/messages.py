"""Parts of messages: suggestions for misspelled names, counted nouns, articles and percentages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["add_article", "format_count", "format_percent", "merge_texts", "suggest_names"]


def suggest_names(word: str, known: Iterable[str], *, max_count: int = 3) -> str:
    """Return a sentence that suggests similar names, e.g. ``" Did you mean 'tabby'?"``, or the empty string.

    Args:
        word: The unknown name.
        known: The names that exist.
        max_count: The largest number of names to suggest.

    Returns:
        A sentence that starts with a space, or the empty string if no name is similar.
    """
    by_folded = {name.casefold(): name for name in known}
    folded = str(word).casefold()
    # 0.6 is the default of difflib: about one wrong letter in a word of four, or two in a word of seven.
    matches = get_close_matches(folded, by_folded, n=max_count, cutoff=0.6)
    # A part of a longer name ("tabby" in "tabby cat") is similar, too, though its edit distance is large.
    matches += [name for name in by_folded if len(folded) > 2 and folded in name and name not in matches]
    names = [repr(by_folded[match]) for match in matches[:max_count]]
    return f" Did you mean {' or '.join(names)}?" if names else ""


def format_count(number: int, thing: str) -> str:
    """Return a number and the noun that it counts: ``"1 warning"``, ``"2 classes"``, ``"1,200 entries"``.

    Args:
        number: The number of things.
        thing: The noun in the singular.
    """
    if number == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2:-1] not in "aeiou":
        return f"{number:,} {thing[:-1]}ies"
    return f"{number:,} {thing}{'es' if thing.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def add_article(noun: str) -> str:
    """Return a noun, e.g. the name of a type, with "a" or "an": ``"an OrderedDict"``, ``"a list"``."""
    # Abbreviations are spelled out when read: an LSTM, a CLIPModel.
    is_spelled_out = noun[:2].isupper() or len(noun) == 1
    has_vowel_sound = noun[:1] in "AEFHILMNORSX" if is_spelled_out else noun[:1].casefold() in "aeiou"
    return f"{'an' if has_vowel_sound and noun else 'a'} {noun}"


def format_percent(probability: float, decimals: int = 0) -> str:
    """Return a probability as a percentage, e.g. ``"87%"``; ``"not a number"`` if it is NaN or infinite."""
    return f"{probability:.{decimals}%}" if math.isfinite(probability) else "not a number"


def merge_texts(texts: Iterable[str]) -> str:
    """Return a text that is true of all texts of one kind: numbers that differ become an ellipsis.

    Args:
        texts: At least one text; they are the same apart from their numbers.
    """
    parts = [re.split(r"(\d+(?:\.\d+)?)", text) for text in dict.fromkeys(texts)]
    if len({len(each) for each in parts}) > 1:
        return "".join(parts[0])
    return "".join(each[0] if len({*each}) == 1 else "…" for each in zip(*parts, strict=True))
