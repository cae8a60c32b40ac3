"""Chunks: how many variants of an input run at once within a memory budget.

Perturbation methods such as Score-CAM run a model thousands of times. Their variants are made chunk by chunk, so that
memory does not grow with the number of variants.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from contextvars import ContextVar

import torch
from torch import Tensor

from camtool.errors import MethodError
from camtool.hooks.tracing import TracedCall
from camtool.progress import Stage, follow_loop

# Bytes that one chunk may take, by the estimate of compute_chunk_size. A few images keep the cores of a CPU busy. An
# accelerator needs many images at once, and 1 GiB is a small part of its memory; where less is free, half of it counts.
_BUDGETS = {"cpu": 96 * 2**20}
_DEFAULT_BUDGET = 2**30

# Tensors as large as the largest one that are alive at once, as an estimate: the input and the output of an operation,
# and two more, e.g. a skip connection and a workspace.
_LIVE_COPIES = 4


# The largest number of rows of a forward pass, ``batch_size`` of an explainer; ``None`` for what fits into memory.
MOST_ROWS: ContextVar[int | None] = ContextVar("MOST_ROWS", default=None)


def get_most_rows() -> int:
    """Return the largest number of rows of a forward pass: ``sys.maxsize`` if the user set no ``batch_size``."""
    return MOST_ROWS.get() or sys.maxsize


def compute_chunk_size(elements: int, like: Tensor) -> int:
    """Return how many variants fit into the memory budget at once; at least 1.

    Args:
        elements: The number of elements of the largest tensor of one variant.
        like: A tensor of the same type on the same device.
    """
    budget = _BUDGETS.get(like.device.type, _DEFAULT_BUDGET)
    if like.is_cuda:  # what the allocator holds in reserve is free for it, too
        reserve = torch.cuda.memory_reserved(like.device) - torch.cuda.memory_allocated(like.device)
        budget = min(budget, (torch.cuda.mem_get_info(like.device)[0] + reserve) // 2)
    return max(1, budget // max(1, _LIVE_COPIES * elements * like.element_size()))


def count_largest_output(calls: Sequence[TracedCall]) -> int:
    """Return the number of elements of the largest output among traced calls; 0 for an output without a tensor."""
    return max(0 if call.shape is None else math.prod(call.shape) for call in calls)


def iterate_chunks(count: int, size: int, stage: Stage | None = None) -> Iterator[slice]:
    """Yield the slices of ``range(count)``, each at most ``size`` long.

    The progress is shown if this takes more than two seconds, see :mod:`camtool.progress`.

    Args:
        count: The number of passes.
        size: The largest number in a chunk.
        stage: What the loop does, if it is no loop of a method over passes.

    Raises:
        MethodError: ``size`` is below 1.
    """
    if size < 1:
        raise MethodError(f"chunk must be 1 or more, got {size}; leave it out to run as many at once as fit.")
    with closing(follow_loop(count, stage)) as counter:
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            yield part
            counter.update(part.stop - part.start)
