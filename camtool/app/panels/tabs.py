"""The tabs of the panels: which ones a model gets, and what happens when the user looks at something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from camtool.app.context import COMPUTE, PageContext, Session
from camtool.app.panels import answers, detections, painting, places, segments, texts, trust
from camtool.app.panels.outputs import Kind
from camtool.app.panels.panel import Built


@dataclass(frozen=True)
class _Tab:
    """One tab.

    Attributes:
        name: Its name in the page.
        title: What the user reads.
        kinds: The kinds of models that it is for.
        build: Builds what is in it.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    build: Callable[[PageContext], Built]


_TABS = (
    _Tab("objects", "Objects", ("boxes",), detections.build),
    _Tab("segments", "Segments", ("segments",), segments.build),
    _Tab("texts", "Texts", ("texts",), texts.build),
    _Tab("answer", "Answer", ("answer",), answers.build),
    _Tab("place", "Click a place", ("classes",), places.build),
    _Tab("paint", "Paint over", ("classes",), painting.build),
    _Tab("trust", "Can I trust it?", ("classes", "boxes", "segments", "other"), trust.build),
)


def build_panels(context: PageContext) -> None:
    """Build the tabs of all panels inside of ``gr.Tabs``, and show those that fit the model."""
    tabs: dict[str, Any] = {}
    built: dict[str, Built] = {}
    for tab in _TABS:
        with gr.Tab(tab.title, id=tab.name, visible=False, elem_id=f"tab-{tab.name}") as tabs[tab.name]:
            built[tab.name] = tab.build(context)
    seen = gr.State(None)

    @context.guard
    def follow(session: Session | None, former: Any) -> dict[Any, Any]:
        if session is None or session.request == former:
            return {seen: former}
        kind = context.workbench.find_kind(session.request.model, session.request.image)
        shown: dict[Any, Any] = {seen: session.request}
        for tab in _TABS:
            shown[tabs[tab.name]] = gr.update(visible=kind in tab.kinds)
            shown.update(built[tab.name].cleared)
            refresh = built[tab.name].refresh
            if refresh is not None and kind in tab.kinds:
                shown.update(refresh(session))
        return shown

    cleared = [component for panel in built.values() for component in panel.cleared]
    context.session.change(follow, [context.session, seen], [seen, *tabs.values(), *cleared, context.status], **COMPUTE)
