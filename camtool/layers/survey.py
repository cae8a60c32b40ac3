"""Survey of a model's layers: all outputs that are grids over the image, and which of them can carry a map.

A first forward pass, on the user's own input, lists the shapes of all outputs. A second one, with gradients and on
variants of the image, answers what shapes leave open: does the gradient of the score reach the grid? If a shape has two
layouts, which of them responds where the image was changed? The rules are in :mod:`camtool.layers.candidate_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from camtool.errors import ForwardError, LayerError, TargetError
from camtool.hooks.chunks import get_most_rows
from camtool.hooks.model_passes import apply_detector_transform, differentiate
from camtool.hooks.observation import EntriesPerImage, Observation, resume, run_with_hooks
from camtool.hooks.state.guard import enable_gradients
from camtool.hooks.structures import modules
from camtool.hooks.structures.nested_tensors import ModelInputs, find_tensors, shares_several_values
from camtool.hooks.tracing import TracedCall, trace
from camtool.layers import candidate_rules as rules
from camtool.layers import responses, survey_batches
from camtool.layers.default_layer import SHALLOW, Candidate, choose_default_layer, find_projection_sources, mark_levels
from camtool.layers.image_tokens_in_text import find_image_tokens
from camtool.layers.layout_reader import LayoutReader
from camtool.layers.layouts import Layout, choose_layout, place_cells
from camtool.layers.survey_batches import ALL_VARIANTS, VARIANTS
from camtool.outputs.anchors import find_level_scores
from camtool.outputs.class_scores import UserScore, compute_top_score, find_logits
from camtool.outputs.detections import QueryTokens, find_detections, find_query_tokens
from camtool.outputs.predictions import get_image_output, to_batch

# Number of deepest grids that one second forward pass asks about. It bounds the memory of the recorded graph.
_MOST_ASKED = 32

# The same in a language model, whose activations are large.
_MOST_ASKED_IN_TEXT = 4

# The same in a model without gradients, where each grid takes a few passes of its own.
_MOST_PROBED = 4

# Change of the top score, as a share of the largest, that is rounding: a part of a graph rounds otherwise than all.
_SCORE_ROUNDING = 1e-4

# Class token and registers at the start of a row of tokens.
_MOST_SPECIAL_TOKENS = 5


def find_candidates(
    model: nn.Module, inputs: ModelInputs, *, call_index: int = -1, score: UserScore | None = None
) -> list[Candidate]:
    """Return all modules whose output is a grid, from shallow to deep, each with a verdict, one of them chosen.

    This takes two forward passes: one for the shapes, and one with gradients on the image and its variants. If none of
    the deepest grids qualifies, each further block of grids takes another pass. If the deepest good layer of tokens
    does not show its order, another pass tells whether its tokens have places.

    Args:
        model: Any module.
        inputs: What the model is called with.
        call_index: Which call of a layer is read if it runs more than once: 0 is the first, -1 the last.
        score: The score that the layer must influence; by default the top score, or one for each feature level. Of
            classes it counts if the top score depends on no layer.

    Raises:
        LayerError: Hooks cannot be added to the model's layers.
    """
    kind = modules.describe_unhookable(model)
    if kind:
        raise LayerError(f"the model is {kind} and exposes no submodules to hook; pass the original nn.Module.")
    if modules.find_detector_transform(model) is None:
        return _find_candidates(model, inputs, call_index, score=score)
    return _find_backbone_candidates(model, inputs, call_index)


def _find_backbone_candidates(model: nn.Module, inputs: ModelInputs, call_index: int) -> list[Candidate]:
    """Return the candidates in the backbone of a detector of torchvision.

    Each detection is read from one feature level, small objects from a fine one, and its score says nothing about the
    other levels. So the deepest layer that all levels are computed from is chosen: it serves any detection. If it is
    the end of the finest level, the layers of the other levels are marked as well.
    """
    backbone = modules.find_module(model, "backbone")
    images = apply_detector_transform(model, survey_batches.get_image_input(inputs)[:1])
    candidates = _find_candidates(backbone, images, call_index, is_backbone=True)
    candidates = mark_levels(candidates, _find_reached_by_level(backbone, images, candidates, call_index))
    return [replace(candidate, name=f"backbone.{candidate.name}") for candidate in candidates]


def _find_reached_by_level(
    backbone: nn.Module, images: Tensor, candidates: Sequence[Candidate], call_index: int
) -> list[list[bool]]:
    """Return for each feature level which of the candidates its gradient reaches; nothing if no layer serves all.

    Of the layers behind the chosen one, those count that no rule excludes but for the missing gradient of some levels.
    """
    asked = _list_possible_ends(candidates)
    if not asked:
        return []
    observation = run_with_hooks(backbone, [candidates[i].name for i in asked], images)
    tensors = [observation.calls[candidates[i].name][call_index] for i in asked]
    by_level = []
    for score in _compute_scores(observation.output, is_backbone=True):
        gradients = zip(asked, _compute_gradients(score, tensors), strict=True)
        reached = {i for i, gradient in gradients if gradient is not None and bool(gradient.any())}
        by_level.append([i in reached for i in range(len(candidates))])
    return by_level


def _list_possible_ends(candidates: Sequence[Candidate]) -> list[int]:
    """Return the index of the chosen candidate, if the gradient reaches it, and of those behind that it does not."""
    start = next((i for i, candidate in enumerate(candidates) if candidate.chosen and candidate.reached), None)
    if start is None:
        return []
    behind = range(start + 1, len(candidates))
    return [start, *(i for i in behind if candidates[i].verdict == rules.NOT_REACHED)]


def _find_candidates(
    model: nn.Module, inputs: ModelInputs, call_index: int, *, is_backbone: bool = False, score: UserScore | None = None
) -> list[Candidate]:
    """Return the candidates of a model that gets its images as one batch."""
    inputs = survey_batches.score_next_token(inputs)
    size, calls = survey_batches.find_image_size(inputs), trace(model, survey_batches.select_first_image(inputs))
    # The last call is that of the model itself.
    queries = find_query_tokens(calls[-1].output)
    whole, calls = calls, _stop_at_excluded_call(calls, sum(queries))
    reader = read_layouts(model, inputs, calls, size, queries)
    # A head that runs on the grid and then on the queries, as in RF-DETR: its last call is about the queries.
    again = {call.name for call in whole[len(calls) :]} if call_index < 0 else set()
    outputs = [output for output in group_grid_outputs(calls, reader, call_index) if output.name not in again]
    survey = _Survey(model, inputs, size, reader, call_index, is_backbone, score, whole[-1].shape)
    asked: list[Candidate] = []
    # From the deepest block on, until one layer has no verdict. Some detectors leave the trunk early for small objects,
    # so the right layer may be far from the last one.
    reads_text = reader.find_text_layout() is not None
    most, more = (_MOST_ASKED_IN_TEXT, 1) if reads_text else (_MOST_ASKED, 0)
    most = _MOST_PROBED if modules.runs_outside_torch(model) else most
    while len(asked) < len(outputs):
        if not all(candidate.verdict for candidate in asked):
            # With few asked at once, what a projection reads may be among the next ones.
            if not more:
                break
            more -= 1
        remaining = outputs[: len(outputs) - len(asked)][-most:]
        asked = _exclude_other_orders(survey.judge(remaining) + asked, reader)
        asked = _exclude_without_places(model, inputs, asked, reader, call_index)
    asked = _exclude_projections(calls, outputs[-len(asked) :], asked)
    shallow = [replace(output.to_candidate(size), verdict=SHALLOW) for output in outputs[: -len(asked)]]
    return shallow + choose_default_layer(asked)


def read_layouts(
    model: nn.Module, inputs: ModelInputs, calls: Sequence[TracedCall], size: Sequence[int], queries: QueryTokens
) -> LayoutReader:
    """Return the reader of a forward pass. Positions of the image in the text are used only if they are in order."""
    text = find_image_tokens(model, inputs)
    find, views = cache(partial(responses.find_cells, model, inputs)), responses.count_views(model, inputs)
    reader = LayoutReader(calls, size, queries, text, views=views, find_cells=find)
    in_text = reader.find_text_layout()
    if text is None or in_text is None:
        return reader
    is_ordered = (
        responses.has_tile_order(model, inputs, *in_text, text.seams)
        if any(text.seams)
        else responses.has_image_order(model, inputs, *in_text)
    )
    if is_ordered:
        return reader
    # Nothing in the text is a grid: queries that have looked at the image, or cells in another order.
    return LayoutReader(calls, size, queries, replace(text, positions=()), len(text.positions))


def _exclude_other_orders(candidates: Sequence[Candidate], reader: LayoutReader) -> list[Candidate]:
    """Return the candidates, with a verdict on those whose tokens are not in the order of the image's rows."""
    judged = [*candidates]
    for index, candidate in enumerate(candidates):
        # The order of the image's tokens in the text is checked once, see read_layouts; a language model keeps it.
        if reader.is_in_text(candidate.layout):
            continue
        others = [other.in_order for other in candidates[:index] if other.layout == candidate.layout]
        order = rules.TokenOrder(candidate.in_order, others[::-1], candidate.is_located, candidate.has_places)
        verdict = candidate.verdict or rules.find_verdict(rules.ORDER, order)
        judged[index] = replace(candidate, verdict=verdict)
    return judged


