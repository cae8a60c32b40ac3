"""The runtime of the page, onnxruntime-web: pinned, checked, and never part of the package."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from camtool.engines.graph_files import find_folder, get_first_line
from camtool.errors import CamtoolError, raise_interrupt

VERSION = "1.30.0"

CODE, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
"""The files that are used: the code, and what it runs."""

GPU_CODE, GPU_BINARY = "ort.jspi.bundle.min.mjs", "ort-wasm-simd-threaded.jspi.wasm"
"""The same with WebGPU, for browsers whose WebAssembly can wait for promises (JSPI); others would load 10 MB more."""

_HASHES = {
    CODE: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    GPU_CODE: "07ec090355e11b342c95436db54da2d0c2bd5b1d319745bfd3337e6bdcf170ac",
    GPU_BINARY: "a54c76f86b0f0d9572380cf1c6292a7b3903716ffcbcd6b0e5c7050bf430eb93",
}
"""File → SHA-256."""

_SECONDS = 300


def find_runtime(folder: Path | None = None) -> Path:
    """Return the folder with the runtime's files.

    Args:
        folder: Where they are, e.g. ``node_modules/onnxruntime-web/dist``; by default the cache, which is filled by
            ``npm pack`` first.

    Raises:
        CamtoolError: They are not there, are others, or npm cannot get them; the message says how to get them.
    """
    if folder is not None:
        problem = _find_problem(folder)
        if problem:
            raise CamtoolError(f"runtime: {problem}; give the folder dist of onnxruntime-web {VERSION}.")
        return folder
    kept = find_folder() / f"onnxruntime-web-{VERSION}"
    if _find_problem(kept):
        _download(kept)
    return kept


def _find_problem(folder: Path) -> str:
    """Return why a folder cannot be used; empty if it can."""
    for name, expected in _HASHES.items():
        path = folder / name
        if not path.is_file():
            return f"{folder} has no file {name}"
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            return f"{path} is not that of version {VERSION}"
    return ""


def _download(kept: Path) -> None:
    """Get the package by npm, and keep its files."""
    npm = shutil.which("npm")
    advice = (
        f"The page needs onnxruntime-web {VERSION}: install npm and go online once, or give the folder dist of that "
        "package as runtime= (--runtime)."
    )
    if npm is None:
        raise CamtoolError(f"npm is not installed. {advice}")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"onnxruntime-web@{VERSION}", "--silent", "--pack-destination", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS, cwd=folder)
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as files:
                for name in _HASHES:
                    content = files.extractfile(f"package/dist/{name}")
                    assert content is not None, name
                    Path(folder, name).write_bytes(content.read())
        except (OSError, ValueError, KeyError, tarfile.TarError, subprocess.SubprocessError) as error:
            raise_interrupt(error)
            reason = getattr(error, "stderr", "") or get_first_line(error)
            raise CamtoolError(f"npm pack failed: {reason.strip()} {advice}") from error
        problem = _find_problem(Path(folder))
        if problem:
            raise CamtoolError(f"npm pack: {problem}. {advice}")
        kept.mkdir(parents=True, exist_ok=True)
        for name in _HASHES:
            unfinished = kept / f"{name}.unfinished"
            shutil.copyfile(Path(folder, name), unfinished)
            unfinished.replace(kept / name)
