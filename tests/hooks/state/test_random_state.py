"""Threads that preserve the random generators at the same time."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import gc, threading, time
from camtool.hooks.state.guard import restore_generators, save_generators

def preserve():
    for _ in range(200):
        restore_generators(save_generators())

gc.callbacks.append(lambda *_: time.sleep(1e-4))  # another thread goes on in the middle of a collection
gc.set_threshold(1)
threads = [threading.Thread(target=preserve) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print("all threads ended")
"""


def test_a_garbage_collection_blocks_no_thread() -> None:
    # In a process of its own: threads that wait for each other could not be ended.
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=120, check=True)
    assert "all threads ended" in done.stdout
