"""Completion in the shell: commands, options, and values that are known without loading a model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from camtool.cli.app import app
from camtool.cli.options.dataclasses_to_typer import complete_method, complete_target
from camtool.methods import METHODS

CALL = "import sys; from camtool.cli.app import main; sys.argv[0] = 'camtool'; main()"


def complete_class(incomplete: str, **params: str | None) -> list[str]:
    """Return the targets that are offered in a command with these options."""
    context = typer.Context(typer.main.get_command(app))
    context.params = params
    return complete_target(context, incomplete)


@pytest.mark.parametrize(
    ("line", "expected"),
    [("camtool do", ["doctor"]), ("camtool photos/ --meth", ["--method"]), ("camtool layers --js", ["--json"])],
)
def test_the_shell_completes_commands_and_options(line: str, expected: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", "import sys; from camtool.cli.app import main; sys.argv = ['camtool']; main()"],
        env={
            **os.environ,
            "_CAMTOOL_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.split() == expected


def test_methods_are_those_of_the_registry() -> None:
    assert complete_method("") == [*METHODS]
    assert complete_method("layer") == ["layercam"]
    assert complete_method("gradcam,layer") == ["gradcam,layercam"]


def test_classes_are_those_of_labels_or_of_published_weights(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\nbig cow\n")
    forms = ["top1", "top3", "top5", "detections"]
    assert complete_class("top", model="demo") == forms[:3]
    assert complete_class("", model="demo", labels="cat,big cow") == [*forms, "cat", "big cow"]
    assert complete_class("c", model="resnet50", labels=str(tmp_path / "names.txt")) == ["cat"]
    assert complete_class("he", model="demo") == ["heart"]
    assert complete_class("tabb", model="resnet50") == complete_class("tabb", model="torchvision:resnet50") == ["tabby"]
    assert complete_class("perso", model="fasterrcnn_resnet50_fpn") == ["person"]


def test_of_other_models_no_class_is_known_and_nothing_fails_or_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mynets.py").write_text("raise SystemExit('it was run')")
    for model in ("timm:resnet50", "mynets:make", "no such model", "net.onnx", ""):
        assert complete_class("", model=model) == ["top1", "top3", "top5", "detections"]
    assert complete_class("tabby", model="resnet50", weights="mine.pt") == []
    assert complete_class("tabby", model="resnet50", labels="missing.txt") == []
    assert complete_class("tabby") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_values_of_options(tmp_path: Path) -> None:
    command = tmp_path / "camtool"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{CALL}" "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(_CAMTOOL_COMPLETE=source_bash camtool)"
        function press_tab {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            $(complete -p camtool | sed 's/.*-F \\([^ ]*\\) .*/\\1/') camtool
            (IFS='|'; echo "${COMPREPLY[*]}")
        }
        press_tab camtool photos/ --method gradcam,lay
        press_tab camtool photos/ --model demo --labels 'cat,big\\ cow,dog' --target ''
        press_tab camtool slide a.svs --model demo --target he
        press_tab camtool photos/ --model demo --layer st
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    classes = "top1|top3|top5|detections|cat|big\\ cow|dog"
    assert done.stdout.splitlines() == ["gradcam,layercam", classes, "heart", ""]
