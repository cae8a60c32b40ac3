"""Benchmarks: each script starts, and the quick ones run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.__main__ import _SHARED
from benchmarks.__main__ import main as run_named
from benchmarks.beyond import Removals, _judge, _keep_heat, _split_by_edge
from benchmarks.engine_limits import _STAGES
from benchmarks.networks import Question
from camtool.geometry.cell_centers import AxisCenters
from camtool.geometry.resampling import build_interpolation_matrix

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in _SHARED)


def run_benchmark(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_benchmarks_are_listed_in_80_columns() -> None:
    lines = run_benchmark().splitlines()
    assert [line.split()[0] for line in lines[2:]] == NAMES
    assert all(len(line) <= 80 for line in lines)


def test_an_unknown_benchmark_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_benchmark("speed")


@pytest.mark.filterwarnings("ignore")  # of the libraries that are compared
@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_prints_its_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", name, "--help"])
    with pytest.raises(SystemExit) as end:
        run_named()
    assert end.value.code == 0
    assert "--help" in capsys.readouterr().out


def test_the_breakdown_times_each_stage() -> None:
    lines = run_benchmark("breakdown", "--turns", "1").splitlines()
    assert len(lines) == 7
    assert all(" ms  " in line for line in lines)


def test_the_stages_of_an_explanation_by_an_engine_exist() -> None:
    missing = [name for functions in _STAGES.values() for owner, name in functions if not hasattr(owner, name)]
    assert not missing


def test_the_machine_is_described() -> None:
    from benchmarks.paired import describe_machine

    described = describe_machine(2)
    assert described["threads"] == 2
    assert described["processor"]


def test_planted_evidence_is_what_the_scene_shows() -> None:
    from benchmarks.truth_scenes import OUTPUTS, draw_planted_scene, draw_without

    for seed in range(20):
        scene = draw_planted_scene(seed)
        named = {OUTPUTS[index] for index in scene.evidence}
        assert ("watermark" in named) == scene.is_marked
        assert ("red" in named) == ("red" in scene.colors)
        assert ("heart and star" in named) == ({"heart", "star"} <= named)
        for index, parts in scene.evidence.items():
            other = draw_without(scene, seed, index)
            changed = (other.image != scene.image).any(-1)
            assert all(changed[part].any() for part in parts)
            assert other.truths[index] != scene.truths[index]


def test_a_former_rule_of_drawing_ends_with_its_block() -> None:
    inward = AxisCenters(1.0, 0.5)  # cells that leave the edges of the input free
    before = build_interpolation_matrix(3, 0, 12, 12, inward, 3)
    with _keep_heat():
        inside = build_interpolation_matrix(3, 0, 12, 12, inward, 3)
    assert not torch.allclose(inside, before)
    assert torch.equal(build_interpolation_matrix(3, 0, 12, 12, inward, 3), before)


def _remove(*cells: tuple[int, int]) -> Removals:
    """Return what is removed from a photo whose evidence is in some of 7 x 7 cells alone."""
    fine = np.zeros((7, 7))
    fine[tuple(zip(*cells, strict=True))] = 1
    masks = torch.arange(48.0).reshape(1, 2, 3, 8)
    question = Question(torch.zeros(1, 3, 224, 224), 0, 1.0)
    return Removals(question, torch.arange(16.0)[None], fine, masks, fine[:, ::-1].copy())


@pytest.mark.parametrize(("mirrored_column", "stays"), [(2, 0), (4, 32)])
def test_an_offset_of_the_content_is_mirrored_with_the_photo(mirrored_column: int, stays: float) -> None:
    """The evidence is in the middle, the heat a cell to the right of it; a cell is 32 pixels."""
    heat, mirrored = np.zeros((2, 224, 224), np.float32)
    heat[96:128, 128:160] = 1
    mirrored[96:128, 32 * mirrored_column : 32 * mirrored_column + 32] = 1
    assert _judge(heat, mirrored, _remove((3, 3)))[3:] == pytest.approx([0, 32, stays])


def test_photos_at_an_edge_are_those_with_most_evidence_there() -> None:
    inside = [_remove((3, 3), (0, 0))] * 9  # half of it at the top
    asked = [*inside, *[_remove((1, 6), (5, 6))] * 8]
    split = _split_by_edge("unseen", asked)
    assert {name: indices.tolist() for name, indices in split.items()} == {
        "unseen": [*range(17)],
        "unseen, 8 at one edge": [*range(9, 17)],
        "unseen, others": [*range(9)],
    }


def test_a_place_that_is_wrong_on_purpose_is_told_and_the_right_one_is_not() -> None:
    from benchmarks.place_proof import STEPS, PartNet, _measure_wrong, paint

    row = _measure_wrong(PartNet(STEPS["mirror"]).eval(), [paint(12, 57), paint(12, 36)], has_places=True)
    assert row["images"] == 2
    assert row["codes"] == {"heat-elsewhere": 1}  # the other image is not mirrored, so it is drawn rightly
    assert row["warned at right places"] == 0
    # The first cell within the mirrored square is drawn at 34.5; its pixels are at 96 - 34.5, which is 13.5 cells away.
    assert row["distance"][1] == pytest.approx(13.5, abs=0.5)
