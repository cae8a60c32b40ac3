"""The global random generators of torch, numpy and Python, and noise that does not use them."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def save_generators() -> dict[str, Any]:
    """Return the states of the global random generators."""
    with _TORCH_GENERATOR.lock:
        states: dict[str, Any] = {"torch": torch.get_rng_state()}
    states["python"] = random.getstate()
    # To ask CUDA for its state would initialize it, and numpy is not imported only to be restored.
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Put the global random generators back into states that :func:`save_generators` returned."""
    with _TORCH_GENERATOR.lock:
        torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def were_generators_used(before: dict[str, Any]) -> bool:
    """Check that a global random generator has another state than :func:`save_generators` returned before."""
    return not _are_equal(save_generators(), before)


def seed_generators_anew() -> None:
    """Give the global random generators other states, which follow from that of torch's generator."""
    with _TORCH_GENERATOR.lock:
        seed = int(torch.randint(2**31, (), device="cpu"))
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    # As below, a generator that is not in use stays so.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def iterate_noisy_copies(inputs: Tensor, samples: int, level: float, seed: int) -> Iterator[Tensor]:
    """Yield copies of inputs with normal noise added. No global generator is used.

    Args:
        inputs: ``(N, C, *size)``.
        samples: The number of copies.
        level: The standard deviation of the noise, as a fraction of the range ``max x - min x`` of each input.
        seed: The seed of the noise. The noise is the same for every input, device and dtype, except for its scale.
    """
    values, generator = inputs.flatten(1), torch.Generator().manual_seed(seed)
    deviation = level * (values.amax(1) - values.amin(1)).reshape(-1, *[1] * (inputs.ndim - 1))
    for _ in range(samples):
        # Drawn on the CPU in float32, as generators differ between devices.
        noise = torch.randn(inputs.shape[1:], generator=generator, dtype=torch.float32, device="cpu")
        yield inputs + deviation * noise.to(inputs)


class _TorchGenerator:
    """Access to torch's global generator, by one thread at a time.

    ``torch.get_rng_state`` makes a Python object while it holds a lock of its own. If that starts a garbage collection
    which runs Python code, another thread may go on and wait for torch's lock without giving Python's back: neither of
    the two would ever go on. A lock of Python gives it back.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Make a new lock: in a forked process, no thread is left that would release the old one."""
        self.lock = threading.RLock()


_TORCH_GENERATOR = _TorchGenerator()

# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TORCH_GENERATOR.renew)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)
