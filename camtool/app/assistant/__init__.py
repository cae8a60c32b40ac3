"""Tools for an assistant that speaks the Model Context Protocol: ``camtool mcp FOLDER``.

:mod:`~camtool.app.assistant.tools` says what may be read, and answers; :mod:`~camtool.app.assistant.server` alone
imports the protocol's library.
"""

__all__: list[str] = []