def _exclude_without_places(
    model: nn.Module, inputs: ModelInputs, candidates: Sequence[Candidate], reader: LayoutReader, call_index: int
) -> list[Candidate]:
    """Return the candidates; if the deepest good one does not show its order, a pass tells which have places at all."""
    good = [index for index, candidate in enumerate(candidates) if not candidate.verdict]
    unknown = [index for index in good if _hides_order(candidates[index], reader)]
    judged = [*candidates]
    if not unknown or good[-1] != unknown[-1] or candidates[unknown[-1]].has_places:
        return judged
    places = responses.find_places(model, inputs, [candidates[index] for index in unknown], call_index)
    for index, has_places in zip(unknown, places, strict=True):
        verdict = rules.find_verdict(rules.ORDER, rules.TokenOrder(None, has_places=has_places))
        judged[index] = replace(candidates[index], has_places=has_places, verdict=verdict)
    return judged


def _hides_order(candidate: Candidate, reader: LayoutReader) -> bool:
    """Return True if a candidate has tokens that do not show their order."""
    return candidate.layout.has_tokens and candidate.in_order is None and not reader.is_in_text(candidate.layout)


def _stop_at_excluded_call(calls: list[TracedCall], queries: int) -> list[TracedCall]:
    """Return the calls before the first one that a rule excludes."""
    is_excluded = (rules.is_excluded(rules.TRACE, rules.DetectorCall(call, queries)) for call in calls)
    return calls[: next((i for i, is_last in enumerate(is_excluded) if is_last), len(calls))]


