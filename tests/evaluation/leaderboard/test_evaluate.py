"""``camtool.evaluate``: its numbers, its one forward pass, what it resumes, and what it refuses."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image
from torch import nn
from torchvision import transforms

import camtool
from camtool.demo.camnet import load_honest_model
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import CamtoolError, MetricError, TargetError
from camtool.evaluation.leaderboard.measurement import _describe_options
from camtool.evaluation.leaderboard.table import Evaluation, EvaluationRow
from camtool.trust.metrics import METRICS, ClassScore, MetricInputs
from camtool.trust.metrics.sanity import correlate_pearson

IMAGES = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(3))
METHODS = ["gradcam", "layercam", "ablationcam"]


class Counted(nn.Module):
    """A network that counts the images it gets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU())
        self.head, self.calls = nn.Linear(8, 6), 0

    def forward(self, x):
        self.calls += 1
        return self.head(self.features(x).mean((2, 3)))


@pytest.fixture(scope="module")
def net():
    return Counted().eval()


@pytest.fixture(scope="module")
def scenes():
    return [draw_scene(seed) for seed in range(UNSEEN, UNSEEN + 16)]


def test_values_are_those_of_the_metrics_on_the_maps_of_explain(net):
    table = camtool.evaluate(net, IMAGES, METHODS, metrics=["deletion", "single-deletion", "sparsity"])
    assert {row.name for row in table.rows} == {*METHODS, "random"}
    for method in METHODS:
        results = camtool.explain(net, IMAGES, method=method)
        maps = torch.from_numpy(np.stack([each.heatmap for each in results]))
        classes = torch.tensor([each.index for each in results])
        inputs = MetricInputs(
            IMAGES,
            maps,
            probability=ClassScore(net, IMAGES, classes),
            logit=ClassScore(net, IMAGES, classes, "logit"),
        )
        for name in table.metrics:
            expected = METRICS[name].compute(inputs, **({"seed": 0} if "seed" in METRICS[name].options else {}))
            np.testing.assert_allclose(table[method].values[name], expected, atol=1e-5)


def test_rows_are_sorted_by_the_first_metric(net):
    table = camtool.evaluate(net, IMAGES, METHODS, metrics=["deletion", "sparsity"])
    means = [table.compute_interval(row.name, "deletion").mean for row in table.rows]
    assert means == sorted(means)
    assert "deletion ↓ | sparsity ↑" in table.to_markdown()


def test_batches_do_not_change_the_values(net):
    whole, parts = (
        camtool.evaluate(net, IMAGES, METHODS, metrics=["single-deletion", "entropy"], batch_size=size)
        for size in (16, 2)
    )
    for method in METHODS:
        for name in whole.metrics:
            np.testing.assert_allclose(whole[method].values[name], parts[method].values[name], atol=1e-5)


def test_a_second_evaluation_gives_the_same_bits_and_leaves_no_trace(net):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = [parameter.requires_grad for parameter in net.parameters()]
    names = ["road", "infidelity", "cascading-randomization", "deletion"]
    values = [camtool.evaluate(net, IMAGES, ["gradcam"], metrics=names, seed=5)["gradcam"].values for _ in range(2)]
    for name in names:
        assert values[0][name].tobytes() == values[1][name].tobytes()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert not any(module._forward_hooks or module._backward_hooks for module in net.modules())


def test_methods_of_one_pass_share_it(net):
    def count(methods):
        camtool.evaluate(net, IMAGES, methods, metrics=["entropy"])  # finds and keeps the layer
        net.calls = 0
        camtool.evaluate(net, IMAGES, methods, metrics=["entropy"])
        return net.calls

    # Each further method adds only the pass of its own that is timed.
    assert count(["gradcam", "layercam", "hirescam"]) - count(["gradcam", "layercam"]) == 1
    assert count(["gradcam", "layercam"]) - count(["gradcam"]) == 1


def test_each_method_is_evaluated_at_each_layer(net):
    table = camtool.evaluate(net, IMAGES, ["gradcam", "inputxgradient"], ["features.1", "features.3"], ["entropy"])
    assert {row.name: row.layer for row in table.rows} == {
        "gradcam at features.1": "features.1",
        "gradcam at features.3": "features.3",
        "random at features.1": "features.1",
        "random at features.3": "features.3",
        "inputxgradient": "",
    }
    expected = [each.heatmap for each in camtool.explain(net, IMAGES, layer="features.1")]
    own = METRICS["entropy"].function(torch.from_numpy(np.stack(expected)))
    np.testing.assert_allclose(table["gradcam at features.1"].values["entropy"], own, atol=1e-5)


