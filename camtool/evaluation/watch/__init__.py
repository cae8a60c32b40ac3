"""Watch: where a network looks while it is trained, with an alarm for classes recognized by a place."""

from camtool.evaluation.watch.probe import Alarm
from camtool.evaluation.watch.watching import ShortcutWarning, Watch, watch

__all__ = ["Alarm", "ShortcutWarning", "Watch", "watch"]
