"""``python -m camtool`` is the installed command ``camtool``."""

# Python puts the working directory first on sys.path, where a numpy.py beside the photos would be taken for NumPy. It
# is taken off before anything else is imported, __future__ included; sys and os are loaded already.
import os
import sys


def _leave_working_directory() -> None:
    """Take off sys.path what Python put there for ``-m``, which it does not with ``-P``, ``-I`` or PYTHONSAFEPATH."""
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    try:
        here = os.getcwd()  # noqa: PTH109  pathlib is not loaded yet
    except OSError:  # it was removed
        return
    if not is_safe and sys.path and sys.path[0] in ("", here):
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_directory()

    from camtool.cli.app import main

    main()