# ---------------------------------------------------------------------------------------------------- grids in a trace


@dataclass(frozen=True)
class GridOutput:
    """A tensor that is a grid, and the calls that returned it, one after the other, unchanged.

    Attributes:
        name: Name of the outermost module that returned it.
        kind: Name of that module's class.
        shape: Its shape for one image.
        layouts: Ways to read it, the likely one first.
        calls: Indices of the calls that returned it.
        origins: The first modules with as many tokens; for the image in a text, those before the text.
        may_be_latents: Whether it is uncertain that its tokens come from the image.
        is_projected: Whether a matrix, or an activation behind one, computed it. Only such outputs can be scores.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layouts: list[Layout]
    calls: list[int]
    origins: list[str]
    may_be_latents: bool
    is_projected: bool

    def to_candidate(self, size: tuple[int, ...], layout: Layout | None = None) -> Candidate:
        """Return the candidate without a verdict, for an image of this size."""
        layout = layout or self.layouts[0]
        stride = tuple(pixels / cells for pixels, cells in zip(size, layout.grid, strict=True))
        return Candidate(self.name, self.kind, self.shape, layout, stride)


def group_grid_outputs(calls: list[TracedCall], reader: LayoutReader, call_index: int) -> list[GridOutput]:
    """Return the tensors in a forward pass that are grids, from shallow to deep."""
    outputs, runs = [], Counter(call.name for call in calls)
    for group in _group_calls(calls, call_index):
        layouts = {index: possible for index in group if (possible := reader.find_layouts(calls[index]))}
        # The outermost module has the shortest name; of equals, the first. A module that runs at several places of the
        # network, e.g. one activation for all blocks, comes last: its name tells nothing.
        outermost = min(
            layouts, key=lambda index: (runs[calls[index].name] > 1, calls[index].name.count(".")), default=None
        )
        if outermost is None or rules.is_excluded(rules.MODULE, calls[outermost]):
            continue
        call, possible = calls[outermost], layouts[outermost]
        shape = call.shape or ()
        origins, may_be_latents = reader.find_origins(call, possible), reader.may_be_latents(call, possible)
        is_projected = _is_projected(calls, calls[group[0]])
        kind = type(call.module).__name__
        outputs.append(GridOutput(call.name, kind, shape, possible, group, origins, may_be_latents, is_projected))
    return outputs


def _group_calls(calls: list[TracedCall], call_index: int) -> list[list[int]]:
    """Return the indices of calls in groups that returned the same tensor, without the call of the model itself.

    Of a module that runs several times, only the call at ``call_index`` is kept.
    """
    runs: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        runs.setdefault(call.name, []).append(i)
    selected = {run[call_index] for run in runs.values() if -len(run) <= call_index < len(run)}
    groups: list[list[int]] = []
    for i, call in enumerate(calls):
        # A container that returns the output of its last child continues the child's group.
        if not call.passes_through:
            groups.append([])
        if groups and call.name and i in selected:
            groups[-1].append(i)
    return [group for group in groups if group]


def _is_projected(calls: list[TracedCall], call: TracedCall) -> bool:
    """Check that a matrix, or an activation behind one, computed the output of a call."""
    source = None if call.source is None else calls[call.source].module
    return modules.has_matrix(call.module) or (source is not None and modules.has_matrix(source))


# ------------------------------------------------------------------------------------------------------------ verdicts


@dataclass(frozen=True)
class _Observed:
    """Outputs of layers for variants of the image.

    Attributes:
        calls: The calls of each layer, with a row for each variant. A layer that the gradient cannot reach is missing.
        gradients: For each output the smallest absolute gradient over all scores; ``None`` if there is no graph.
        variants: Number of variants.
        is_single: True if the model ran on one variant after the other.
        classes: Number of channels of the classes' own score maps; 0 if there are none.
    """

    calls: Mapping[str, Sequence[Tensor]]
    gradients: Sequence[Tensor | None]
    variants: int
    is_single: bool
    classes: int


@dataclass(frozen=True)
class _Survey:
    """The survey of a model: what is the same for all layers that it judges.

    Attributes:
        model: The model, or the backbone of a detector.
        inputs: Its inputs.
        size: Size of the image.
        reader: Reads the layouts of tensors.
        call_index: Which call of a layer counts.
        is_backbone: True for the backbone of a detector.
        score: The score that the user wants to explain; ``None`` for the model's own.
        output_shape: The shape of the model's output for one image; ``None`` if it is no tensor.
    """

    model: nn.Module
    inputs: ModelInputs
    size: tuple[int, ...]
    reader: LayoutReader
    call_index: int
    is_backbone: bool
    score: UserScore | None
    output_shape: tuple[int, ...] | None

    def judge(self, outputs: Sequence[GridOutput]) -> list[Candidate]:
        """Return the outputs as candidates, each with one layout, and with a verdict if a rule excludes it."""
        if not outputs:
            return []
        observed = self._observe(outputs)
        possible = {output.name: output.layouts for output in outputs}
        layouts = responses.keep_views(self.model, self.inputs, possible, self.call_index)
        judged = self._judge_responses(outputs, layouts, observed)
        if all(candidate.verdict == rules.CONSTANT for candidate in judged):
            # The model may look at another part of the image than was changed.
            names = [name for output in outputs for name in (output.name, *output.origins)]
            calls = responses.observe_variants(self.model, names, survey_batches.vary_all(self.inputs))
            judged = self._judge_responses(outputs, layouts, replace(observed, calls=calls, variants=VARIANTS))
        return judged

    def _judge_responses(
        self, outputs: Sequence[GridOutput], layouts: Mapping[str, Sequence[Layout]], observed: _Observed
    ) -> list[Candidate]:
        judged = []
        for output, gradient in zip(outputs, observed.gradients, strict=True):
            if not layouts[output.name]:
                judged.append(replace(output.to_candidate(self.size), verdict=rules.OTHER_VIEWS))
            elif output.name not in observed.calls:
                judged.append(replace(output.to_candidate(self.size), reached=False, verdict=rules.NOT_REACHED))
            else:
                judged.append(self._judge_response(output, layouts[output.name], gradient, observed))
        return judged

    def _observe(self, outputs: Sequence[GridOutput]) -> _Observed:
        """Run the model on variants of the image, as one batch if it takes one."""
        # Tokens may lie in another order than the image's rows, which other variants show.
        has_tokens = any(output.layouts[0].has_tokens for output in outputs)
        vary = survey_batches.vary_corner_and_halves if has_tokens else survey_batches.vary_corner
        images = vary(self.inputs)
        count = ALL_VARIANTS if has_tokens else VARIANTS
        first = None if self._must_run_one_by_one(count) else self._observe_batch(outputs, images)
        if first is None:
            image = survey_batches.select_first_image(self.inputs)
            first = run_with_hooks(self.model, [output.name for output in outputs], image)
            classes, gradients = self._find_gradients(outputs, first, 1)
            del first  # with the graph
            calls = self._observe_one_by_one(outputs, gradients, images)
            return _Observed(calls, gradients, count, is_single=True, classes=classes)
        classes, gradients = self._find_gradients(outputs, first, count)
        return _Observed(first.calls, gradients, count, is_single=False, classes=classes)

    @property
    def _reads_text(self) -> bool:
        return responses.is_language_model(self.model, self.inputs)

    def _must_run_one_by_one(self, count: int) -> bool:
        """Check that variants need too much memory as one batch, or that some of their inputs cannot be joined."""
        # The images of detectors are large, and so are the activations of language models. Their variants need no
        # graph, and of gradients only those of the first image count. The user may allow fewer rows in a pass.
        is_large = self.is_backbone or self._reads_text or count > get_most_rows()
        return is_large or shares_several_values(self.inputs)

    def _observe_batch(self, outputs: Sequence[GridOutput], images: ModelInputs) -> Observation | None:
        """Return the outputs for several images, with a graph; ``None`` if the model takes one image at a time."""
        names, origins = [output.name for output in outputs], [name for output in outputs for name in output.origins]
        try:
            observation = run_with_hooks(self.model, names, images, without_graph=origins)
        except ForwardError:
            return None
        tensor = observation.output
        # A model that takes one image may squeeze its batch.
        if isinstance(tensor, Tensor) and self.output_shape is not None and tensor.ndim != len(self.output_shape):
            return None
        return None if responses.loops_over_batch(self.model, observation.calls, images) else observation

    def _observe_one_by_one(
        self, outputs: Sequence[GridOutput], gradients: Sequence[Tensor | None], images: ModelInputs
    ) -> Mapping[str, Sequence[Tensor]]:
        """Return the outputs for several images, of a language model those that the gradient may reach."""
        pairs = zip(outputs, gradients, strict=True)
        reached = [output for output, gradient in pairs if not self._reads_text or _may_be_reached(output, gradient)]
        size = 2 if self._reads_text else 1
        run = responses.observe_variants if self.is_backbone else partial(responses.observe_in_parts, size=size)
        return run(self.model, [name for output in reached for name in (output.name, *output.origins)], images)

    def _find_gradients(
        self, outputs: Sequence[GridOutput], observed: Observation, images: int
    ) -> tuple[int, Sequence[Tensor | None]]:
        """Return the number of score maps, and for each output the gradient, or how the score of a file responds."""
        classes = 0 if self.is_backbone else _count_score_maps(observed.output)
        tensors = {output.name: observed.calls[output.name][self.call_index] for output in outputs}
        if modules.runs_outside_torch(self.model):
            return classes, _probe_layers(self.model, tensors, self.inputs, classes)
        return classes, _find_gradients(
            self.model,
            observed.output,
            [*tensors.values()],
            images,
            is_backbone=self.is_backbone,
            score=self.score,
            keeps_rows=any(output.layouts[0].views for output in outputs),
        )

    def _locate(
        self, layout: Layout, output: GridOutput, halves: Tensor | None, earliest: Sequence[Tensor | None]
    ) -> Layout | None:
        """Return a layout with its grid at the tokens that respond to changed halves; ``None`` if they do not show it.

        Args:
            layout: The layout.
            output: The output that has it.
            halves: Its responses; ``None`` if the halves were not changed, as for an output without tokens.
            earliest: Those of the first outputs with as many tokens.
        """
        if halves is None or not layout.has_tokens or self.reader.is_in_text(layout):
            return layout
        located = place_cells(layout, [*(early for early in earliest if early is not None), halves])
        return located or self.reader.find_cells(layout, tuple(output.origins))

    def _judge_response(
        self, output: GridOutput, layouts: Sequence[Layout], gradient: Tensor | None, observed: _Observed
    ) -> Candidate:
        """Return an output as a candidate, by how it responds to a change of the image."""
        tensor = observed.calls[output.name][self.call_index].detach()
        # If the model ran on one variant after the other, their rows are in turn, however it orders those of a batch.
        views = layouts[0].views
        in_turn = EntriesPerImage(views.count) if views and observed.is_single else views
        layout = choose_layout(tensor, [replace(possible, views=in_turn) for possible in layouts])
        has_other_frames, frames = layout.has_other_frames(tensor), layout.grid[0] if layout.has_frames else 1
        corners, halves = _split_variants(layout.select_view(tensor), observed.variants, frames)
        earliest = [
            _split_variants(layout.select_view(observed.calls[name][0].detach()), observed.variants)
            for name in output.origins
        ]
        located = self._locate(layout, output, halves, [early for _, early in earliest])
        layout = located or layout
        response = rules.Response(
            layout.to_grid(corners),
            None if gradient is None else layout.to_grid(layout.select_view(gradient))[0],
            VARIANTS,
            # A ReLU or a norm may leave as many channels as classes, but only a matrix computes scores.
            observed.classes if output.is_projected else 0,
            [corner for corner, _ in earliest] if output.may_be_latents else [],
            has_other_frames,
        )
        return replace(
            output.to_candidate(self.size, replace(layout, views=views)),
            reached=None if response.reached is None else bool(response.reached.any()),
            in_order=responses.find_order(layout, halves) if halves is not None and layout.has_tokens else None,
            is_located=located is not None,
            verdict=rules.find_verdict(rules.RESPONSE, response),
        )


def _may_be_reached(output: GridOutput, gradient: Tensor | None) -> bool:
    """Check that the gradient is not zero at all cells of the grid, however the output is read."""
    return gradient is None or any(
        bool(layout.to_grid(layout.select_view(gradient)).any()) for layout in output.layouts
    )


def _find_gradients(
    model: nn.Module,
    output: object,
    tensors: list[Tensor],
    images: int,
    *,
    is_backbone: bool,
    score: UserScore | None,
    keeps_rows: bool = False,
) -> Sequence[Tensor | None]:
    """Return for each layer output the smallest absolute gradient over all scores, for the first of the images.

    With ``keeps_rows`` it is that for all images, as the rows of the first one are not known yet.

    If the score that comes first reaches none of the outputs, the other one counts: the user's, or the model's own.
    """
    if modules.lacks_gradients(model):  # its operators have no backward pass
        return [None] * len(tensors)
    # If other outputs have a graph, a score without one depends on none of the layers: its gradient is zero.
    is_connected = any(tensor.requires_grad for tensor in find_tensors(output))
    gradients: Sequence[Tensor | None] = []
    with enable_gradients():  # in any gradient mode of the caller
        for compute_scores in _order_scores(output, images, score, is_backbone=is_backbone):
            by_score = (_compute_gradients(scalar, tensors, is_connected=is_connected) for scalar in compute_scores())
            gradients = _combine_gradients(by_score, 1 if keeps_rows else images) or gradients
            if any(gradient is None or bool(gradient.any()) for gradient in gradients):
                break
    return gradients


def _order_scores(
    output: object, images: int, score: UserScore | None, *, is_backbone: bool
) -> list[Callable[[], Sequence[Tensor | None]]]:
    """Return functions that compute the model's own scores and the user's, those first that count."""
    own = partial(_compute_scores, output, is_backbone=is_backbone)
    # The levels of a detector are those of any of its detections.
    if is_backbone or find_detections(output) is not None:
        return [own]
    first = partial(_score_first, output, images, score)
    is_other_score = score is not None and score.key is not None
    return [first, own] if is_other_score else [own, first]


def _probe_layers(
    model: nn.Module, tensors: Mapping[str, Tensor], inputs: ModelInputs, classes: int
) -> list[Tensor | None]:
    """Return for each layer ones where its output changes the top score, and zeros elsewhere, as far as rules ask.

    It stands for the gradient of a model that has none. The tail runs on the output for the first image with zeros:
    everywhere; in all channels but that of the top class, if there are as many as classes; behind the first tokens.

    Args:
        model: A model that runs outside of torch.
        tensors: Layer to its output for some images.
        inputs: What the model is called with.
        classes: Number of the classes, or 0.
    """
    first = survey_batches.select_first_image(inputs)
    scores = find_logits(to_batch(run_with_hooks(model, [], first, grad=False).output, 1))
    if scores.ndim != 2:
        return [None] * len(tensors)
    top = int(scores[0].argmax())
    rounding = _SCORE_ROUNDING * float(scores.abs().max())

    def is_unchanged(name: str, kept: Tensor, own: Tensor) -> bool:
        changed = find_logits(to_batch(resume(model, name, own * kept, first), 1))
        return bool((changed[0, top] - scores[0, top]).abs() <= rounding)

    def probe(name: str, own: Tensor) -> Tensor | None:
        masks = [torch.zeros_like(own)]
        of_top = torch.tensor([top], device=own.device)
        axes = [axis for axis in range(1, own.ndim) if own.shape[axis] == classes]
        masks += [torch.zeros_like(own).index_fill_(axis, of_top, 1) for axis in axes]
        if own.ndim == 3:
            masks.append(torch.zeros_like(own))
            masks[-1][:, :_MOST_SPECIAL_TOKENS] = 1
        try:
            return next((kept for kept in masks if is_unchanged(name, kept, own)), torch.ones_like(own))
        except (ForwardError, TargetError):  # the tail runs on no other values
            return None

    return [probe(name, tensor[:1].detach()) for name, tensor in tensors.items()]


def _score_first(output: object, images: int, score: UserScore | None) -> list[Tensor]:
    """Return the user's score of the first of some images, if it has a graph."""
    try:
        first = get_image_output(to_batch(output, images), 0, keep_batch=True)
    except TargetError:  # the output has no entry for each image
        return []
    users_score = None if score is None else score.compute(first)
    return [] if users_score is None or not users_score.requires_grad else [users_score]