def test_an_interrupted_evaluation_goes_on_where_it_stopped(net, tmp_path):
    path, calls = tmp_path / "results.jsonl", []

    def interrupt(done, total, name):
        calls.append((done, total, name))
        if len(calls) == 4:
            raise KeyboardInterrupt

    settings = {"metrics": ["deletion", "entropy"], "batch_size": 2}
    whole = camtool.evaluate(net, IMAGES, METHODS, **settings)
    with pytest.raises(KeyboardInterrupt):
        camtool.evaluate(net, IMAGES, METHODS, **settings, checkpoint=path, progress=interrupt)
    with path.open("a") as file:
        file.write('{"key": "cut o')
    kept = len(path.read_text().splitlines())
    settings |= {"checkpoint": path}
    resumed = camtool.evaluate(net, IMAGES, METHODS, **settings, progress=lambda *each: calls.append(each))
    assert len(path.read_text().splitlines()) > kept
    assert calls[-1][:2] == (20, 20)
    for name in METHODS:
        np.testing.assert_array_equal(whole[name].values["deletion"], resumed[name].values["deletion"])
    size = path.stat().st_size
    again = camtool.evaluate(net, IMAGES, METHODS, **settings)
    assert path.stat().st_size == size
    assert again.to_json() == resumed.to_json()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_checkpoint_of_another_model_is_not_used(net, tmp_path, is_quantized):
    path, other = tmp_path / "results.jsonl", Counted().eval()
    with torch.no_grad():
        other.head.weight.neg_()
    if is_quantized:
        layers = {nn.Linear}
        net, other = (torch.ao.quantization.quantize_dynamic(one, layers, torch.qint8) for one in (net, other))
    settings = {"methods": ["reciprocam"], "metrics": ["deletion"], "target_class": 0}
    camtool.evaluate(net, IMAGES, **settings, checkpoint=path)
    found = camtool.evaluate(other, IMAGES, **settings, checkpoint=path)
    fresh = camtool.evaluate(other, IMAGES, **settings)
    np.testing.assert_array_equal(found["reciprocam"].values["deletion"], fresh["reciprocam"].values["deletion"])
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(MetricError, match="is not a checkpoint"):
        camtool.evaluate(net, IMAGES, ["gradcam"], checkpoint=tmp_path / "notes.txt")


@pytest.mark.parametrize("kind", [list, np.array])
def test_a_checkpoint_tells_the_options_of_metrics_apart(net, tmp_path, kind):
    """Of long arrays the repr has only both ends."""
    low, high = np.full(1200, 0.01), np.full(1200, 0.01)
    high[3:-3] = 1
    options = {"methods": ["gradcam"], "truth": [[[4, 4, 28, 28]]]}
    for overlaps in (low, high, low):
        options["metrics"] = {"max-box-acc-v2": {"overlaps": kind(overlaps)}}
        kept = camtool.evaluate(net, IMAGES[:1], **options, checkpoint=tmp_path / "results.jsonl")
        expected = (overlaps < 1).mean()
        np.testing.assert_allclose(kept["gradcam"].values["max-box-acc-v2"], expected)
    assert len({_describe_options("mine", {"given": torch.tensor(given)}) for given in (low, high, low)}) == 2


class Fixed:
    def __call__(self, images):
        return 0 * images

    def __repr__(self):
        return "Fixed()"


@pytest.mark.parametrize("removal", [lambda images: 0 * images, Fixed()])
def test_a_checkpoint_takes_no_options_that_it_cannot_tell_apart(net, tmp_path, removal):
    options = {"metrics": {"deletion": {"removal": removal}}}
    with pytest.raises(MetricError, match=rf"^checkpoint: an? {type(removal).__name__} in the options of .*'deletion'"):
        camtool.evaluate(net, IMAGES, ["gradcam"], **options, checkpoint=tmp_path / "results.jsonl")
    zeros, own = (camtool.evaluate(net, IMAGES, ["gradcam"], metrics=one) for one in (["deletion"], options["metrics"]))
    np.testing.assert_array_equal(own["gradcam"].values["deletion"], zeros["gradcam"].values["deletion"])


