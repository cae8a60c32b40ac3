"""The code that one warm explanation passes through: ``python -m benchmarks call_path``.

A plain resnet18, one prepared tensor, one class, Grad-CAM. The first call fills the caches. The second one, with other
pixels and another class, is traced with ``sys.settrace``; of both, raw map, heatmap and warnings are read: the files
of camtool that it enters, their functions, and the depth of the call stack. Comprehensions are no functions here, as
Python 3.12 runs them without a frame. Someone who debugs an explanation has to read this path, so it should be short.

Decision points are the sum of radon's cyclomatic complexity less one over these functions, also of branches that are
not taken, as a reader has to exclude them. Executed lines are distinct lines of camtool, also of comprehensions; a line
that runs twice counts once. Their number depends on Python's version: it says which lines of a statement are traced.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any

import torch
import torchvision
import typer
from torch import Tensor, nn

import camtool
from tools.code_size import Function, list_functions, measure_complexity

_PACKAGE = str(Path(camtool.__file__).parent)
_COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})


class CallPath:
    """The functions and lines of camtool that run while the trace function is set.

    Attributes:
        functions: Each function's first call: how deep it was among camtool's own frames.
        lines: The path of the file and the number of each line that ran.
        depth: The largest number of camtool's frames on the stack at once.
    """

    def __init__(self) -> None:
        self.functions: dict[CodeType, int] = {}
        self.lines: set[tuple[str, int]] = set()
        self.depth = 0
        self._current = 0

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        """Count one event, as :func:`sys.settrace` calls it."""
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line":
            self.lines.add((code.co_filename, frame.f_lineno))
        elif code.co_name not in _COMPREHENSIONS:
            self._count_frame(code, event)
        return self.trace

    def _count_frame(self, code: CodeType, event: str) -> None:
        if event == "return":
            self._current -= 1
        elif event == "call":
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
        for path, function in self._find_definitions():
            start = function.body[0]
            is_docstring = isinstance(start, ast.Expr) and isinstance(start.value, ast.Constant)
            docstring = (start.end_lineno or 0) - start.lineno + 1 if is_docstring else 0
            counts[f"{path.name}:{function.name}"] = (function.end_lineno or 0) - function.lineno + 1 - docstring
        return counts

    def count_decisions(self) -> int:
        """Return the number of decisions in the functions, taken or not."""
        return sum(measure_complexity(function) - 1 for _, function in self._find_definitions())

    def _find_definitions(self) -> Iterator[tuple[Path, Function]]:
        """Yield the file and the definition of each function; lambdas are part of theirs."""
        for path in sorted({code.co_filename for code in self.functions}):
            known = {code.co_firstlineno for code in self.functions if code.co_filename == path}
            for function in list_functions(Path(path).read_text(encoding="utf-8")):
                # The code of a decorated function begins at its first decorator.
                if min(node.lineno for node in (function, *function.decorator_list)) in known:
                    yield Path(path), function


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
    previous = sys.gettrace()  # of a debugger
    gc.disable()  # what is freed then may have callbacks of this package
    sys.settrace(path.trace)
    try:
        _read(explain(second, 282))
    finally:
        sys.settrace(previous)
        gc.enable()
    return path


def _read(results: list[camtool.Explanation]) -> None:
    _ = results[0].raw, results[0].heatmap, results[0].warnings


def main(*, functions: Annotated[bool, typer.Option(help="List the functions, indented by depth.")] = False) -> None:
    """Count the files, functions, decision points and executed lines of one warm explanation, and its depth."""
    for name, path in (("explain", trace_explain()), ("Explainer", trace_explainer())):
        print(
            f"{name}: {len(path.files)} files, {len(path.functions)} functions, depth {path.depth}, "
            f"{path.count_decisions()} decision points, {len(path.lines)} executed lines"
        )
        for file in path.files:
            print(f"  {file}")
        for code, depth in path.functions.items() if functions else ():
            file = Path(code.co_filename).relative_to(_PACKAGE).as_posix()
            print(f"{'  ' * depth}{file}: {code.co_qualname if sys.version_info >= (3, 11) else code.co_name}")


if __name__ == "__main__":
    typer.run(main)
