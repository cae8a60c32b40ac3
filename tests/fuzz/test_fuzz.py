"""A bounded number of random inputs, the same ones in each run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.properties import PROPERTIES

EXAMPLES = {
    "slides_and_videos_that_were_changed": 60,
    "arrays_of_any_shape_and_type": 50,
    "weights_that_were_changed": 80,
    "preprocessing_beside_weights": 20,
    "numbers_of_the_preprocessing": 60,
    "arguments_of_explain": 50,
    "arguments_of_other_functions": 50,
    "arguments_of_the_command": 25,
}
"""Name of a property → number of examples, where they take long."""


@pytest.mark.parametrize("name", PROPERTIES)
def test_no_input_causes_an_error_of_another_kind(name: str) -> None:
    limits = settings(
        max_examples=EXAMPLES.get(name, 150),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    limits(given(st.data())(PROPERTIES[name]))()
