"""What a signal handler raises, e.g. TimeoutError, which is an OSError, is no failure of what it interrupts."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import camtool

PACKAGE = Path(camtool.__file__).parent
BROAD = {"OSError", "TimeoutError", "RuntimeError", "Exception", "BaseException"}
"""What a handler may raise, or a class of it."""

THREADS = "the server calls it in threads, and handlers run in the main one"
COMMAND = "the process is that of the command, which sets no handler that raises"
QUICK = "nothing in the block takes long"
SMALL = "the block asks the file system about one file or folder, or reads a small one"
CLEANS = "the block cleans up, and what it leaves does no harm"
AGAIN = "it is raised again, as it is or as an error of the block's caller"

ALLOWED: dict[str, str] = {
    "__main__:_leave_working_directory": QUICK,
    "app/assistant/tools:_is_kind": THREADS,
    "app/assistant/server:_wrap:call": THREADS,
    "app/page:_Page:_guard:call": THREADS,
    "app/page:_Page:_guard:iterate": THREADS,
    "app/error_sentences:hide_folders_in_errors": THREADS,
    "app/server:_run_in_event_loop": QUICK,
    "app/stores:DiskSpace:_iterate_files": THREADS,
    "app/stores:DiskSpace:has_file": THREADS,
    "app/stores:DiskSpace:make_room": THREADS,
    "app/stores:ImageFolder:find": THREADS,
    "app/stores:ModelStore:_load_now": THREADS,
    "arguments/checks:check_integer": QUICK,
    "arguments/checks:parse_device": QUICK,
    "cli/app:main": COMMAND,
    "cli/demo_and_doctor_commands:_measure_folder": COMMAND,
    "cli/options/dataclasses_to_typer:read_config": COMMAND,
    "cli/report_and_replay_commands:write_after_run": COMMAND,
    "engines/graph_files:_hold": QUICK,
    "engines/graph_files:_remove_killed": CLEANS,
    "engines/graph_files:make_once": QUICK,
    "evaluation/audit/state:hold_folder": AGAIN,
    "explaining/device_maps:read_classes": QUICK,
    "hooks/fast_repeated_passes:rounds_to_tf32": QUICK,
    "hooks/model_passes:retry_with_gradients": AGAIN,
    "hooks/private_torch:get_write_counts": QUICK,
    "inputs/downloads:_Deadline:_shut_down": CLEANS,
    "layers/centers:_pass_node": QUICK,
    "models/sources/model_files:_check_files_beside": SMALL,
    "progress:_Display:_write": QUICK,
    "recorder/edits:replace:replace_values": QUICK,
    "rendering/image_writing:remove_temporary_files": CLEANS,
    "rendering/text_drawing:_is_installed": SMALL,
    "runs/cluster/explain_batch:ShardWorker:compute_shard": "it runs in a worker of Ray",
    "runs/job_list:_describe_special": SMALL,
    "runs/job_list:_suggest_path": SMALL,
    "runs/locking:_release": CLEANS,
    "runs/locking:_try_lock": QUICK,
    "runs/run_folder/photo_records:find_result_files": SMALL,
    "runs/run_folder/description:_get_processor": SMALL,
    "runs/run_folder/resumable_folder:FolderState:_has_changed": SMALL,
}


def find_swallowed() -> Iterator[str]:
    """Yield where a broad class of errors is handled, but not by ``raise_interrupt`` or a plain ``raise``."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "except" not in text and "suppress" not in text:
            continue
        tree = ast.parse(text)
        assigned = [
            node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        known = {ast.unparse(node.targets[0]): node.value for node in assigned}
        yield from _walk(tree, path.relative_to(PACKAGE).with_suffix("").as_posix(), known)


def _walk(node: ast.AST, place: str, known: Mapping[str, ast.expr]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = f"{place}:{child.name}" if is_scope else place
        kinds: list[ast.expr] = []
        if isinstance(child, ast.ExceptHandler) and not _passes_on(child):
            kinds = [child.type or ast.Name("BaseException")]
        elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("suppress"):
            kinds = child.args
        if _is_broad(kinds, known):
            yield inner
        yield from _walk(child, inner, known)


def _is_broad(kinds: Sequence[ast.expr], known: Mapping[str, ast.expr]) -> bool:
    """Check classes of errors for a broad one. Constants are looked up; those of other files count as one."""
    names = {name.id for kind in kinds for name in ast.walk(kind) if isinstance(name, ast.Name)}
    constants = {name for name in names if name.isupper()}
    return bool(names & BROAD) or any(name not in known or _is_broad([known[name]], known) for name in constants)


def _passes_on(handler: ast.ExceptHandler) -> bool:
    """Check that the block calls ``raise_interrupt``, or that its own last line raises the error again."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return True
    return any(isinstance(node, ast.Name) and node.id == "raise_interrupt" for node in ast.walk(handler))


def test_every_handler_of_broad_errors_passes_on_what_a_signal_handler_raises() -> None:
    found = {*find_swallowed()}
    new = sorted(found - ALLOWED.keys())
    assert not new, f"use RaiseAs, raise_interrupt or Forgive, or say in ALLOWED why not: {new}"
    assert sorted(ALLOWED.keys() - found) == [], "these need no entry any more"


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("try: run()\nexcept OSError: pass", True),
        ("try: run()\nexcept: pass", True),
        ("with contextlib.suppress(ValueError, RuntimeError): run()", True),
        ("FAULTS = (ValueError, Exception)\ntry: run()\nexcept FAULTS as error:\n if error: raise", True),
        ("FAULTS = (ValueError,)\ntry: run()\nexcept FAULTS: pass", False),
        ("try: run()\nexcept BaseException:\n stop()\n raise", False),
        ("try: run()\nexcept Exception as error: raise_interrupt(error)", False),
    ],
)
def test_the_check_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, is_found: bool) -> None:
    (tmp_path / "module.py").write_text(code)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    assert [*find_swallowed()] == ["module"] * is_found