def test_masks_and_boxes_of_the_photo_are_placed_in_the_input(net):
    """The transform crops the middle half of the photo, so an object at its left edge is at the input's left edge."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 128, 3), np.uint8))
    transform = transforms.Compose([transforms.CenterCrop((64, 64)), transforms.ToTensor()])
    mask = np.zeros((64, 128), bool)
    mask[:, 32:48] = True  # the left quarter of what the model sees
    table = camtool.evaluate(
        net,
        [photo, photo],
        ["gradcam"],
        metrics=["energy-in-mask"],
        truth=[mask, [[32, 0, 48, 64]]],
        transform=transform,
    )
    crop = camtool.explain(net, transform(photo)).heatmap
    expected = crop[:, :16].sum() / crop.sum()
    np.testing.assert_allclose(table["gradcam"].values["energy-in-mask"], [expected] * 2, rtol=1e-4)


def test_class_sensitivity_compares_with_the_least_likely_class(net):
    table = camtool.evaluate(net, IMAGES, ["gradcam"], metrics=["class-sensitivity"])
    with torch.no_grad():
        unlikely = net(IMAGES).argmin(1).tolist()
    one, other = (
        torch.from_numpy(np.stack([each.heatmap for each in camtool.explain(net, IMAGES, asked)]))
        for asked in (None, unlikely)
    )
    np.testing.assert_allclose(table["gradcam"].values["class-sensitivity"], correlate_pearson(one, other), atol=1e-5)


def test_mosaics_are_made_of_all_images(net):
    table = camtool.evaluate(
        net, IMAGES, ["gradcam"], metrics=["grid-pointing-game"], target_class=[0, 1, 2, 3, 4], batch_size=1
    )
    assert np.isfinite(table["gradcam"].values["grid-pointing-game"]).all()


def test_images_may_be_a_series_of_pandas(net):
    images = pytest.importorskip("pandas").Series([*IMAGES], index=[*"badce"])
    options = {"metrics": ["grid-pointing-game"], "target_class": [0, 1, 2, 3, 4]}
    one, other = (camtool.evaluate(net, given, ["gradcam"], **options)["gradcam"] for given in (IMAGES, images))
    np.testing.assert_array_equal(one.values["grid-pointing-game"], other.values["grid-pointing-game"])


def test_truth_may_be_a_series_of_pandas(net):
    masks = [np.arange(32)[:, None].repeat(32, 1) < 6 * (number + 1) for number in range(5)]
    series = pytest.importorskip("pandas").Series(masks, index=[4, 2, 0, 3, 1])
    options = {"metrics": ["energy-in-mask"], "target_class": 0, "batch_size": 2}
    one, other = (camtool.evaluate(net, IMAGES, ["gradcam"], truth=given, **options) for given in (masks, series))
    values = one["gradcam"].values["energy-in-mask"]
    assert len({*values}) == 5
    np.testing.assert_array_equal(other["gradcam"].values["energy-in-mask"], values)


def test_what_has_no_value_says_why(net):
    table = camtool.evaluate(
        net, IMAGES, ["gradcam", "rollout"], metrics=["entropy", "grid-pointing-game"], target_class=0
    )
    assert "no attention" in table.refused["rollout"]
    assert "classes" in table.failed["grid-pointing-game"]
    assert np.isnan(table["gradcam"].values["grid-pointing-game"]).all()
    assert " - |" in table.to_markdown()
    assert str(table).endswith(f"\ngrid-pointing-game: no value for {table.failed['grid-pointing-game']}\n")
    assert json.loads(table.to_json())["values"]["gradcam"]["grid-pointing-game"] == [None] * 5
    with pytest.raises(MetricError, match="no attention"):
        table["rollout"]


def test_wrong_arguments_are_errors(net):
    for arguments, message in (
        ({"metrics": ["deletio"]}, "Did you mean 'deletion'"),
        ({"metrics": ["energy-in-mask"]}, "needs truth="),
        ({"metrics": ["difull"]}, "Split yours by hand.*compute_difull"),
        ({"metrics": []}, "metrics asks for nothing"),
        ({"metrics": 5}, "metrics must be names, or a dictionary from names to options, got 5"),
        ({"metrics": [{"road": {}}]}, "metrics must be names, or a dictionary"),
        ({"metrics": {"road": None}}, r"metrics\['road'\] must be a dictionary of options, got None; {} for none"),
        ({"metrics": {"road": {"fraction": [0.2]}}}, "'road' has no option 'fraction'; .*Did you mean 'fractions'"),
        ({"methods": ["gradcm"]}, "gradcam"),
        ({"methods": []}, "methods asks for nothing"),
        ({"layers": []}, "layers asks for nothing"),
        ({"methods": None}, "methods must be a list of names, got None"),
        ({"layers": [net.features[1]]}, r"layers must be a list of names, got \[ReLU\(\)\]"),
        ({"methods": ["rollout"]}, "none can explain this model"),
        ({"target_class": [1, 2]}, "target_class has 2 entries for 5 images"),
        ({"target_class": torch.eye(5)}, "target_class must be None, an index, .* got list"),
        ({"truth": iter([])}, "truth must be a list with an entry for each image, got a list_iterator"),
        ({"truth": [np.ones((32, 32), bool)]}, "truth has 1 entries for 5 images"),
        ({"truth": [np.ones((9, 9), bool)] * 5}, r"truth\[0\] must be a boolean mask"),
        ({"truth": [np.zeros((32, 32), bool)] * 5}, r"truth\[0\] is outside"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(CamtoolError, match=message):
            camtool.evaluate(net, IMAGES, **({"methods": ["gradcam"]} | arguments))
    with pytest.raises(MetricError, match="images is empty"):
        camtool.evaluate(net, [])
    with pytest.raises(TargetError):
        camtool.evaluate(net, IMAGES, ["gradcam"], target_class=99)
    with pytest.raises(MetricError, match="a classifier is needed"):
        camtool.evaluate(nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES, ["gradcam"])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("photo.png", "got 'photo.png'; give the files of a folder one by one"),
        (b"photo", r"got a bytes; give \[image\]"),
        (Image.new("RGB", (16, 16)), r"got an Image; give \[image\]"),
        (IMAGES[0], r"got a Tensor \(3, 32, 32\), which may be one image; give \[image\], or list\(images\)"),
        (np.zeros((32, 32, 3), np.uint8), r"got a ndarray \(32, 32, 3\), which may be one image"),
        (np.zeros((32, 32), np.uint8), r"got a ndarray \(32, 32\), which may be one image"),
        ((image for image in IMAGES), r"got a generator; give list\(images\)"),
        ({"a.png", "b.png"}, r"got a set; give list\(images\)"),
        ({"a": IMAGES[0]}, r"got a dict; give list\(images.values\(\)\)"),
    ],
)
@pytest.mark.parametrize("call", [camtool.evaluate, camtool.recommend, camtool.audit, camtool.watch])
def test_one_image_is_not_taken_as_a_list(net, call, images, message):
    with pytest.raises(MetricError, match=f"^images must be a list, {message}"):
        call(net, images)


@pytest.mark.parametrize("one", [1, np.int64(1), torch.tensor(1), range(1, 2), torch.tensor([1]), [torch.tensor(1)]])
def test_one_class_is_that_of_all_images(net, one):
    count = 5 if np.ndim(one) == 0 else 1
    found = camtool.evaluate(net, [*IMAGES[:count]], ["gradcam"], "features.1", ["entropy"], target_class=one)
    expected = [each.heatmap for each in camtool.explain(net, IMAGES[:count], [1] * count, layer="features.1")]
    own = METRICS["entropy"].function(torch.from_numpy(np.stack(expected)))
    np.testing.assert_allclose(found["gradcam at features.1"].values["entropy"], own, atol=1e-5)


def test_outputs_of_a_mapping_and_independent_labels_are_scored_by_their_own_link():
    class MultiLabel(Counted):
        config = type("Config", (), {"problem_type": "multi_label_classification"})

        def forward(self, x):
            return {"logits": super().forward(x)}

    model = MultiLabel().eval()
    table = camtool.evaluate(model, IMAGES, ["gradcam"], metrics=["insertion"])
    with torch.no_grad():
        highest = model(IMAGES)["logits"].sigmoid().amax(1)
    # The curve ends at the probability of the whole image; softmax over six classes would stay far below.
    assert (table["gradcam"].values["insertion"] <= 1).all()
    assert table["gradcam"].values["insertion"].mean() > 0.5 * float(highest.mean())


# -------------------------------------------------------------------------------------------------------- the table


def test_tables_and_files_hold_the_same_numbers(net, tmp_path):
    pytest.importorskip("matplotlib")
    pandas = pytest.importorskip("pandas")
    table = camtool.evaluate(net, IMAGES, METHODS, metrics=["deletion", "sparsity"])
    table.save(tmp_path)
    assert {each.name for each in tmp_path.glob("[!.]*")} == {
        f"leaderboard.{kind}" for kind in ("csv", "json", "md", "png")
    }
    frame = table.to_pandas()
    read = pandas.read_csv(tmp_path / "leaderboard.csv", index_col="name")
    np.testing.assert_allclose(frame["deletion low"], read["deletion low"])
    assert list(frame.index) == [row.name for row in table.rows]
    kept = json.loads((tmp_path / "leaderboard.json").read_text())
    np.testing.assert_allclose(kept["values"]["gradcam"]["deletion"], table["gradcam"].values["deletion"])
    assert (tmp_path / "leaderboard.md").read_text() == str(table)
    starts = {".tex": b"\\begin{table}", ".md": b"| method", ".csv": b"name,", ".json": b"{", ".pdf": b"%PDF"}
    for suffix, start in {**starts, ".png": b"\x89PNG", ".svg": b"<?xml"}.items():
        assert table.save(tmp_path / "new" / f"my_table{suffix}").read_bytes().startswith(start)
    latex = table.to_latex()
    assert r"deletion $\downarrow$" in latex
    assert r"\begin{tabular}{lrrr}" in latex
    assert table.save(tmp_path / "folder").is_dir()
    with pytest.raises(
        MetricError, match=r"t\.xlsx': the suffix must be one of \.csv, \.json, \.md, \.tex, \.pdf, \.svg"
    ):
        table.save(tmp_path / "t.xlsx")
    assert not (tmp_path / "t.xlsx").exists()
    first = ", ".join(row.name for row in table.rows[:3])
    assert repr(table) == f"<Evaluation on 5 images by deletion, sparsity: {first}, ...>"
    assert "array" not in repr(table.rows[0])


def test_what_is_infinite_counts_as_no_value(tmp_path):
    values = {"one": [1.0, np.inf], "none": [np.inf, -np.inf], "two": [2.0, 3.0]}
    rows = [EvaluationRow(name, name, "", 1.0, {"max-sensitivity": np.array(own)}) for name, own in values.items()]
    table = Evaluation((*rows,), ("max-sensitivity",), {}, {}, (), 2, 0)
    table.save(tmp_path)
    kept = json.loads((tmp_path / "leaderboard.json").read_text())
    assert [row["max-sensitivity"] for row in kept["rows"]] == [1, None, 2.5]
    assert kept["values"]["one"]["max-sensitivity"] == [1, None]
    assert "| one | 1.00 [n = 1] |" in table.to_markdown()
    assert "| none | - |" in table.to_markdown()


def make_table(values, image_count, metric="deletion"):
    """Return a table of rows with one metric; a row's method is the first word of its name."""
    rows = [EvaluationRow(name, name.split()[0], "", 1.0, {metric: np.array(own)}) for name, own in values.items()]
    return Evaluation((*rows,), (metric,), {}, {}, (), image_count, 0)


