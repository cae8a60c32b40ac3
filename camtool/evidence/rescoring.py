"""Rescoring: the scores of many variants of an image, or of a layer's activations, by further forward passes.

The rows of one image share these forward passes. The variants are made in chunks that fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from camtool import targets
from camtool.errors import ForwardError, TargetError
from camtool.evidence.evidence import Evidence
from camtool.hooks.chunks import get_most_rows, iterate_chunks
from camtool.hooks.model_passes import run_model
from camtool.hooks.observation import resume
from camtool.hooks.state.guard import enable_gradients, guard
from camtool.hooks.structures.nested_tensors import shares_several_values
from camtool.outputs import predictions
from camtool.targets import Target

# Makes the variants of one chunk: ``make_variants(slice(32, 64))`` returns the variants 32 to 63.
MakeVariants = Callable[[slice], Tensor]


def score_inputs(
    evidence: Evidence,
    rows: Sequence[int],
    count: int,
    make_variants: MakeVariants,
    *,
    chunk: int | None = None,
    convert_target: Callable[[Target], Target] | None = None,
) -> Tensor:
    """Score many variants of one image.

    They run through a copy of the model that is faster and equal up to rounding, see
    :class:`camtool.hooks.fast_repeated_passes.FoldedModel`.

    Args:
        evidence: The evidence.
        rows: Rows about the same image.
        count: The number of variants.
        make_variants: Makes those of a slice, ``(m, C, *size)``.
        chunk: How many run at once; by default as many as fit into memory.
        convert_target: Gives what to score instead of a row's target, e.g. its class' probability.

    Returns:
        The scores, ``(count, rows)``.
    """
    forward_pass, image = evidence.forward_pass, evidence.images[rows[0]]
    wanted = _select_targets(evidence, rows, convert_target)
    with forward_pass.restore_autocast():
        # Building it costs a few forward passes; later calls reuse it.
        model = forward_pass.fold_model()

        def score(part: slice) -> Tensor:
            variants = make_variants(part)
            output = predictions.to_batch(model(forward_pass.select_inputs(image, variants)), len(variants))
            return _score(output, wanted)

        size = min(model.chunk_size if chunk is None else chunk, count_rows_at_once(evidence))
        check_limit = getattr(evidence.model, "check_limit", None)  # of a function that may be asked so often only
        if check_limit is not None:
            check_limit(count, map(make_variants, iterate_chunks(count, size)))
        return _score_chunks(score, count, size)


def score_activations(
    evidence: Evidence,
    rows: Sequence[int],
    count: int,
    make_variants: MakeVariants,
    *,
    chunk: int | None = None,
    convert_target: Callable[[Target], Target] | None = None,
) -> Tensor:
    """Score many variants of one image's activations.

    The trunk runs once per chunk on the image, and only the tail (what follows the layer) runs on all variants.

    Args:
        evidence: The evidence.
        rows: Rows about the same image.
        count: The number of variants.
        make_variants: Makes those of a slice, ``(m, C, *grid)``.
        chunk: How many run at once; by default as many as fit into memory.
        convert_target: Gives what to score instead of a row's target, e.g. its class' probability.

    Returns:
        The scores, ``(count, rows)``.
    """
    image, wanted = evidence.images[rows[0]], _select_targets(evidence, rows, convert_target)
    size = evidence.forward_pass.find_tail_chunk_size(evidence.get_layer()) if chunk is None else chunk

    def score(part: slice) -> Tensor:
        return _score(_run_tail(evidence, image, make_variants(part)), wanted)

    return _score_chunks(score, count, min(size, count_rows_at_once(evidence)))


def count_rows_at_once(evidence: Evidence) -> int:
    """Return the most rows that a pass may have: 1 if the rows share other inputs, else as many as the user allows."""
    return 1 if shares_several_values(evidence.forward_pass.inputs) else get_most_rows()


def _score_chunks(score: Callable[[slice], Tensor], count: int, size: int) -> Tensor:
    """Return the scores of all variants, ``(count, rows)``; one variant at a time if the model takes only one."""
    try:
        return torch.cat([score(part) for part in iterate_chunks(count, size)])
    except (ForwardError, TargetError):
        if size == 1:
            raise
        with suppress(ForwardError, TargetError):  # the first error is that of the user
            return torch.cat([score(part) for part in iterate_chunks(count, 1)])
        raise


def score_logits(
    evidence: Evidence, rows: Sequence[int], logits: Tensor, *, convert_target: Callable[[Target], Target] | None = None
) -> Tensor:
    """Score other logits ``(M, K)`` of the rows' image: ``(M, rows)``.

    Only valid if :func:`camtool.evidence.linear_head.find_scoring_head` found a head. ``convert_target`` gives what to
    score instead of a row's target.
    """
    return _score(logits, _select_targets(evidence, rows, convert_target))


def score_with_graph(evidence: Evidence, inputs: Tensor) -> Tensor:
    """Run the model on inputs ``(R, C, *size)``, one per row, and return each row's score on the graph, ``(R,)``."""
    forward_pass, count = evidence.forward_pass, len(inputs)

    def score(part: slice) -> Tensor:
        replaced = forward_pass.replace_image_input(inputs[part], evidence.images[part])
        output = predictions.to_batch(run_model(evidence.model, replaced), len(inputs[part]))
        return targets.score_targets(evidence.targets[part], output)

    with enable_gradients(), forward_pass.restore_autocast(), guard(evidence.model):
        return torch.cat([score(part) for part in iterate_chunks(count, count_rows_at_once(evidence))])


