"""Rules that decide which outputs are grids over the image, and which grids can carry a map.

The shape of an output alone misleads: attention weights ``(N, heads, T, T)`` look like feature maps, queries look like
patches. Each rule names one kind of output, and the comment above it the models that are explained at a wrong layer, or
with a wrong grid, without the rule. The rules are applied in this order:

==================  ================================================================================================
:data:`TRACE`       to each call of the forward pass; a match ends the part of the forward pass that is searched
:data:`READING`     to each way to read an output as a grid
:data:`MODULE`      to the module that returned a grid
:data:`RESPONSE`    to the activations of changed images and the gradient of the score
:data:`ORDER`       to the places at which tokens respond to changed halves of the image
:data:`PROJECTION`  to the layer that a layer is a projection of
==================  ================================================================================================

To add a rule, add an entry to one of the tables and an example to ``tests/layers/test_candidate_rules.py``, which fails
without the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from torch import Tensor, nn

from camtool.hooks.tracing import TracedCall
from camtool.layers.channel_axes import ChannelAxis
from camtool.layers.layouts import Layout, is_in_proportion

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """One heuristic.

    Attributes:
        name: The kind of output that the rule is about.
        applies: Check that the rule is about the given facts.
        effect: ``"exclude"`` excludes matches. ``"prefer"`` excludes all others if there are matches.
        verdict: Reason that the table of candidates shows for an excluded layer. It may name fields of the facts in
            braces. Outputs excluded by a rule without a verdict are not listed.
    """

    name: str
    applies: Callable[[Facts], bool]
    effect: Literal["exclude", "prefer"] = "exclude"
    verdict: str = ""


def is_excluded(rules: Sequence[Rule[Facts]], facts: Facts) -> bool:
    """Check that one of the excluding rules applies."""
    return any(rule.effect == "exclude" and rule.applies(facts) for rule in rules)


def keep_preferred(rules: Sequence[Rule[Facts]], several: Sequence[Facts]) -> Sequence[Facts]:
    """Return the facts that the preferring rules leave: each keeps its matches if there are any."""
    for rule in rules:
        if rule.effect == "prefer":
            several = [facts for facts in several if rule.applies(facts)] or several
    return several


def find_verdict(rules: Sequence[Rule[Facts]], facts: Facts) -> str:
    """Return the verdict of the first rule that applies, else an empty string."""
    return next((rule.verdict.format(facts=facts) for rule in rules if rule.applies(facts)), "")


# ------------------------------------------------------------------------------------------ calls of the forward pass


class DetectorCall(NamedTuple):
    """A call in the forward pass of a model with ``queries`` detection queries (0 for other models)."""

    call: TracedCall
    queries: int


def _is_query_output(facts: DetectorCall) -> bool:
    """Check that a submodule returned one vector for each detection query."""
    call, queries = facts
    return queries > 0 and call.name != "" and call.shape is not None and call.shape[:2] == (1, queries)


# Rules on calls. The call that matches, and all later calls, are not searched.
TRACE: tuple[Rule[DetectorCall], ...] = (
    # DETR, Mask2Former: a square number of queries looks like a grid of patches.
    Rule("detection queries", _is_query_output),
)


# --------------------------------------------------------------------------------------------- ways to read an output


class Reading(NamedTuple):
    """One way to read an output as a grid.

    Attributes:
        call: The call that returned the output.
        shape: The output's shape.
        layout: How the output is read.
        size: Size of the image.
        channels: Axis of the channels, known from the modules around; ``None`` if unknown.
        enclosing: Shapes of the outputs of the modules that contain the call's module, without the model itself.
        siblings: Shapes of the outputs of all children of the module that contains the call's module.
    """

    call: TracedCall
    shape: tuple[int, ...]
    layout: Layout
    size: tuple[int, ...]
    channels: ChannelAxis | None = None
    enclosing: Sequence[tuple[int, ...]] = ()
    siblings: Sequence[tuple[int, ...]] = ()

    @property
    def has_known_channels(self) -> bool:
        """True if the known axis of the channels is that of this layout."""
        axis = 1 if self.layout.kind in ("channels first", "frames") else len(self.shape) - 1
        return self.channels is not None and self.channels.axis == axis


def _is_inside_attention(reading: Reading) -> bool:
    """Check that the "grid" holds heads by tokens, or the channels of one head twice."""
    grid, shapes = reading.layout.grid, [*reading.enclosing, *reading.siblings]
    # A square of channels by channels belongs to tokens of ``heads * channels`` numbers.
    width = grid[0] * reading.shape[1] if len(set(grid)) == 1 else None
    return any(len(shape) == 3 and (shape[1] in grid or shape[2] == width) for shape in shapes)


def _is_transposed(reading: Reading) -> bool:
    """Check that the "tokens" are channels, because a module around has as many channels."""
    tokens = reading.shape[1]
    return any(len(shape) == 3 and shape[2] == tokens != shape[1] for shape in reading.enclosing)


# Rules on the ways to read an output. A layer that the user names must pass them, too.
READING: tuple[Rule[Reading], ...] = (
    # Swin, MaxViT and detectors: windows or regions instead of images along the first axis.
    Rule("windows", lambda reading: reading.shape[0] != getattr(reading.layout.entries, "count", 1)),
    # ViT: queries (N, heads, T, C) and attention weights (N, heads, T, T) have the shape of maps.
    Rule("inside of attention", lambda reading: not reading.layout.has_tokens and _is_inside_attention(reading)),
    # MLP-Mixer: layers that mix positions work on transposed tokens (N, C, T).
    Rule("inside of token mixing", lambda reading: reading.layout.has_tokens and _is_transposed(reading)),
    # Networks on spectrograms: strides that differ between axes, so the channels form the better grid.
    Rule(
        "another channel axis",
        lambda reading: (
            # Tokens have one layout only, which the shape itself shows.
            not reading.layout.has_tokens
            and reading.channels is not None
            and reading.channels.is_certain
            and not reading.has_known_channels
        ),
    ),
    # Networks with as many channels as rows and columns.
    Rule("known channel axis", lambda reading: reading.has_known_channels, effect="prefer"),
    # Networks with about as many channels as rows, whose channel axis is unknown.
    Rule(
        "exact proportions",
        # Ten channels over 8 x 8 positions can be read as 10 x 8.
        lambda reading: is_in_proportion(reading.layout.grid, reading.size),
        effect="prefer",
    ),
)


# ------------------------------------------------------------------------------------------------------------- modules

_POOLS: tuple[type[nn.Module], ...] = (
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
)

# Rules on the call that returned a grid. They do not hold for a layer that the user names.
MODULE: tuple[Rule[TracedCall], ...] = (
    # VGG: the pooling before its classifier is deeper, but only coarsens the last feature map.
    Rule("pooling", lambda call: isinstance(call.module, _POOLS)),
)


# ------------------------------------------------------------------------------------- activations and gradients

_HARDLY_REACHED = "the score's gradient reaches hardly any of its positions"
# Verdict on a layer whose gradient is zero everywhere.
NOT_REACHED = "no gradient reaches it"

# Verdict on a layer with the frames of clips.
OTHER_FRAMES = "the rows of its batch are not the frames of each clip (N, C, T, H, W) in turn"

# Verdict on a layer that returned the same for several images.
CONSTANT = "it does not depend on the image"

# Verdict on a layer whose batch has several rows for each image.
OTHER_VIEWS = (
    "the model joins several inputs to one batch, and no row of it shows the image, all of it and nothing else; let "
    "the model run these layers on one input after the other, or use a method at the input, e.g. method='occlusion'"
)

# Share of positions that a class token and registers take at most: 5 of 7 x 7 would be 10 %, but they are a prefix. In
# feature maps that a classifier reads, the gradient reaches nearly all positions.
_FEW_POSITIONS = 0.05


class Response(NamedTuple):
    """Response of a layer to changed images, and the gradient of the score at the layer.

    Attributes:
        maps: ``(V, C, *grid)``, activations for the image and its variants.
        gradient: ``(C, *grid)`` for the image; ``None`` if none can be computed.
        variants: Number V of images that the model was given.
        classes: Number of channels that the classes' own score maps have; 0 if the layer cannot hold them.
        origins: First outputs in the forward pass that have as many tokens as the layer, if it is uncertain that they
            come from the image. They have the batch size of the variants, or 1 for parameters.
        has_other_frames: Whether the rows of its batch are not the frames of each clip in turn.
    """

    maps: Tensor
    gradient: Tensor | None
    variants: int
    classes: int = 0
    origins: Sequence[Tensor] = ()
    has_other_frames: bool = False

    @property
    def reached(self) -> Tensor | None:
        """``(*grid)``, True at positions that the gradient reaches; ``None`` without a gradient."""
        return None if self.gradient is None else self.gradient.ne(0).any(0)


def _is_constant(response: Response) -> bool:
    """Check that the layer returned the same for all images, or no batch of them."""
    return len(response.maps) != response.variants or _are_equal(response.maps)


def _is_unreached(response: Response) -> bool:
    """Check that the gradient is zero at all positions."""
    return response.reached is not None and not response.reached.any()


def _is_reached_in_one_row(response: Response) -> bool:
    """Check that the gradient is zero except in one row of a grid with more than two rows."""
    positions = response.reached
    # In a grid of one or two rows, a row is a large part of the image.
    return positions is not None and len(positions) > 2 and positions.ndim == 2 and bool(positions.any(1).sum() == 1)


def _is_reached_in_few_positions(response: Response) -> bool:
    """Check that the gradient is zero except at one position, or at a small share of them."""
    positions = response.reached
    return positions is not None and bool(positions.sum() <= max(1.0, _FEW_POSITIONS * positions.numel()))


def _is_class_scores(response: Response) -> bool:
    """Check that the gradient reaches one channel only, and that there are as many channels as classes."""
    gradient = response.gradient
    if gradient is None or len(gradient) != response.classes:
        return False
    return bool(gradient.flatten(1).any(1).sum() == 1)


def _is_latent(response: Response) -> bool:
    """Check that the tokens start as the same values for all images, as queries do."""
    # An output with batch size 1 is a position embedding, which is added to the tokens of each image.
    first = next((origin for origin in response.origins if len(origin) == response.variants), None)
    return first is not None and _are_equal(first)


def _are_equal(variants: Tensor) -> bool:
    """Check that a layer returned the same values for all images of a batch."""
    return bool((variants == variants[:1]).all())


# Rules on activations and gradients. The first that applies gives the verdict.
RESPONSE: tuple[Rule[Response], ...] = (
    # Swin, BEiT: relative position biases (N, heads, T, T) that modules return.
    Rule("constant output", _is_constant, verdict=CONSTANT),
    # Before the rules on few positions, because the error about an untrained head looks for this verdict.
    # ViT: behind the last attention the class is read from the class token alone.
    Rule("output without gradient", _is_unreached, verdict=NOT_REACHED),
    # Transformers whose attention weights are a module at the top level: the class token reads one row.
    Rule("one row", _is_reached_in_one_row, verdict=_HARDLY_REACHED),
    # Transformers that read class and distillation tokens which are taken for a part of the grid.
    Rule("few positions", _is_reached_in_few_positions, verdict=_HARDLY_REACHED),
    # Score maps are reached in all positions, but in the channel of the target class only.
    # SqueezeNet, fully convolutional segmenters: the last maps are the scores, not features.
    Rule("class scores", _is_class_scores, verdict="it holds the classes' own score maps, not features"),
    # Perceiver: a square number of latents looks like a grid of patches.
    Rule("latents", _is_latent, verdict="it holds tokens that are the model's own, not the image's"),
    # Networks on frames: frames before clips in the batch, or clips (N, T, C, H, W) of three frames.
    Rule("frames in another order", lambda response: response.has_other_frames, verdict=OTHER_FRAMES),
)


# ----------------------------------------------------------------------------------------------- order of the tokens


class TokenOrder(NamedTuple):
    """True if tokens are in the order of the image's rows; ``None`` if their response does not show the order.

    Attributes:
        own: That of a layer.
        others: Those of layers with the same layout, the nearest first.
        is_located: Whether it is certain which of the layer's tokens are cells.
        has_places: Whether each cell responds most to its own band of the image; ``None`` if that was not tested.
    """

    own: bool | None
    others: Sequence[bool | None] = ()
    is_located: bool = True
    has_places: bool | None = None


def _is_in_other_order(order: TokenOrder) -> bool:
    """Check that a layer's tokens are in another order, or those of the nearest layer that shows it."""
    return next((in_order for in_order in (order.own, *order.others) if in_order is not None), None) is False