def find_bold(table):
    """Return the names of the rows that are bold in Markdown; LaTeX has the same number of them."""
    lines = [line.split("|") for line in table.to_markdown().splitlines() if line.startswith("|")]
    bold = [cells[1].strip() for cells in lines if "**" in cells[2]]
    assert table.to_latex().count(r"\textbf{") == len(bold)
    return bold


NOISE = np.random.default_rng(0).normal(size=40)


@pytest.mark.parametrize(
    ("values", "bold"),
    [
        # Photos differ much more than the methods do: the intervals overlap, and the paired difference is clear.
        ({"a": NOISE, "b": NOISE + 0.1 + 0.01 * NOISE[::-1], "random": NOISE + 1}, ["a"]),
        ({"a": NOISE, "b": NOISE[::-1] + 1e-3, "random": NOISE + 5}, []),
        ({"a": NOISE, "b": NOISE, "random": NOISE + 1}, []),
        ({"a": NOISE, "b": NOISE + 1, "random": NOISE - 1}, []),
        ({"a": NOISE, "b": NOISE + 1, "random at x": NOISE + 2, "random at y": NOISE - 1}, []),
        ({"a": NOISE, "b": NOISE * np.nan, "random": NOISE + 1}, ["a"]),
        ({"a": NOISE}, []),
        ({"random": NOISE}, []),
        ({"a": NOISE * np.nan, "random": NOISE * np.nan}, []),
        # All five have one sign in 1 of 16 cases by chance.
        ({"a": [1, 2, 3, 4, 5], "b": [2, 3, 4, 5, 6.0]}, []),
        ({"a": [1.0], "b": [2.0]}, []),
    ],
)
def test_only_what_is_measurably_better_than_all_others_is_bold(values, bold):
    table = make_table(values, len(next(iter(values.values()))))
    assert find_bold(table) == bold
    # The same values of a metric of which more is better, negated.
    negated = {name: -np.array(own) for name, own in values.items()}
    assert find_bold(make_table(negated, table.image_count, "insertion")) == bold


