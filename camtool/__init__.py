"""Class activation maps for image models: explain predictions, and check the explanations.

    camtool.explain(model, "photo.jpg").save("where.png")

The README shows more.
"""

# Import only what Python has loaded already: `python -m camtool` puts the working directory first on the module path,
# where e.g. a typing.py would be imported, until camtool.__main__ removes it, which runs after this file.
from importlib import import_module

__version__ = "0.2.0"

# Public name → the module that defines it. Filled from ``__init__.pyi``, which lists the public names.
_HOMES: "dict[str, str]" = {}


def _read_homes() -> "dict[str, str]":
    """Return the module of each public name and of each public package."""
    if not _HOMES:
        with open(__file__.rpartition(".")[0] + ".pyi", encoding="utf-8") as stub:  # noqa: PTH123  pathlib takes time
            lines = [line.split() for line in stub]
        # Lines are: from HOME import NAME as NAME
        _HOMES.update({line[3]: line[1] for line in lines if line[:1] == ["from"]})
    return _HOMES


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that ``import camtool`` takes no time."""
    if name == "__all__":
        names = [public_name for public_name, home in _read_homes().items() if home != "camtool"]
        return sorted(names, key=lambda public_name: (not public_name.isupper(), public_name))
    home = None if name.startswith("_") else _read_homes().get(name)
    if home is None:
        from camtool.arguments.foreign_names import raise_missing_name

        raise_missing_name(__name__, name)
    if home == "camtool":
        return import_module(f"camtool.{name}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted(_read_homes())
