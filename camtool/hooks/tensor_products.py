"""Products of two tensors that attention is made of: matrix products and ``torch.einsum``, read as one form.

A product has labels, as in an equation of ``einsum``: one for the rows, which the left factor has, one for the columns,
which the right factor has, one that is summed over, and any number that all have in common, e.g. images and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

# Matrix products. Their factors are the last two tensors among their arguments.
_MATRIX_PRODUCTS: frozenset[Any] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm}
)

# Functions that :func:`read_product` reads.
PRODUCTS: frozenset[Any] = _MATRIX_PRODUCTS | {torch.einsum}


@dataclass(frozen=True)
class Equation:
    """An equation of ``einsum`` with one letter for each axis, e.g. ``bhid,bhjd->bhij``.

    Attributes:
        terms: The letters of the axes of each operand.
        output: The letters of the axes of the result.
    """

    terms: tuple[str, ...]
    output: str


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two tensors, summed over one axis: ``out[..., row, column] = Σ left[..., row] right[..., column]``.

    Axes are negative numbers.

    Attributes:
        left: The first factor.
        right: The second factor.
        equation: How their axes meet.
        row: The letter of the axis that the left factor and the result have.
        column: The letter of the axis that the right factor and the result have.
        summed: The letter of the axis that both factors have.
    """

    left: Tensor
    right: Tensor
    equation: Equation
    row: str
    column: str
    summed: str

    @property
    def left_axes(self) -> tuple[int, int]:
        """The axes of the rows and of the sum in the left factor."""
        return _find_axes(self.equation.terms[0], self.row, self.summed)

    @property
    def right_axes(self) -> tuple[int, int]:
        """The axes of the columns and of the sum in the right factor."""
        return _find_axes(self.equation.terms[1], self.column, self.summed)

    @property
    def output_axes(self) -> tuple[int, int]:
        """The axes of the rows and of the columns in the result."""
        return _find_axes(self.equation.output, self.row, self.column)

    def arrange_left(self, like: str) -> Tensor:
        """Return the left factor ``(..., rows, summed)``, with the common axes in the order of the letters ``like``."""
        return _arrange(self.left, self.equation.terms[0], like, self.row + self.summed)

    def arrange_right(self, like: str) -> Tensor:
        """Return the right factor ``(..., columns, summed)``, likewise."""
        return _arrange(self.right, self.equation.terms[1], like, self.column + self.summed)

    def arrange_output(self, output: Tensor, like: str) -> Tensor:
        """Return the result ``(..., rows, columns)``, likewise."""
        return _arrange(output, self.equation.output, like, self.row + self.column)

    def restore_output(self, arranged: Tensor, like: str) -> Tensor:
        """Return the result with its axes in its own order: the inverse of :meth:`arrange_output`."""
        order = _order_letters(self.equation.output, like, self.row + self.column)
        return arranged.permute([order.index(letter) for letter in self.equation.output])


def read_product(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Product | None:
    """Return the product that a call of one of :data:`PRODUCTS` computes; None if it is of another form."""
    tensors = [*iterate_tensors((args, kwargs))]
    if is_einsum(func):
        equation = read_equation(args)
        letters = None if equation is None or len(tensors) != 2 else _find_letters(equation)
    else:
        equation, letters = _build_matrix_equation(tensors[-2].ndim, tensors[-1].ndim), ("R", "C", "S")
    if equation is None or letters is None:
        return None
    return Product(tensors[-2], tensors[-1], equation, *letters)


def is_einsum(func: Callable[..., Any]) -> bool:
    """Return True for ``torch.einsum``."""
    return func is torch.einsum


def read_equation(args: Sequence[Any]) -> Equation | None:
    """Return the equation of a call of ``einsum``, with letters for the axes of an ellipsis; None for a diagonal.

    Args:
        args: The equation as a text, then the operands, one by one or as a list.
    """
    text, operands = args[0].replace(" ", ""), [*iterate_tensors(args)]
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if not arrow:  # all letters that occur once, in alphabetical order
        once = sorted(letter for letter in set(inputs) - {",", "."} if inputs.count(letter) == 1)
        output = ("..." if "..." in inputs else "") + "".join(once)
    # The axes of an ellipsis are aligned at the last one.
    counts = [operand.ndim - len(term.replace("...", "")) for term, operand in zip(terms, operands, strict=True)]
    unused = [letter for letter in ascii_letters if letter not in text][: max(counts)]

    def expand(term: str, count: int) -> str:
        return term.replace("...", "".join(unused[len(unused) - count :]))

    expanded = tuple(map(expand, terms, counts))
    output = expand(output, len(unused))
    has_diagonal = any(len(set(term)) < len(term) for term in expanded)
    return None if has_diagonal else Equation(expanded, output)


def iterate_tensors(structure: Any) -> Iterator[Tensor]:
    """Yield the tensors among the arguments or results of a torch function, which are nested in few ways."""
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, (tuple, list)):
        for item in structure:
            yield from iterate_tensors(item)
    elif isinstance(structure, dict):
        yield from iterate_tensors(tuple(structure.values()))


def _build_matrix_equation(left: int, right: int) -> Equation | None:
    """Return the equation of a matrix product of factors with these numbers of axes; None for vectors."""
    if min(left, right) < 2:
        return None
    # The leading axes are aligned at the last one, as in broadcasting.
    common = ascii_letters[: max(left, right) - 2]
    terms = common[len(common) - left + 2 :] + "RS", common[len(common) - right + 2 :] + "SC"
    return Equation(terms, common + "RC")


def _find_letters(equation: Equation) -> tuple[str, str, str] | None:
    """Return the letters of the rows, the columns and the sum of a product; None if it has not one of each."""
    (left, right), output = equation.terms, equation.output
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    summed = [letter for letter in left if letter in right and letter not in output]
    if not len(rows) == len(columns) == len(summed) == 1 or not {rows[0], columns[0]} <= {*output}:
        return None
    return rows[0], columns[0], summed[0]


def _find_axes(term: str, first: str, second: str) -> tuple[int, int]:
    return term.index(first) - len(term), term.index(second) - len(term)


def _arrange(tensor: Tensor, term: str, like: str, last: str) -> Tensor:
    """Return a tensor with two axes last, and before them the others in the order of the letters ``like``."""
    return tensor.permute([term.index(letter) for letter in _order_letters(term, like, last)])


def _order_letters(term: str, like: str, last: str) -> list[str]:
    common = sorted(
        (letter for letter in term if letter not in last), key=like.find
    )  # -1 for those of one factor alone
    return [*common, *last]
