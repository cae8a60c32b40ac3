"""The batch class: rows, failures, pickles, and independence from cluster frameworks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import camtool
from camtool import maps
from camtool.runs.cluster import rows
from camtool.runs.cluster.cluster_plan import Photo
from camtool.runs.cluster.explain_batch import ExplainBatch
from tests.runs.cluster.photos import write_scenes


@pytest.fixture(scope="module")
def explain() -> ExplainBatch:
    return ExplainBatch("demo", target=[camtool.targets.Top(2)], method=["gradcam", "layercam"], batch_size=3)


@pytest.fixture
def scenes(tmp_path):
    return [str(path) for path in sorted(write_scenes(tmp_path, 5, broken=(1,)).iterdir())]


def list_rows(columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_rows_are_those_of_the_explainer(explain, scenes, demo):
    found = list_rows(explain({"path": scenes}))
    assert [row["path"] for row in found] == [scenes[0]] * 4 + [scenes[1]] + [p for p in scenes[2:] for _ in range(4)]
    explainer = camtool.Explainer(demo, ["gradcam", "layercam"])
    wanted = [each for many in explainer(scenes[3], [camtool.targets.Top(2)]) for each in many]
    for row, each in zip(found[9:13], wanted, strict=True):
        assert (row["method"], row["layer"], row["label"]) == (each.method, each.layer, each.label)
        assert row["class_index"] == each.index
        assert row["score"] == pytest.approx(each.score, rel=1e-5)
        assert row["probability"] == pytest.approx(each.probability, rel=1e-5)
        assert row["warnings"] == list(map(str, each.warnings))
        assert row["warning_codes"] == [warning.code for warning in each.warnings]
        assert (row["image_height"], row["image_width"]) == each.photo.shape[:2]
        assert abs(rows.decode_heatmap(row) - maps.normalize(each.raw)).max() <= 0.51 / 255
        assert row["overlay"] is None
        assert row["failure"] is None


def test_a_failed_photo_is_one_row_with_the_reason_alone(explain, scenes):
    (row,) = list_rows(explain({"path": [scenes[1]]}))
    assert scenes[1] in row["failure"]
    assert "no image" in row["failure"]
    assert {name for name, value in row.items() if value is not None} == {"path", "failure"}


def test_bytes_give_the_rows_of_their_files(explain, scenes):
    contents = [Path(path).read_bytes() for path in scenes]
    by_path = list_rows(explain({"path": scenes}))
    by_bytes = list_rows(explain({"path": np.array(scenes), "bytes": np.array(contents, dtype=object)}))
    assert [row | {"failure": None} for row in by_path] == [row | {"failure": None} for row in by_bytes]
    assert [row["failure"] is None for row in by_path] == [row["failure"] is None for row in by_bytes]


def test_a_row_without_bytes_is_a_failure(explain):
    (row,) = list_rows(explain({"path": ["a.png"], "bytes": [None]}))
    assert row["failure"] == "a.png: the row holds no image."


def test_a_batch_without_paths_is_refused(explain):
    with pytest.raises(camtool.CamtoolError, match="column 'path'"):
        explain({"bytes": [b""]})


def test_readers_change_neither_order_nor_rows(explain, scenes):
    wanted = explain({"path": scenes})
    parallel = ExplainBatch(
        "demo", target=[camtool.targets.Top(2)], method=["gradcam", "layercam"], batch_size=3, readers=4
    )
    assert parallel({"path": scenes}) == wanted


def test_a_pickle_holds_the_settings_and_gives_the_same_rows(explain, scenes):
    data = pickle.dumps(explain)
    assert len(data) < 2000  # the model has far more bytes
    assert pickle.loads(data)({"path": scenes}) == explain({"path": scenes})


class Net(nn.Module):
    """A classifier that fails for a batch with a bright photo."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Tanh(), nn.Conv2d(6, 6, 3, 1, 1))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.mean((1, 2, 3)) > 0.9).any():
            raise RuntimeError("too bright\nand a second line")
        return self.head(self.trunk(x).mean((2, 3)))


def make_net() -> camtool.Loaded:
    def prepare(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image.resize((16, 16))).copy()).movedim(2, 0) / 255

    return camtool.Loaded(Net(), prepare, ["ant", "bee", "cat"])


def test_a_photo_that_breaks_its_batch_fails_alone(scenes, tmp_path):
    white = tmp_path / "white.png"
    Image.new("RGB", (20, 20), "white").save(white)
    found = list_rows(ExplainBatch(make_net)({"path": [scenes[0], str(white), scenes[2]]}))
    assert [row["failure"] is None for row in found] == [True, False, True]
    assert found[1]["failure"].startswith(str(white))
    assert "too bright" in found[1]["failure"]
    assert "second line" not in found[1]["failure"]


def test_a_class_that_the_model_lacks_is_an_error(scenes):
    with pytest.raises(camtool.TargetError):
        ExplainBatch(make_net, target=7)({"path": scenes})


def test_a_method_that_serves_no_photo_is_a_failure_or_an_error(scenes):
    explain = ExplainBatch(make_net, method="rollout")
    assert all("failure" in row and row["failure"] for row in list_rows(explain({"path": scenes})))
    with pytest.raises(camtool.MethodError):
        list(explain.explain_photos([Photo(scenes[0])], strict=True))


def test_weights_need_the_name_of_a_model():
    with pytest.raises(camtool.CamtoolError, match="weights"):
        ExplainBatch(make_net, weights="a.safetensors")


def test_max_side_reduces_the_picture_but_not_below_what_the_model_needs(tmp_path):
    photo = tmp_path / "large.jpg"
    Image.effect_noise((640, 320), 40).convert("RGB").save(photo)
    (row,) = list_rows(ExplainBatch("demo", max_side=320)({"path": [str(photo)]}))
    assert (row["image_width"], row["image_height"]) == (320, 160)
    (row,) = list_rows(ExplainBatch("demo", max_side=20)({"path": [str(photo)]}))
    assert min(row["image_width"], row["image_height"]) >= 100


def test_the_class_imports_no_cluster_framework_and_no_pyarrow(scenes):
    program = f"""
import sys
from camtool.runs.cluster.explain_batch import ExplainBatch
ExplainBatch("demo")({{"path": {scenes[:1]!r}}})
print(*{{name.partition(".")[0] for name in sys.modules}} & {{"ray", "pyarrow", "fsspec", "daft", "pyspark"}})
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
