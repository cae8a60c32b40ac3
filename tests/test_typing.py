"""What type checkers and editors see of :func:`camtool.explain` and :class:`camtool.Explainer`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from typing_extensions import assert_type

import camtool
from camtool import Evidence, Explainer, Explanation
from camtool.targets import Top

model, photo, batch = nn.Sequential(), Image.new("RGB", (8, 8)), torch.zeros(2, 3, 8, 8)


def mine(evidence: Evidence) -> torch.Tensor:
    return evidence.activations.sum(1)


def score(output: torch.Tensor) -> torch.Tensor:
    return output[0]


# One image and one target.
assert_type(camtool.explain(model, "cat.jpg"), Explanation)
assert_type(camtool.explain(model, Path("cat.jpg"), "tabby"), Explanation)
assert_type(camtool.explain(model, photo, 281, method="layercam", layer="4"), Explanation)
assert_type(camtool.explain(model, photo, score, method=mine), Explanation)
assert_type(camtool.explain(model, photo, None, method="rise", samples=20), Explanation)
camtool.explain(model, photo).save("where.png")

# Several images, targets or methods.
assert_type(camtool.explain(model, ["a.jpg", photo], "tabby"), list[Explanation])
assert_type(camtool.explain(model, ["a.jpg", "b.jpg"], [1, "tabby"]), list[Explanation])
assert_type(camtool.explain(model, photo, [1, 2]), list[Explanation])
assert_type(camtool.explain(model, photo, Top(3)), list[Explanation])
assert_type(camtool.explain(model, ["a.jpg", "b.jpg"], [[1, 2], [3]]), list[list[Explanation]])
assert_type(camtool.explain(model, photo, 1, method=["gradcam", mine]), list[Explanation])
assert_type(camtool.explain(model, batch, torch.tensor([1, 2])), list[Explanation])
assert_type(camtool.explain(model, batch, np.array([1, 2])), list[Explanation])

# A tensor is one image or a batch, which its type does not show: both uses are accepted.
reveal_type(camtool.explain(model, batch, 1))
camtool.explain(model, batch[0], 1).heatmap
camtool.explain(model, batch, 1)[0].heatmap
for result in camtool.explain(model, batch, 1):
    assert_type(result, Explanation)

# An explainer keeps the number of methods in its type.
one, several = Explainer(model, "layercam", batch_size=4), Explainer(model, ["gradcam", "layercam"])
assert_type(one, Explainer[Explanation])
assert_type(several, Explainer[list[Explanation]])
assert_type(Explainer(model, "rise", samples=20), Explainer[Explanation])
assert_type(one(photo), Explanation)
assert_type(one(["a.jpg", "b.jpg"]), list[Explanation])
assert_type(one(batch, torch.tensor([1, 2])), list[Explanation])
assert_type(several(photo, [1, 2]), list[list[Explanation]])


def keep(explainer: Explainer) -> Explanation:  # without a parameter it is an explainer of one method
    return explainer(photo)


# Errors.
camtool.explain(model, photo, batch_size="3")  # line of an error
camtool.explain(model, photo, lables=["cat"])  # line of an error
camtool.explain(photo, model)  # line of an error
camtool.explain(model, photo).sav("where.png")  # line of an error
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return what mypy says of the program, by line."""
    pytest.importorskip("mypy")
    path = tmp_path_factory.mktemp("typing") / "program.py"
    path.write_text(PROGRAM)
    # With the project's own configuration, which is strict, mypy reuses the cache of its last run.
    # In a process of its own: it would keep 700 MB of this one.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert not run.stderr, run.stderr
    messages: dict[int, str] = {}
    for line in run.stdout.splitlines():
        if line.startswith(str(path)) or Path(line.partition(":")[0]).name == path.name:
            _, number, message = line.split(":", 2)
            messages[int(number)] = messages.get(int(number), "") + message
    return messages


def test_each_call_has_its_documented_type(checked: dict[int, str]) -> None:
    lines = PROGRAM.splitlines()
    expected = {number for number, line in enumerate(lines, 1) if "# line of an error" in line or "reveal_type" in line}
    unexpected = {
        number: f"{lines[number - 1]} -> {text}" for number, text in checked.items() if number not in expected
    }
    assert not unexpected, "\n".join(unexpected.values())


def test_wrong_arguments_are_errors(checked: dict[int, str]) -> None:
    lines = PROGRAM.splitlines()
    expected = [number for number, line in enumerate(lines, 1) if "# line of an error" in line]
    missed = [lines[number - 1] for number in expected if "error" not in checked.get(number, "")]
    assert not missed, missed


def test_a_tensor_has_the_attributes_of_an_explanation_and_of_a_list(checked: dict[int, str]) -> None:
    number = next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if "reveal_type" in line)
    assert "ExplanationOrList" in checked[number]
