"""The runtime: checked before it is used, got once, and a sentence where it cannot be had."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from camtool.app.web_page import building as runtime
from camtool.errors import CamtoolError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files that count as the right ones, and an empty cache."""
    hashes = {}
    for name in (runtime.CODE, runtime.BINARY):
        (tmp_path / name).write_bytes(name.encode())
        hashes[name] = hashlib.sha256(name.encode()).hexdigest()
    monkeypatch.setattr(runtime, "_HASHES", hashes)
    monkeypatch.setenv("CAMTOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program named npm on the path, and nothing else of that name."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "npm").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")


def test_a_folder_is_checked(folder: Path) -> None:
    assert runtime.find_runtime(folder) == folder
    (folder / runtime.BINARY).write_bytes(b"another version")
    with pytest.raises(CamtoolError, match=f"is not that of version {runtime.VERSION}"):
        runtime.find_runtime(folder)
    (folder / runtime.CODE).unlink()
    with pytest.raises(CamtoolError, match=f"has no file {runtime.CODE}"):
        runtime.find_runtime(folder)


def test_npm_is_asked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "package" / "dist"
    package.mkdir(parents=True)
    for name in (runtime.CODE, runtime.BINARY):
        (package / name).write_bytes((folder / name).read_bytes())
    write_npm(folder, monkeypatch, f'echo "$2" >> {folder}/asked; tar czf "$5/one.tgz" -C {folder} package')
    kept = runtime.find_runtime()
    assert runtime.find_runtime() == kept
    assert (kept / runtime.BINARY).read_bytes() == runtime.BINARY.encode()
    assert (folder / "asked").read_text(encoding="utf-8") == f"onnxruntime-web@{runtime.VERSION}\n"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no network >&2; exit 1", "npm pack failed: no network"),
        ('echo nothing > "$5/one.tgz"', "npm pack failed"),
        ("exit 0", "npm pack failed"),
    ],
)
def test_what_npm_cannot_do_is_said(script: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npm(folder, monkeypatch, script)
    with pytest.raises(CamtoolError, match=words) as raised:
        runtime.find_runtime()
    assert "--runtime" in str(raised.value)
    assert not (folder / "cache").exists()


def test_without_npm_the_message_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(CamtoolError, match=r"npm is not installed.*onnxruntime-web 1"):
        runtime.find_runtime()