def score_activations_with_graph(evidence: Evidence, row: int, activations: Tensor, *, model: nn.Module) -> Tensor:
    """Score variants ``(M, C, *grid)`` of a row's activations on the graph: ``(M,)``.

    Args:
        evidence: The evidence.
        row: The row.
        activations: The variants.
        model: A copy of the model, whose tail runs on them.
    """
    with enable_gradients():
        output = _run_tail(evidence, evidence.images[row], activations, model, grad=True)
        return targets.score_targets([evidence.targets[row]] * len(activations), output)


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


def run_forward(evidence: Evidence, inputs: Tensor, row: int = 0) -> Tensor:
    """Run the model on variants ``(M, C, *size)`` of a row's image, all at once, and return their scores ``(M,)``."""
    forward_pass = evidence.forward_pass
    with forward_pass.restore_autocast(), guard(evidence.model), torch.no_grad():
        output = run_model(evidence.model, forward_pass.select_inputs(evidence.images[row], inputs))
        output = predictions.to_batch(output, len(inputs))
    return evidence.targets[row](output)


def run_tail(evidence: Evidence, activations: Tensor, row: int = 0) -> Tensor:
    """Run the tail on variants ``(M, C, *grid)`` of a row's activations, all at once, and return their scores ``(M,)``.

    The trunk runs once on the row's image.
    """
    return evidence.targets[row](_run_tail(evidence, evidence.images[row], activations))


def _run_tail(
    evidence: Evidence, image: int, activations: Tensor, model: nn.Module | None = None, *, grad: bool = False
) -> Any:
    """Return the model's output, or that of a copy of it, for variants of one image's activations."""
    model = evidence.model if model is None else model
    forward_pass, layer = evidence.forward_pass, evidence.get_layer()
    own = forward_pass.layer_outputs[layer.name][image : image + 1].detach()
    variants = layer.layout.from_grid(activations.to(own.dtype), own)
    with forward_pass.restore_autocast():
        index = forward_pass.call_index % evidence.call_count  # resume counts from the first call
        inputs = forward_pass.select_inputs(image)
        output = resume(model, layer.name, variants, inputs, call_index=index, grad=grad, entries=layer.layout.entries)
        return predictions.to_batch(output, len(variants))


def _select_targets(
    evidence: Evidence, rows: Sequence[int], convert_target: Callable[[Target], Target] | None
) -> list[Target]:
    """Return what is scored for each row: its target, converted if ``convert_target`` is given."""
    wanted = [evidence.targets[row] for row in rows]
    return wanted if convert_target is None else [convert_target(target) for target in wanted]


def _score(output: Any, wanted: Sequence[Target]) -> Tensor:
    """Return the score of each target on each image of an output, ``(M, targets)``."""
    return torch.stack([target(output) for target in wanted], 1)