def _split_variants(tensor: Tensor, count: int, rows: int = 1) -> tuple[Tensor, Tensor | None]:
    """Return the rows of an output for :func:`vary_corner`, and those for :func:`vary_halves` if there are any.

    Args:
        tensor: The output, ``(count * rows, ...)``. With another number of rows it is returned as it is.
        count: The number of variants.
        rows: The number of rows of each variant, its frames.
    """
    if len(tensor) != count * rows or count == VARIANTS:
        return tensor, None
    return tensor[: VARIANTS * rows], torch.cat([tensor[:rows], tensor[VARIANTS * rows :]])


def _exclude_projections(
    calls: list[TracedCall], outputs: list[GridOutput], judged: list[Candidate]
) -> list[Candidate]:
    """Return the candidates, with a verdict on those that a rule on projections excludes."""
    sources = find_projection_sources(calls, [output.calls for output in outputs], judged)
    return [
        replace(candidate, verdict=candidate.verdict or rules.find_verdict(rules.PROJECTION, source))
        for candidate, source in zip(judged, sources, strict=True)
    ]


def _compute_scores(output: object, *, is_backbone: bool) -> list[Tensor | None]:
    """Return the scores that a layer must influence: the top score, or one for each feature level of a detector."""
    maps = find_tensors(output) if is_backbone else find_level_scores(output)
    with enable_gradients():
        # The maximum has no gradient if the map is clipped there (ReLU6), the sum has none if the map is normalized.
        return [level[0].amax(0).sum() + level[0].sum() for level in maps] or [compute_top_score(output)]


