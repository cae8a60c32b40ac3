"""Code lines and cyclomatic complexity of Python sources, as the ceilings of the code count them."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_NOT_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_code_lines(source: str) -> int:
    """Return the number of lines with code: no blank lines, no comments, no docstrings.

    A string over several lines that is no docstring counts with all its lines.
    """
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - _find_docstring_lines(source))


def _find_docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


def list_functions(source: str) -> list[Function]:
    """Return functions, methods and closures, also those of classes inside of others; each once, and no lambdas."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


def measure_complexity(function: Function) -> int:
    """Return radon's cyclomatic complexity: 1, and 1 for each decision. That of closures inside is their own."""
    from radon.complexity import cc_visit_ast

    return int(cc_visit_ast(function)[0].complexity)
