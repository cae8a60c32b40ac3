"""The user's code that a run executes: source files of ``--model package.module:factory`` and of ``--transform``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from camtool.runs.run_folder.hashes import hash_file

_INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed libraries, whose imports are not followed: they lead to all of them."""

_OWN = "camtool"
"""A package that is not followed: its version is in the description."""


def hash_user_code(names: Iterable[str | None]) -> dict[str, str]:
    """Return the hash of each source file that named functions are made of.

    These are the file of the function's module and the files that it imports from the same folder, or from the folder
    of its package, and so on. The import statements are read and not followed by running them, so the result does not
    depend on what the process has loaded.

    Args:
        names: ``"package.module:function"``, already loaded. Other names, such as ``"timm:resnet18"``, are left out.

    Returns:
        Path relative to the folder that the modules are imported from → hash.
    """
    found: dict[str, str] = {}
    for name in names:
        module, _, attribute = (name or "").partition(":")
        path = _find_file(module, attribute)
        if path is not None:
            base = path.parents[module.count(".") + (path.name == "__init__.py")]
            found |= {each.relative_to(base).as_posix(): hash_file(each) for each in _list_sources(module, path, base)}
    return dict(sorted(found.items()))


def _find_file(module: str, attribute: str) -> Path | None:
    """Return the source file of a loaded module that has this function; None for other names."""
    loaded = sys.modules.get(module)
    path = getattr(loaded, "__file__", None)
    if not callable(getattr(loaded, attribute, None)) or not isinstance(path, str) or module.startswith(f"{_OWN}."):
        return None
    return Path(path) if path.endswith(".py") and Path(path).is_file() else None


def _list_sources(module: str, path: Path, base: Path) -> set[Path]:
    """Return the file of a module, and those that it imports from a folder, directly or by another one."""
    if base.name in _INSTALLED:
        return {path}
    found: set[Path] = set()
    waiting = [(module, path), *_locate(module, base)]
    while waiting:
        name, file = waiting.pop()
        found.add(file)
        for imported in _list_imports(name, file):
            waiting += [each for each in _locate(imported, base) if each[1] not in found]
    return found


def _list_imports(name: str, path: Path) -> Iterator[str]:
    """Yield the full name of each module that a file imports. A name in a module may look like a submodule."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # it is not imported, or the import failed
        return
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            start = ".".join([*filter(None, parents), *filter(None, [node.module])])
            yield from (".".join(filter(None, [start, each.name])) for each in node.names)


def _locate(name: str, base: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each part of a module's name that is in a folder: packages, then the module."""
    parts = name.split(".")
    if parts[0] == _OWN:
        return
    for count in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:count])
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                yield ".".join(parts[:count]), file