def _count_score_maps(output: object) -> int:
    """Return the number of channels of the classes' own score maps, 0 if the model returns no class scores."""
    if compute_top_score(output) is None or find_detections(output) is not None:
        return 0
    scores = find_logits(output)
    return scores.shape[1] if scores.ndim > 2 or scores.shape[1] > 1 else 0


def _compute_gradients(
    score: Tensor | None, tensors: list[Tensor], *, is_connected: bool = False
) -> Sequence[Tensor | None]:
    """Return the gradient of a score at each tensor; ``None`` for all if there is no graph, also not to other outputs.

    Args:
        score: The score, or ``None`` if the model has none that can be differentiated.
        tensors: Outputs of layers.
        is_connected: Whether an output of the model is connected to the layers.
    """
    if score is None or not score.requires_grad:
        return [torch.zeros_like(tensor) if score is not None and is_connected else None for tensor in tensors]
    with enable_gradients():
        return differentiate(score, tensors, materialize_grads=True, retain_graph=True)


def _combine_gradients(gradients: Iterable[Sequence[Tensor | None]], images: int) -> Sequence[Tensor | None]:
    """Return for each layer the smallest absolute gradient over all scores, for the first of the images.

    It is zero where one score has none. The frames of a clip are several rows of one image.
    """
    smallest: list[Tensor | None] = []
    for of_score in gradients:  # one score after the other, as the gradients may fill the memory
        absolute = [
            None if gradient is None else gradient[: max(1, len(gradient) // images)].abs() for gradient in of_score
        ]
        del of_score
        smallest = [
            None if low is None or high is None else torch.minimum(low, high)
            for low, high in zip(smallest or absolute, absolute, strict=True)
        ]
    return smallest
