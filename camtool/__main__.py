"""``python -m camtool`` is the installed command ``camtool``."""

from __future__ import annotations

from camtool.cli import main

if __name__ == "__main__":
    main()
