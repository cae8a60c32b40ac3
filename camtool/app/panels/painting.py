"""Painting over a part of a photo, and how the prediction moves: a counterfactual by hand."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import Any

import gradio as gr
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from camtool.app.html_fragments import Built, build_hint, describe_heat, draw_card, draw_photo, get_subject, read_asset

# At run time, as Gradio evaluates the annotations of event handlers.
from camtool.app.workbench import COMPUTE, PageContext, Session, read_outputs
from camtool.arguments.checks import check_choice
from camtool.errors import ImageError, ModelError, RaiseAs
from camtool.models import Loaded
from camtool.trust.metrics.removal import start_removal

# Name of a removal of :data:`camtool.trust.metrics.removal.REMOVALS` → what the user reads.
#
# The first one is the default. The others leave an outline, by which a model may still recognize what was painted over.
FILLS = {"inpaint": "filled from around", "blur": "blurred", "mean": "mean color"}

# Classes that are taken from each of the two predictions.
_RANKED_CLASSES = 5

# The fill is computed on a photo of at most this side, in pixels. It is smooth, so larger ones only take longer.
_LONGEST_SIDE = 640


@dataclass(frozen=True)
class ClassChange:
    """A class before and after a part of the photo was painted over.

    Attributes:
        index: The class.
        label: Its name.
        before: Its probability in the photo.
        after: Its probability in the painted photo.
        score_before: Its score in the photo, a logit for most models.
        score_after: Its score in the painted photo.
    """

    index: int
    label: str
    before: float
    after: float
    score_before: float
    score_after: float

    @property
    def change(self) -> float:
        """The change of the probability, -1 to 1."""
        return self.after - self.before

    @property
    def score_change(self) -> float:
        """The change of the score."""
        return self.score_after - self.score_before


@dataclass(frozen=True, eq=False)
class Repainted:
    """A photo with a part painted over, and what the model predicts for it.

    Attributes:
        picture: The painted photo.
        share: The share of the photo that is painted over, 0 to 1.
        top_before: The highest class of the photo.
        top_after: The highest class of the painted photo.
        changes: The classes that are among the highest before or after, the highest probability of the two first.
    """

    picture: Image.Image
    share: float
    top_before: ClassChange
    top_after: ClassChange
    changes: tuple[ClassChange, ...]

    def describe(self) -> str:
        """Return one sentence about what happened."""
        first, now = self.top_before, self.top_after
        moved = f"from {first.before:.0%} to {first.after:.0%}"
        if first.index == now.index:
            return f"Still {first.label}: {moved}, with {self.share:.1%} of the photo painted over."
        return (
            f"The answer changes from {first.label} to {now.label}: {first.label} goes {moved}, with {self.share:.1%} "
            "of the photo painted over."
        )


def repaint(loaded: Loaded, image: Image.Image, mask: NDArray[np.bool_], fill: str = "inpaint") -> Repainted:
    """Paint over a part of a photo, and return what the model predicts before and after, in one forward pass of two.

    Args:
        loaded: A classifier.
        image: The photo.
        mask: ``(H, W)``, true where the user painted.
        fill: What replaces these pixels, a name of :data:`FILLS`.

    Raises:
        ImageError: The mask has another size than the photo, or is empty.
        MetricError: The fill is unknown.
        ModelError: The model is no classifier.
        CamtoolError: The model does not run on the photo.
    """
    check_choice("fill", fill, FILLS)
    photo = image.convert("RGB")
    painted = _check_mask(mask, photo)
    picture = _fill(photo, painted, fill)
    output = read_outputs(loaded, [photo, picture])
    scores, probabilities = output.scores, output.probabilities
    if scores is None or probabilities is None or scores.ndim != 2:
        raise ModelError("painting shows how the probabilities of classes move, and this model is no classifier.")
    ranked = probabilities.sort(dim=1, descending=True, stable=True).indices[:, :_RANKED_CLASSES].tolist()
    changes = {
        one: ClassChange(one, output.get_label(one), *probabilities[:, one].tolist(), *scores[:, one].tolist())
        for one in dict.fromkeys(ranked[0] + ranked[1])
    }
    return Repainted(
        picture=picture,
        share=float(painted.mean()),
        top_before=changes[ranked[0][0]],
        top_after=changes[ranked[1][0]],
        changes=tuple(sorted(changes.values(), key=lambda change: -max(change.before, change.after))),
    )


def _check_mask(mask: Any, photo: Image.Image) -> NDArray[np.bool_]:
    """Return the mask as booleans ``(H, W)``.

    Raises:
        ImageError: It has another size than the photo, or nothing is painted.
    """
    painted = np.asarray(mask)
    if painted.shape != photo.size[::-1]:
        raise ImageError(f"mask has the shape {painted.shape}; it must be {photo.size[::-1]}, as the photo.")
    painted = painted.astype(bool)
    if not painted.any():
        raise ImageError("nothing is painted yet; paint over a part of the photo first.")
    return painted


def _fill(photo: Image.Image, painted: NDArray[np.bool_], fill: str) -> Image.Image:
    """Return the photo whose painted pixels are replaced."""
    small = photo.copy()
    small.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE), Image.Resampling.BOX)
    pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None].float() / 255
    mask = Image.fromarray(painted).convert("L").resize(small.size, Image.Resampling.BOX)
    # A pixel of the small photo that is painted in part holds what was painted over, so it is replaced as well.
    removed = torch.from_numpy(np.asarray(mask) > 0)[None]
    filled = start_removal(pixels, fill)(torch.tensor([0]), removed)[0]
    small = Image.fromarray((filled * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy())
    large = small.resize(photo.size, Image.Resampling.BILINEAR)
    return Image.fromarray(np.where(painted[..., None], np.asarray(large), np.asarray(photo)))


# ------------------------------------------------------------------------------------------------------------ page

_HINT = "Paint over a part of the photo with the mouse or a finger, and see how the prediction moves."

# Limits of what the browser may send as a mask: its own have at most 1024 pixels a side. That of each user is kept.
_MOST_CHARACTERS, _MOST_MASK_PIXELS = 500_000, 2_000_000

_PNG = "data:image/png;base64,"


def read_mask(sent: str, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask ``(H, W)`` that the browser sent as a PNG: painted where it is not transparent.

    Args:
        sent: The PNG as a data URL, in any resolution.
        size: Width and height of the photo.

    Raises:
        ImageError: It is no such PNG, or is too large.
    """
    if not isinstance(sent, str) or not sent.startswith(_PNG) or len(sent) > _MOST_CHARACTERS:
        raise ImageError("the painted mask is no PNG of a usual size; load the page again.")
    text = "the painted mask cannot be read; load the page again."
    with RaiseAs(lambda _: ImageError(text), Base64Error, OSError, SyntaxError):
        # Not Image.open, which other libraries replace: Ultralytics asks for a package where it cannot read a file.
        opened = PngImageFile(BytesIO(b64decode(sent.removeprefix(_PNG), validate=True)))
        if opened.width * opened.height > _MOST_MASK_PIXELS:
            raise ImageError(f"the painted mask has {opened.width} x {opened.height} pixels, which are too many.")
        alpha = opened.convert("RGBA").getchannel("A").resize(size, Image.Resampling.BILINEAR)
    return np.asarray(alpha) > 127


