"""Objects that collections of garbage leave out: a million, of imports, that live as long as the process."""

from __future__ import annotations

import atexit
import gc


def freeze() -> None:
    """Leave out all objects that there are, and find them again at the end where what is left would be reported."""
    gc.freeze()
    atexit.unregister(_unfreeze)
    atexit.register(_unfreeze)


def _unfreeze() -> None:
    from camtool.runs.process_settings import is_reporting_leaks

    if is_reporting_leaks():
        gc.unfreeze()