OTHER_ORDER = "its tokens are not in the order of the image's rows"
# Verdicts on layers with tokens of the image whose places are unknown.
NOT_LOCATED = "it is uncertain which of its tokens are the image's, and which are registers or learned queries"

# Rules on layers of tokens that no other rule excludes, the deepest first, until one is left.
ORDER: tuple[Rule[TokenOrder], ...] = (
    # Hiera: between its stages the tokens of each window lie one after the other.
    Rule("tokens in another order", _is_in_other_order, verdict=OTHER_ORDER),
    # ViT with registers between the patches: a class token and a shifted grid have as many tokens.
    Rule("tokens that begin elsewhere", lambda order: not order.is_located, verdict=NOT_LOCATED),
    # BLIP-2, Perceiver, TokenLearner: learned queries look at the whole image, but form a grid by number.
    Rule(
        "tokens without places",
        lambda order: order.has_places is False,
        verdict="its tokens have no places on the image, as learned queries and pooled tokens have none",
    ),
)

# ------------------------------------------------------------------------------------------------------- projections

# Rules on layers that no other rule excludes, by the name of the layer that an attention projects to queries, keys and
# values; ``None`` for other layers.
PROJECTION: tuple[Rule[str | None], ...] = (
    # CaiT and attention pooling: keys and values each show a part of what their source shows.
    Rule("attention projection", lambda source: source is not None, verdict="a projection of {facts}"),
)