def test_one_image_has_no_interval_anywhere(tmp_path):
    table = make_table({"a": [0.43], "random": [0.5]}, 1)
    assert np.isnan([*table.compute_interval("a", "deletion")][1:]).all()
    assert "| a | 0.43 |" in table.to_markdown()
    assert "a & 0.43 &" in table.to_latex()
    for text in (table.to_markdown(), table.to_latex()):
        assert "n = 1" in text
        assert "95" not in text
        assert "(0.43" not in text
    record = json.loads(table.to_json())["rows"][0]
    assert (record["deletion"], record["deletion low"], record["deletion high"]) == (0.43, None, None)
    texts = [text.get_text() for text in table.figure().findobj(Text)]
    assert not any("95 %" in text for text in texts)
    assert any("1 image" in text for text in texts)
    points = [line.get_xdata() for axes in table.figure().axes for line in axes.lines if line.get_marker() == "o"]
    low, high = table.figure().axes[0].get_xlim()
    assert all(low <= x <= high for line in points for x in line)


def test_captions_tell_the_count_and_the_level(net):
    table = make_table({"a": NOISE, "b": [*NOISE[:39], np.nan]}, 40)
    markdown, latex = table.to_markdown(), table.to_latex()
    assert "n = 40 images" in markdown
    assert "95 %" in markdown
    assert r"\caption{" in latex
    assert "n = 40 images" in latex
    assert r"95 \%" in latex
    # Where fewer images have a value, the cell says so.
    assert markdown.count("[n = 39]") == latex.count("[n = 39]") == 1


