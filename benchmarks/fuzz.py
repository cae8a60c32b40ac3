"""Errors of an unexpected kind that random inputs cause: ``python -m benchmarks fuzz --minutes 5``.

It needs a checkout, as the properties are those of ``tests/fuzz``. Each round tries new examples of each property. What
fails is printed with the smallest example.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.properties import PROPERTIES

_EXAMPLES = 40
"""Examples of a property in a round: few, so that all properties have their turn in a short time."""


def main() -> None:
    """Try examples until the time is over; exit with 1 if a property failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--property", choices=[*PROPERTIES], nargs="*", default=[*PROPERTIES])
    asked = parser.parse_args()
    end, tried, failed, number = time.monotonic() + asked.minutes * 60, Counter[str](), {}, asked.seed
    warnings.simplefilter("ignore")
    while time.monotonic() < end:
        for name in asked.property:
            if name in failed or time.monotonic() > end:
                continue
            error = _run(name, number, tried)
            if error is not None:
                failed[name] = error
        number += 1
    print(f"{sum(tried.values()):,} examples in {asked.minutes:g} minutes; seeds {asked.seed} to {number - 1}\n")
    for name in asked.property:
        print(f"{name:<45} {tried[name]:>8,} examples  {'FAILED' if name in failed else 'passed'}")
    for name, report in failed.items():
        print(f"\n{name}\n{report}")
    sys.exit(bool(failed))


def _run(name: str, number: int, tried: Counter[str]) -> str | None:
    """Try one round of a property; return the report of its failure, or None."""

    def count(data: Any) -> None:
        tried[name] += 1
        PROPERTIES[name](data)

    limits = settings(
        max_examples=_EXAMPLES, database=None, deadline=None, suppress_health_check=[*HealthCheck], print_blob=False
    )
    try:
        seed(number)(limits(given(st.data())(count)))()
    except Exception as error:  # noqa: BLE001  any error is what is looked for
        return "".join(traceback.format_exception(error)[-6:]) + "\n".join(getattr(error, "__notes__", []))
    return None


if __name__ == "__main__":
    main()
