"""Processes that are forked from one that has imported torch, which takes a fresh one seconds.

They run the real command, or a program in Python.

A fork has the arguments, working directory, environment, streams, single thread and signal handlers of a fresh process,
and imports the command line itself. It does not show what a start does: variables that are read when torch is imported,
modules in the working directory, the largest memory.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.helpers.frozen_objects import freeze

IS_POSSIBLE = sys.platform == "linux"
IMPORTED = (
    *("cv2", "jinja2", "packaging.requirements", "pydantic.type_adapter", "rich.progress", "safetensors.torch"),
    *("torchvision.transforms.v2", "typer"),
    *("camtool.demo.camnet", "camtool.engines.engine_runner", "camtool.explaining.explainer", "camtool.runs.executor"),
    *("camtool.runs.report.page", "camtool.runs.run_folder.replay"),
)
PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl

SERVERS: set[int] = set()
"""The warm processes that this one has started. Whichever case is the first, they import for all."""


class ForkedCommand(subprocess.Popen):
    """A process of ``python -m camtool``: ``subprocess.Popen``, with a fork of the warm process for its start."""

    is_program = False

    def _execute_child(self, args: list[str], *others: Any) -> None:
        cwd, env, pipes = others[4], others[5], others[9:15]
        streams = [stream if stream != -1 else number for number, stream in enumerate((pipes[0], *pipes[3::2]))]
        request = {
            "arguments": args,
            "is_program": self.is_program,
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(env or os.environ),
        }
        server = _start_server(os.getpid())
        socket.send_fds(server, [json.dumps(request).encode()], streams)
        self.pid = int(server.recv(100))
        self._child_created = True
        self._close_pipe_fds(*pipes)


class ForkedProgram(ForkedCommand):
    """A process of ``python -c PROGRAM``; the only argument is the program."""

    is_program = True


def run_program(program: str, timeout: float = 600) -> None:
    """Run a program in Python in a process of its own, and check that it succeeds."""
    options = {"cwd": Path(__file__).parents[2], "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if IS_POSSIBLE:
        process = ForkedProgram([program], **options)
    else:
        process = subprocess.Popen([sys.executable, "-c", program], **options)
    with process:
        try:
            said = process.communicate(timeout=timeout)[1]
        finally:
            process.kill()
    assert process.returncode == 0, said[-3000:]


@cache
def _start_server(_process: int) -> socket.socket:
    """Start the warm process; what it forks becomes a child of this process, which can wait for it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).parents[2])
    program = f"from {__name__} import serve; serve()"
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=theirs,
            stdout=subprocess.PIPE,  # what sys.stdout is in a fork: a stream without a position
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": root},
            cwd="/",
        )

    def stop() -> None:
        ours.close()
        server.communicate(timeout=60)

    atexit.register(stop)
    SERVERS.add(server.pid)
    return ours


def serve() -> None:
    """Fork a process for each request; in the fork, run the command."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    freeze()  # a collection in a fork would look at all of it, and copy it
    server = socket.socket(fileno=os.dup(0))
    while True:
        text, streams, *_ = socket.recv_fds(server, 1 << 20, 3)
        if not text:
            return
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            forked = os.fork()
            if forked == 0:
                break
            os.write(writing, str(forked).encode())
            os._exit(0)  # the fork loses its parent, and is adopted
        os.waitpid(between, 0)
        server.send(os.read(reading, 100))
        for opened in (reading, writing, *streams):
            os.close(opened)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    server.close()
    os.closerange(3, max(reading, writing, *streams) + 1)
    _run(**json.loads(text))


def _run(arguments: list[str], is_program: bool, cwd: str, environment: dict[str, str]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the environment says where it is
    sys.argv[:] = ["-c" if is_program else "camtool", *arguments[is_program:]]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # as for a terminal that is there from the start
    if is_program:
        exec(compile(arguments[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        runpy.run_module("camtool", run_name="__main__", alter_sys=True)
