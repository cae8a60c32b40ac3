"""The code that one warm explanation passes through: ``python -m benchmarks call_path``.

A plain resnet18, one prepared tensor, one class, Grad-CAM. The first call fills the caches. The second one, with other
pixels and another class, is traced with ``sys.setprofile``; of both, raw map, heatmap and warnings are read: the files
of camtool that it enters, their functions, and the depth of the call stack. Comprehensions are no functions here, as
Python 3.12 runs them without a frame. Someone who debugs an explanation has to read this path, so it should be short.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool

_PACKAGE = str(Path(camtool.__file__).parent)
_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})


class CallPath:
    """The functions of camtool that run while the profile function is set.

    Attributes:
        functions: Each function's first call: how deep it was among camtool's own frames.
        depth: The largest number of camtool's frames on the stack at once.
    """

    def __init__(self) -> None:
        self.functions: dict[CodeType, int] = {}
        self.depth = 0
        self._current = 0

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count one event, as :func:`sys.setprofile` calls it."""
        code = frame.f_code
        if (
            event not in ("call", "return")
            or not code.co_filename.startswith(_PACKAGE)
            or code.co_name in _COMPREHENSIONS
        ):
            return
        if event == "return":
            self._current -= 1
            return
        self._current += 1
        self.functions.setdefault(code, self._current)
        self.depth = max(self.depth, self._current)

    @property
    def files(self) -> list[str]:
        """The paths inside the package, sorted."""
        return sorted({Path(code.co_filename).relative_to(_PACKAGE).as_posix() for code in self.functions})

    def count_lines(self) -> dict[str, int]:
        """Return the number of lines of each function, with its signature and without its docstring."""
        counts = {}
        for path in {code.co_filename for code in self.functions}:
            known = {code.co_firstlineno for code in self.functions if code.co_filename == path}
            for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    if first in known:
                        start = node.body[0]
                        is_docstring = isinstance(start, ast.Expr) and isinstance(start.value, ast.Constant)
                        docstring = (start.end_lineno or 0) - start.lineno + 1 if is_docstring else 0
                        counts[f"{Path(path).name}:{node.name}"] = (node.end_lineno or 0) - node.lineno + 1 - docstring
        return counts


def trace_explain() -> CallPath:
    """Return the path of ``camtool.explain`` when it is called again."""
    model = _build_model()
    return _trace(lambda x, index: camtool.explain(model, x, index))


def trace_explainer() -> CallPath:
    """Return the path of an ``Explainer`` when it is called again."""
    return _trace(camtool.Explainer(_build_model()))


def _build_model() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


def _trace(explain: Callable[[Tensor, int], Any]) -> CallPath:
    first, second = torch.randn(2, 1, 3, 224, 224)
    _read(explain(first, 281))
    path = CallPath()
    sys.setprofile(path.profile)
    try:
        _read(explain(second, 282))
    finally:
        sys.setprofile(None)
    return path


def _read(results: list[camtool.Explanation]) -> None:
    _ = results[0].raw, results[0].heatmap, results[0].warnings


def main(*, functions: Annotated[bool, typer.Option(help="List the functions, indented by depth.")] = False) -> None:
    """Count the files, the functions and the depth of one warm explanation."""
    for name, path in (("explain", trace_explain()), ("Explainer", trace_explainer())):
        print(f"{name}: {len(path.files)} files, {len(path.functions)} functions, depth {path.depth}")
        for file in path.files:
            print(f"  {file}")
        for code, depth in path.functions.items() if functions else ():
            file = Path(code.co_filename).relative_to(_PACKAGE).as_posix()
            print(f"{'  ' * depth}{file}: {code.co_qualname if sys.version_info >= (3, 11) else code.co_name}")


if __name__ == "__main__":
    typer.run(main)
