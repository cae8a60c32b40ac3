"""The page: its layout, and which action belongs to which control.

A panel is a module of :mod:`camtool.app.panels` with a function ``build(context)``, see
:class:`camtool.app.workbench.PageContext`. It is called inside a tab of its own, adds its components there and
registers its own events::

    def build(context: PageContext) -> Built:
        import gradio as gr

        output = gr.HTML()
        button = gr.Button("Check")

        @context.guard
        def check(session: Session) -> dict[Any, Any]:
            explanation = context.workbench.explain(session.request)
            return {output: describe(explanation)}

        button.click(check, context.session, [output, context.status], **COMPUTE)
        return Built({output: ""})
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import gradio as gr

from camtool import rendering
from camtool.app import html_fragments
from camtool.app.actions import FILE_KINDS, Actions, Changed, Shown
from camtool.app.drawing import VIEWS, Look
from camtool.app.error_sentences import to_sentence
from camtool.app.html_fragments import Built, read_asset
from camtool.app.panels import detections, painting, places, segments, texts_and_answers, trust
from camtool.app.workbench import COMPUTE, Kind, PageContext, Session, list_methods
from camtool.arguments.message_parts import format_count
from camtool.errors import CamtoolError

_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
_CODE_FONTS = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

# Settings of events that only draw: they do not wait for models.
_AT_ONCE: dict[str, Any] = {
    "queue": False,
    "show_progress": "hidden",
    "trigger_mode": "always_last",
    "api_visibility": "private",
}

# Methods that the comparison begins with.
_COMPARED = ("gradcam", "hirescam", "layercam", "gradcam++", "eigencam", "rivalcam", "faithcam", "scorecam")

Handler: TypeAlias = Callable[..., Any]

_log = logging.getLogger(__name__)


def build_page(actions: Actions) -> gr.Blocks:
    """Build the page."""
    page: gr.Blocks = _Page(actions).blocks
    return page


class _Page:
    """The page while it is built: its components by the names that :class:`Actions` gives them."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._named: dict[str, Any] = {}
        with gr.Blocks(title="camtool", analytics_enabled=False, fill_width=True, delete_cache=(3600, 7200)) as blocks:
            self.blocks = blocks
            self._named["session"] = gr.State(actions.begin())
            self._build_header()
            with gr.Row(elem_id="main"):
                with gr.Column(elem_id="stage", scale=7, min_width=320):
                    self._add("status", gr.HTML)
                    with gr.Tabs(elem_id="tabs") as self._tabs:
                        self._build_tabs()
                with gr.Column(elem_id="side", scale=3, min_width=300):
                    self._build_image_box()
                    self._build_question_box()
                    self._build_save_box()
            self._connect()

    def _add(self, name: str, component: Handler, *args: Any, **settings: Any) -> None:
        """Add a component, whose name is also its id in the page."""
        self._named[name] = component(*args, elem_id=name, **settings)

    # ----------------------------------------------------------------------------------------------------------- layout

    def _build_header(self) -> None:
        names = self._actions.workbench.models.names
        with gr.Row(elem_id="header"):
            logo, question = '<i class="logo"></i>', "What did the model look at?"
            gr.HTML(f'<div class="brand">{logo}<h1>camtool</h1><p>{question}</p></div>', elem_id="brand")
            self._add("model", gr.Dropdown, [*names], value=names[0], label="Model", filterable=True, min_width=180)

    def _build_tabs(self) -> None:
        with gr.Tab("Map", id="map") as self._map_tab:
            self._build_map()
        named = self._named
        context = PageContext(
            self._actions.workbench, named["session"], named["picture"], named["status"], self._guard, self._tabs
        )
        with gr.Tab("Two classes", id="pair") as self._pair_tab:
            self._add("second", gr.Dropdown, [], label="Compare with", filterable=True)
            self._add("pair", gr.HTML)
        with gr.Tab("Compare methods", id="compare"):
            self._build_comparison()
        _build_panels(context)

    def _build_map(self) -> None:
        self._add("picture", gr.HTML, js_on_load=read_asset("picture.js"))
        with gr.Row(elem_id="look"):
            self._add("view", gr.Radio, [*VIEWS], value="overlay", label="View", show_label=False, container=False)
            self._add("alpha", gr.Slider, 0, 1, value=Look().opacity, step=0.01, label="Opacity", min_width=140)
            names, default = [*rendering.COLORMAPS], rendering.DEFAULT_COLORMAP
            self._add("colormap", gr.Dropdown, names, value=default, label="Colors", min_width=110, filterable=False)

    def _build_comparison(self) -> None:
        names = [name for _, name in list_methods()]
        with gr.Row(elem_id="compare-row"):
            self._add("methods", gr.Dropdown, names, value=[*_COMPARED], multiselect=True, label="Methods", scale=5)
            self._compare = gr.Button("Compare", variant="primary", elem_id="compare-button", scale=1, min_width=110)
        self._add("grid", gr.HTML)

    def _build_image_box(self) -> None:
        with gr.Column(elem_id="image-box", elem_classes="box"):
            gr.HTML(read_asset("sources.html"), elem_id="sources", js_on_load=read_asset("sources.js"))
            self._upload = gr.UploadButton("Upload", elem_id="upload", elem_classes="out-of-sight")
            self._add("thumbnails", gr.HTML, js_on_load=read_asset("clicks.js"))
            photos = self._actions.photos
            label = f"Folder, {format_count(len(photos), 'photo')}"
            self._add("folder", gr.Dropdown, photos, value=None, label=label, filterable=True, visible=bool(photos))

    def _build_question_box(self) -> None:
        with gr.Column(elem_id="question-box", elem_classes="box"):
            self._add("bars", gr.HTML, js_on_load=read_asset("clicks.js"))
            self._add("class", gr.Dropdown, [], label="Class, or e.g. dog vs wolf", filterable=True)
            self._add("method", gr.Dropdown, list_methods(), value="gradcam", label="Method", filterable=True)
            self._add("layer", gr.Slider, 0, 1, value=1, step=1, label="Layer, from early to deep", buttons=[])
            self._add("scale", gr.HTML)

    def _build_save_box(self) -> None:
        # What is in a closed accordion is not in the page yet, and the links must be.
        for kind in FILE_KINDS:
            self._add(f"download-{kind}", gr.DownloadButton, kind, elem_classes="out-of-sight")
        with gr.Accordion("Save", open=False, elem_id="save", elem_classes="box"):
            with gr.Row(elem_id="save-row"):
                self._saves = {
                    kind: gr.Button(kind.capitalize(), size="sm", elem_id=f"save-{kind}", min_width=80)
                    for kind in FILE_KINDS
                }
            self._add("snippet", gr.Code, language="python", label="The same in Python", interactive=False)

    # ----------------------------------------------------------------------------------------------------------- events

    def _connect(self) -> None:
        actions, session = self._actions, self._named["session"]
        self._compute(self.blocks.load, actions.start, [], _ALL)
        self._compute(self.blocks.load, actions.show_thumbnails, [], ("thumbnails",))
        # Scripts may call this one, too: with an image, they get what the page shows.
        self._compute(
            self._upload.upload, actions.take_upload, [self._upload, session], _ALL, api_visibility="undocumented"
        )
        self._compute(self._named["thumbnails"].click, self._take_thumbnail, [session], _ALL)
        self._compute(self._named["folder"].input, actions.take_from_folder, [self._named["folder"], session], _ALL)
        self._compute(self._named["model"].input, actions.take_model, [self._named["model"], session], _ALL)
        self._compute(self._named["bars"].click, self._click_class, [session], _MAP)
        for name, action in (
            ("class", actions.choose_class),
            ("method", actions.choose_method),
            ("layer", actions.choose_layer),
            ("second", actions.choose_second),
        ):
            self._compute(self._named[name].input, action, [self._named[name], session], _MAP)
        self._compute(self._pair_tab.select, actions.show_pair, [session], ("session", "pair", "status"))
        self._compute(self._map_tab.select, actions.leave_pair, [session], ("session",))
        self._compute(self._compare.click, actions.compare, [self._named["methods"], session], ("grid", "status"))
        self._connect_look()
        self._connect_saving()

    def _connect_look(self) -> None:
        actions, named = self._actions, self._named
        outputs = [named[name] for name in (*_LOOK, "alpha")]
        controls = [named["view"], named["alpha"], named["colormap"], named["session"]]
        for name in ("view", "alpha"):
            named[name].input(self._to_handler(actions.choose_look), controls, outputs, **_AT_ONCE)
        named["colormap"].input(
            self._to_handler(actions.choose_colors), [named["colormap"], named["session"]], outputs, **_AT_ONCE
        )

    def _connect_saving(self) -> None:
        for kind, button in self._saves.items():
            name = f"download-{kind}"

            def save(session: Session, kind: str = kind, name: str = name) -> Shown:
                return {name: str(self._actions.save(kind, session)), "status": ""}

            saved = self._compute(button.click, save, [self._named["session"]], (name, "status"))
            saved.then(None, js=f"() => window.camtoolDownload('{name}')", api_visibility="private")

    def _take_thumbnail(self, session: Session, event: gr.EventData) -> Shown:
        return self._actions.take_thumbnail(int(event.value), session)

    def _click_class(self, session: Session, event: gr.EventData) -> Shown:
        return self._actions.choose_class(int(event.value), session)

    def _compute(
        self, event: Handler, action: Handler, inputs: Sequence[Any], outputs: Sequence[str], **changed: Any
    ) -> Any:
        """Run an action that may need a model when an event comes."""
        settings = {**COMPUTE, "trigger_mode": "always_last", **changed}
        return event(self._to_handler(action), [*inputs], [self._named[name] for name in outputs], **settings)

    def _to_handler(self, action: Handler) -> Handler:
        """Return the event handler of an action: its results by components instead of by names."""

        def convert(shown: Shown) -> dict[Any, Any]:
            return {self._named[name]: gr.update(**v) if isinstance(v, Changed) else v for name, v in shown.items()}

        return self._guard(action, convert)

    def _guard(self, handler: Handler, convert: Callable[[Any], dict[Any, Any]] = lambda updates: updates) -> Handler:
        """Return an event handler whose errors become one sentence in the status line, and a trace in the log.

        Args:
            handler: Returns, or yields one after the other, new values of components.
            convert: From these to values by components.
        """

        def describe(error: Exception) -> dict[Any, Any]:
            level = logging.INFO if isinstance(error, CamtoolError) else logging.ERROR
            _log.log(level, "%s: %s", handler.__name__, error, exc_info=error)
            return {self._named["status"]: html_fragments.build_status(to_sentence(error), is_error=True)}

        if inspect.isgeneratorfunction(handler):

            @wraps(handler)
            def iterate(*arguments: Any) -> Iterator[dict[Any, Any]]:
                try:
                    yield from map(convert, handler(*arguments))
                except Exception as error:  # noqa: BLE001  # the log has it
                    yield describe(error)

            return iterate

        @wraps(handler)
        def call(*arguments: Any) -> dict[Any, Any]:
            try:
                return convert(handler(*arguments))
            except Exception as error:  # noqa: BLE001  # the log has it
                return describe(error)

        return call


# Components that depend on the map.
_MAP = ("session", "picture", "status", "bars", "class", "scale", "pair", "snippet")

# Components that depend on the image and the model.
_ALL = (*_MAP, "model", "second", "layer", "grid", "folder")

# Components that depend on view, opacity and colors.
_LOOK = ("session", "picture", "status", "snippet")


def build_theme() -> gr.themes.Base:
    """Build the theme. It names fonts of the system only, so the page asks no server for any."""
    return gr.themes.Base(primary_hue="blue", neutral_hue="gray", radius_size="md", font=_FONTS, font_mono=_CODE_FONTS)


# ---------------------------------------------------------------------------------------------------- the panels' tabs


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
    _Tab("texts", "Texts", ("texts",), texts_and_answers.build_texts),
    _Tab("answer", "Answer", ("answer",), texts_and_answers.build_answers),
    _Tab("place", "Click a place", ("classes",), places.build),
    _Tab("paint", "Paint over", ("classes",), painting.build),
    _Tab("trust", "Can I trust it?", ("classes", "boxes", "segments", "other"), trust.build),
)


def _build_panels(context: PageContext) -> None:
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