def test_intervals_hold_the_mean_and_shrink_with_more_images():
    from camtool.evaluation.leaderboard.table import bootstrap_mean

    values = np.random.default_rng(0).normal(size=4000)
    few, many = bootstrap_mean(values[:40]), bootstrap_mean(values)
    assert few.low < few.mean < few.high
    # The interval of a mean is 2 * 1.96 standard deviations over the root of the count.
    assert many.high - many.low == pytest.approx(2 * 1.96 / np.sqrt(4000), rel=0.1)
    assert np.isnan(bootstrap_mean(np.array([np.nan])).mean)
    np.testing.assert_equal(bootstrap_mean(np.array([1.0, np.nan])), (1, np.nan, np.nan))


def test_on_scenes_with_truth_good_methods_are_separated_from_random(scenes):
    """And guided backpropagation is at odds with the randomization of the parameters, as published."""
    truth = [scene.objects[0].mask for scene in scenes]
    images = [scene.image for scene in scenes]
    methods = ["gradcam", "gradcam++", "layercam", "faithcam"]
    table = camtool.evaluate(load_honest_model(), images, methods, metrics=["energy-in-mask"], truth=truth)
    random = table.compute_interval("random", "energy-in-mask")
    for method in methods:
        assert table.compute_interval(method, "energy-in-mask").low > random.high
    methods, metric = ["gradcam", "guided-backprop"], "cascading-randomization"
    randomized = camtool.evaluate(load_honest_model(), images, methods, metrics=[metric])
    passed, failed = (randomized.compute_interval(method, metric) for method in methods)
    assert passed.high < failed.low


def test_no_text_of_the_figure_is_cut_off(net):
    figure = camtool.evaluate(net, IMAGES, METHODS, metrics=["sparsity"]).figure()
    renderer, width = FigureCanvasAgg(figure).get_renderer(), figure.bbox.width
    extents = [text.get_window_extent(renderer) for text in figure.findobj(Text) if text.get_text()]
    assert len(extents) > len(METHODS)
    assert all(each.x0 >= 0 and each.x1 <= width for each in extents)


def test_no_texts_of_the_figure_overlap():
    """Names of metrics may be wider than a panel of the usual width."""
    long = ("independent-randomization", "cascading-randomization", "grid-pointing-game", "random-agreement")
    rows = [EvaluationRow(name, name, "layer", 1.0, dict.fromkeys(long, np.zeros(2))) for name in METHODS]
    figure = Evaluation(tuple(rows), long, {}, {}, (), 2, 0).figure()
    renderer = FigureCanvasAgg(figure).get_renderer()
    extents = [text.get_window_extent(renderer) for text in figure.findobj(Text) if text.get_text()]
    assert not any(one.overlaps(other) for one, other in combinations(extents, 2))
