"""The list of methods that ``camtool methods`` prints."""

from __future__ import annotations

from camtool.methods import METHODS
from camtool.methods.method_tables import format_method_list
from camtool.methods.registry import Method, method


def read_families() -> dict[str, str]:
    """Return the family of each method in the list, from its one-line form."""
    rows = [line for line, _ in format_method_list()]
    column = rows[0].index("family")
    return {row.split()[0]: row[column:] for row in rows[1:]}


def test_each_method_of_camtool_is_listed_in_its_family() -> None:
    families = read_families()
    own = [name for name, found in METHODS.items() if is_built_in(found) and families[name] == "Your own"]
    assert own == [], "add the module of these methods to _FAMILIES in camtool.methods.method_tables.py"


def test_a_method_of_the_user_is_listed_as_their_own() -> None:
    before = {*METHODS}
    try:

        @method("mine-in-a-list", needs="activations", cost="a pass")
        def mine(evidence):
            """Take the mean of the channels."""
            return evidence.activations.mean(1)

        assert read_families()["mine-in-a-list"] == "Your own"
    finally:
        for name in {*METHODS} - before:
            del METHODS[name]


def is_built_in(found: Method) -> bool:
    return found.function.__module__.startswith("camtool.")
