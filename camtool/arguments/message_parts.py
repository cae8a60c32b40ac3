"""Parts of messages: suggestions for misspelled names, counted nouns, articles and percentages."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any


def suggest_names(word: str, candidates: Iterable[str], *, max_count: int = 3) -> str:
    """Return a sentence that suggests similar names, e.g. ``" Did you mean 'tabby'?"``, or the empty string.

    Args:
        word: The unknown name, which is never suggested.
        candidates: The names that exist.
        max_count: The largest number of names to suggest.

    Returns:
        A sentence that starts with a space, or the empty string if no name is similar.
    """
    by_folded = {name.casefold(): name for name in candidates if name != word}
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


def count_warnings(warnings: Iterable[object]) -> str:
    """Return how many are warnings and how many only notes: ``"1 warning, 2 notes"``; without any ``""``.

    Args:
        warnings: Warnings with a severity, see :data:`camtool.warning_codes.Severity`. Plain texts are warnings.
    """
    counts = Counter(getattr(warning, "severity", "warning") for warning in warnings)
    return ", ".join(format_count(counts[kind], kind) for kind in ("warning", "note") if counts[kind])


def add_article(noun: str) -> str:
    """Return a noun, e.g. the name of a type, with "a" or "an": ``"an OrderedDict"``, ``"a list"``."""
    # Abbreviations are spelled out when read: an LSTM, a CLIPModel.
    is_spelled_out = noun[:2].isupper() or len(noun) == 1
    has_vowel_sound = noun[:1] in "AEFHILMNORSX" if is_spelled_out else noun[:1].casefold() in "aeiou"
    return f"{'an' if has_vowel_sound and noun else 'a'} {noun}"


def format_percent(probability: float, decimals: int = 0) -> str:
    """Return a probability as a percentage, e.g. ``"87%"``; ``"not a number"`` if it is NaN or infinite."""
    return f"{probability:.{decimals}%}" if math.isfinite(probability) else "not a number"


def format_points(share: float) -> str:
    """Return a change of a probability with its sign, in points of 1 %: ``"+1 point"``, ``"-30 points"``."""
    points = round(100 * share)
    return f"{points:+} point{'' if abs(points) == 1 else 's'}"


def format_ends(low: float, high: float, digits: int = 0, sign: str = "-") -> str:
    """Return an interval behind its mean, e.g. ``" (3 to 7)"``; nothing if the ends are NaN, as those of one value."""
    first, last = (f"{round(end, digits) + 0.0:{sign}.{digits}f}" for end in (low, high))  # + 0.0: never "-0"
    return "" if math.isnan(low) else f" ({first} to {last})"


def merge_texts(texts: Iterable[str]) -> str:
    """Return a text for all texts of one kind: numbers that differ become a range, e.g. ``"3 to 7 cells"``.

    Args:
        texts: At least one text. If they differ in more than numbers, the first is returned as an example. A merged
            text can be merged again.
    """
    parts = [_NUMBERS.split(text) for text in dict.fromkeys(texts)]
    if len({(*part[::2],) for part in parts}) > 1:
        return f"e.g. {''.join(parts[0])}"
    return "".join(map(_merge_parts, zip(*parts, strict=True)))


def count_texts(kinds: Iterable[tuple[str, str]], among: str) -> Iterator[str]:
    """Yield each kind of text once, the most frequent first: ``"3 of 20 tiles: 3 to 7 cells"``.

    Args:
        kinds: The kind of each text, and the text.
        among: Of what the texts are counted, e.g. ``"20 tiles"``.
    """
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for kind, text in kinds:
        texts[kind].append(text)
    for kind in sorted(texts, key=lambda kind: -len(texts[kind])):
        yield f"{len(texts[kind]):,} of {among}: {merge_texts(texts[kind])}"


# A number, or a range of numbers.
_NUMBERS = re.compile(r"(\d+(?:\.\d+)?(?: to \d+(?:\.\d+)?)?)")


def _merge_parts(parts: Sequence[str]) -> str:
    if len({*parts}) == 1:
        return parts[0]
    numbers = sorted((number for part in parts for number in part.split(" to ")), key=float)
    return f"{numbers[0]} to {numbers[-1]}"


def map_json(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return values of JSON with all names, texts and numbers in them converted."""
    if isinstance(value, Mapping):
        return {convert(name): map_json(entry, convert) for name, entry in value.items()}
    return [map_json(entry, convert) for entry in value] if isinstance(value, (list, tuple)) else convert(value)