def build(context: PageContext) -> Built:
    """Build the panel: the photo to paint on, and the classes before and after."""
    fill = gr.Radio(
        [(text, name) for name, text in FILLS.items()], value=next(iter(FILLS)), label="Painted pixels are",
        elem_id="paint-fill",
    )  # fmt: skip
    with gr.Row(elem_classes="ct-split"):
        photo = gr.HTML(elem_id="paint-photo", js_on_load=read_asset("paint.js"), min_width=300)
        shown = gr.HTML(build_hint(_HINT), elem_id="paint-result", min_width=280)
    mask = gr.State("")
    outputs, cleared = [mask, shown, context.status], {mask: "", shown: build_hint(_HINT)}

    def show(session: Session, sent: str, name: str) -> dict[Any, Any]:
        loaded, image = get_subject(context, session)
        painted = read_mask(sent, image.size)
        repainted = repaint(loaded, image, painted, name)
        heat = describe_heat(context.workbench.explain(session.request), painted, "in the painted part")
        return {mask: sent, shown: _draw_result(repainted, heat), context.status: ""}

    @context.guard
    def paint(session: Session, name: str, event: gr.EventData) -> dict[Any, Any]:
        return show(session, event.mask, name) if event.mask else {**cleared, context.status: ""}

    @context.guard
    def change_fill(session: Session, sent: str, name: str) -> dict[Any, Any]:
        return show(session, sent, name) if sent else {context.status: ""}

    photo.release(paint, [context.session, fill], outputs, **COMPUTE)
    fill.input(change_fill, [context.session, mask, fill], outputs, **COMPUTE)

    def refresh(session: Session) -> dict[Any, Any]:
        return {photo: _draw_canvas(get_subject(context, session)[1])}

    return Built({photo: "", **cleared}, refresh)


def _draw_canvas(photo: Image.Image) -> str:
    """Return the photo with a transparent canvas over it, a brush and a button to start again."""
    return (
        f'<div class="ct-paint">{draw_photo(photo, "the photo; paint on it")}<canvas></canvas></div>'
        '<div class="ct-brush"><label>Brush <input type="range" min="2" max="30" value="10" aria-label="Brush size">'
        '</label><button type="button" data-paint="clear">Start again</button></div>'
    )


def _draw_result(repainted: Repainted, heat: str) -> str:
    """Return the sentences, the classes before and after, and what the model got."""
    rows = "".join(map(_draw_change, repainted.changes))
    return (
        f'<p class="ct-lead">{escape(repainted.describe())}</p>{build_hint(heat)}'
        '<table class="ct-changes"><thead><tr><th>class</th>'
        "<th>before</th><th></th><th>after</th><th>points</th><th>score</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>{draw_card(repainted.picture, 'What the model got', '')}"
    )


def _draw_change(change: ClassChange) -> str:
    """Return a row of the table: the probability before and after, with two bars, and the change."""
    points = round(100 * change.change, 1) + 0.0  # no negative zero
    style = "ct-up" if points > 0 else "ct-down" if points < 0 else ""
    return (
        f"<tr><th>{escape(change.label)}</th><td>{change.before:.1%}</td>"
        f'<td class="ct-meter"><i class="ct-was" style="width:{change.before:.1%}"></i>'
        f'<i class="ct-is" style="width:{change.after:.1%}"></i></td><td>{change.after:.1%}</td>'
        f'<td class="{style}">{points:+.1f}</td><td>{round(change.score_change, 2) + 0.0:+.2f}</td></tr>'
    )
