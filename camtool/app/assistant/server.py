"""The server: it offers the tools over standard input and output, one call at a time."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations

import camtool
from camtool.app.assistant.tools import Answer, Tools
from camtool.app.sentences import to_sentence
from camtool.arguments.messages import map_json
from camtool.errors import CamtoolError
from camtool.runs.text_escapes import escape_bytes

_log = logging.getLogger(__name__)

_INSTRUCTIONS = """camtool explains image models by class activation maps. Call photos first: it lists models and \
images. A map shows which regions raised the score of a class, not why. Tell the user every warning with its remedy. \
Before you say that a model cheats, run audit, and tell what was not tested. Class names are those of the model."""


def build_server(tools: Tools) -> MCPServer[Any]:
    """Return a server that offers the tools. Start it with ``run()``, which ends when standard input does.

    Args:
        tools: The tools.
    """
    server: MCPServer[Any] = MCPServer(
        "camtool", instructions=_INSTRUCTIONS, version=camtool.__version__, log_level="WARNING"
    )
    # Models hold hooks during a call, and one photo at a time bounds the memory.
    lock = threading.Lock()
    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    offered: list[Callable[..., Answer]] = [tools.photos, tools.explain, tools.compare, tools.layers, tools.methods]
    offered += [tools.evaluate, tools.audit]
    for tool in offered:
        server.add_tool(_wrap(tool, lock), annotations=hints, structured_output=False)
    return server


def _wrap(tool: Callable[..., Answer], lock: threading.Lock) -> Callable[..., CallToolResult]:
    """Return the tool with an answer of the protocol: the fields, also as text, and the pictures."""

    @wraps(tool)
    def call(**arguments: Any) -> CallToolResult:
        try:
            with lock:
                answer = tool(**arguments)
        except Exception as error:
            if not isinstance(error, (CamtoolError, OSError)):
                _log.exception("The tool %s failed.", tool.__name__)
            raise ToolError(escape_bytes(to_sentence(error))) from error
        fields = _escape(answer.fields)
        content: list[Any] = [TextContent(type="text", text=json.dumps(fields, ensure_ascii=False))]
        for title, picture in answer.pictures.items():
            content.append(TextContent(type="text", text=escape_bytes(title)))
            content.append(ImageContent(type="image", data=base64.b64encode(picture).decode(), mime_type="image/jpeg"))
        return CallToolResult(content=content, structured_content=fields)

    return call


def _escape(value: Any) -> Any:
    """Return values of JSON with :func:`~camtool.runs.text_escapes.escape_bytes` of all texts in them."""
    return map_json(value, lambda entry: escape_bytes(entry) if isinstance(entry, str) else entry)
