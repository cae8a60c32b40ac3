"""Run one benchmark by its name, ``python -m benchmarks overhead --help``, or list them."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

_SHARED = (
    "__init__",
    "__main__",
    "hunt_models",
    "language_model",
    "networks",
    "package_photos",
    "paired",
    "photos",
    "audit_worlds_scenes",
    "planted_scenes",
    "torchcam_extractors",
    "truth_scenes",
    "wired_networks",
)


def main() -> None:
    """Run the benchmark that the first argument names, with the other arguments; list all of them without one."""
    benchmarks = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.py")) if path.stem not in _SHARED}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in benchmarks:
        sys.argv[:2] = [name]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
        return
    print("Usage: python -m benchmarks NAME [OPTIONS]; NAME is one of:\n")
    for each, path in benchmarks.items():
        print(f"  {each:<14} {_get_first_sentence(path)}")
    sys.exit(f"\nThere is no benchmark {name!r}." if name not in ("", "--help") else 0)


def _get_first_sentence(path: Path) -> str:
    """Return what the benchmark of a file measures, without an import of the file."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0].split(": ``")[0].rstrip(".")


if __name__ == "__main__":
    main()
