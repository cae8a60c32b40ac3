"""State of one user, the objects that a panel is built with, and the settings of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from camtool.app.drawing import Look
from camtool.app.workbench import Request, Workbench

COMPUTE: dict[str, Any] = {
    "concurrency_limit": 2,
    "concurrency_id": "compute",
    "show_progress": "hidden",
    "api_visibility": "private",
}
"""Settings of events that run a model: two at a time in all, the others wait."""


@dataclass(frozen=True)
class Session:
    """State of one user. It is small: models, images and results are in the :class:`Workbench`.

    Attributes:
        request: Model, image, class, method and layer.
        look: View, opacity and colors.
        second: The class to compare with; None for the second of the ranking.
        shows_pair: Whether the two classes are on the screen, so that they must follow every change.
    """

    request: Request
    look: Look = field(default_factory=Look)
    second: int | str | None = None
    shows_pair: bool = False


@dataclass(frozen=True, eq=False)
class PageContext:
    """Objects that a panel is built with.

    Attributes:
        workbench: Models, images and results.
        session: ``gr.State`` with the :class:`Session`. Its ``change`` event comes after every change of model, image,
            class, method, layer or look.
        picture: ``gr.HTML`` with the picture. Its ``click`` event has ``x`` and ``y``, in pixels of the original image
            (``event: gr.EventData``; ``event.x``).
        status: ``gr.HTML`` with the line below the picture; see :func:`camtool.app.fragments.build_status`.
        guard: Decorator of event handlers. An error reaches the user as one sentence in ``status``, and the log as a
            trace. The handler returns or yields a dictionary from components to values, and ``status`` is among the
            outputs of its event.
        tabs: ``gr.Tabs``, to open a tab: ``gr.update(selected="place")``.
    """

    workbench: Workbench
    session: Any
    picture: Any
    status: Any
    guard: Callable[[Callable[..., Any]], Callable[..., Any]]
    tabs: Any
