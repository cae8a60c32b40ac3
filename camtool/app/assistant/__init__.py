"""Tools for an assistant that speaks the Model Context Protocol: ``camtool mcp FOLDER``.

:mod:`~camtool.app.assistant.folders` says what may be read, :mod:`~camtool.app.assistant.tools` answers, and
:mod:`~camtool.app.assistant.server` alone imports the protocol's library.
"""

__all__: list[str] = []
