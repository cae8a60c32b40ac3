"""The page of an audit and its pictures, accuracy by group, and an audit that is read from its file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from camtool.errors import CamtoolError, MetricError
from camtool.evaluation.audit import read_audit, read_verdicts
from camtool.evaluation.audit.images import AuditImages
from camtool.evaluation.audit.report.page import find_picture, read_pictures, resize
from camtool.evaluation.audit.trials import Effect
from camtool.evaluation.leaderboard.table import Interval
from tests.evaluation.audit.results import build_audit, build_finding, write_pictures
from tests.evaluation.audit.test_audit import RED, SIDE, build_net, draw_images, run_audit, to_tensor


def read_pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def test_examples_are_shown_before_and_after(audited):
    result, folder = audited
    assert result.folder == folder
    images, _ = draw_images()
    kinds = read_pictures(folder)[result.findings[0].key]
    assert [len(kinds[kind]) for kind in ("covered", "pasted", "without", "otherwise")] == [4, 3, 0, 0]
    for entry in kinds["covered"]:
        number = int(entry["name"].removeprefix("image "))
        probability, answer = build_net()(images[number][None]).detach().softmax(1)[0].max(0)
        assert (entry["label"], entry["answers"][0]["label"], int(answer)) == ("red", "red", RED)
        assert entry["answers"][0]["probability"] == pytest.approx(float(probability), abs=1e-5)
        assert entry["answers"][1]["label"] != "red"
        before, after = (read_pixels(folder / file) for file in entry["files"])
        # 40 pixels are enlarged by 7: the square begins at 28, and nothing else is changed.
        assert before.shape == after.shape == (280, 280, 3)
        assert np.abs(before - after)[:150, :150].max() <= 12  # JPEG
        assert before[210:266, 210:266, RED].mean() > 200
        assert after[210:266, 210:266, RED].mean() < 60
    for entry in kinds["pasted"]:
        assert [answer["label"] == "red" for answer in entry["answers"]] == [False, True]
        assert read_pixels(folder / entry["files"][1])[210:266, 210:266, RED].mean() > 150


def test_pictures_of_files_with_one_name_are_told_apart(tmp_path):
    images, classes = draw_images()
    for number, image in enumerate(images):
        path = tmp_path / "photos" / "rgb"[classes[number]] / f"{number // 3}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * image.permute(1, 2, 0)).byte().numpy()).save(path)
    files = sorted((tmp_path / "photos").rglob("*.png"))
    labels = ["rgb".index(file.parent.name) for file in files]
    result = run_audit(files, labels, transform=to_tensor, out=tmp_path / "out")
    (entries, *_) = read_pictures(tmp_path / "out")[result.findings[0].key].values()
    captions = re.findall(r"<figcaption[^>]*>([^,<]+)", (tmp_path / "out/index.html").read_text(encoding="utf-8"))
    assert {entry["file"] for entry in entries} <= {*captions}
    assert all(re.fullmatch(r"[rgb]/\d+\.png", caption) for caption in captions)


def test_the_page_shows_the_finding_and_its_pictures(audited):
    result, folder = audited
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert result.findings[0].sentence.replace("'", "&#39;") in text
    sources = re.findall(r'<img src="([^"]+)"', text)
    assert len(sources) >= 14
    assert all((folder / source).is_file() for source in sources)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_pictures_of_findings_that_are_gone_are_removed(copied):
    (copied / "index_files/mine.jpg").write_bytes(b"mine")
    before = {path.name for path in (copied / "index_files").iterdir()}
    assert len(before) > 10
    assert run_audit(out=copied, passes=300).findings == ()
    assert {path.name for path in (copied / "index_files").iterdir()} == {"mine.jpg", "pictures.json"}
    assert "Nothing was tested" in (copied / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("size", "shown"), [((40, 20), (280, 140)), ((200, 288), (200, 288)), ((900, 600), (288, 192))]
)
def test_sizes_of_pictures(size, shown):
    assert resize(np.zeros((*size, 3), np.uint8)).shape == (*shown, 3)


def test_another_page_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("<p>mine</p>")
    monkeypatch.setattr(AuditImages, "record_batch", lambda *arguments: pytest.fail("it began"))
    with pytest.raises(CamtoolError, match=r"index.html' exists and is not an audit; move it"):
        run_audit(out=tmp_path)
    assert (tmp_path / "index.html").read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    "file", ["../secret.jpg", "/etc/secret.jpg", "secret.jpg", "index_files/a.svg", "file:a.jpg", 3]
)
def test_files_elsewhere_are_no_pictures(tmp_path, file):
    write_pictures(tmp_path, "a")
    assert read_pictures(tmp_path)["a"]["covered"]
    path = tmp_path / "index_files/pictures.json"
    content = json.loads(path.read_text())
    content["a"]["covered"][0]["files"][1] = file
    path.write_text(json.dumps(content))
    assert read_pictures(tmp_path) == {}
    assert find_picture(tmp_path, "a") is None
    path.write_text("[1")
    assert read_pictures(tmp_path) == {}


def test_no_text_becomes_markup(tmp_path):
    bad = "</script><img src=x onerror=alert(1)>\u202e"
    finding = build_finding(
        key=bad, name=bad, label=bad, facts=(bad,), also=(bad,), by_group={bad: (2, 1)}, accuracy_by_group={bad: (1, 0)}
    )
    write_pictures(tmp_path, bad, name=bad)
    build_audit(finding, notes=(bad,), not_tested=(bad,), command=bad).save(tmp_path)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert "\u202e" not in text
    assert text.count("</script>") == 2
    assert text.count("&lt;img src=x") > 8


# ------------------------------------------------------------------------------------------------ accuracy by group


def test_accuracy_by_group_is_counted_image_by_image():
    images, classes = draw_images()
    sites = ["a" if number % 2 else "b" for number in range(90)]
    for number in range(0, 90, 9):  # a third of the red images has a pale square elsewhere, in a green one
        images[number, RED] = 0
        images[number, :2, :12, :12] = torch.tensor([0.3, 0.9])[:, None, None]
    (finding,) = run_audit(images, classes, metadata={"site": sites}).findings
    answers = build_net()(images).argmax(1).tolist()
    shares = {}
    for names, column in ((finding.images, 0), (finding.without, 1)):
        for site in "ab":
            numbers = [int(name.split()[1]) for name in names]
            right = [answers[number] == RED for number in numbers if sites[number] == site]
            shares.setdefault(f"site {site}", [math.nan, math.nan])[column] = np.mean(right) if right else math.nan
    assert finding.class_count == len(finding.images) + len(finding.without)
    np.testing.assert_equal({name: list(pair) for name, pair in finding.accuracy_by_group.items()}, shares)
    assert finding.accuracy[1] == 0
    worst = finding.worst_group
    assert (worst.name[-12:], worst.accuracy.mean) == (", without it", 0)
    assert (
        f"Worst group: {worst.name}: 0 % (0 to " in run_audit(images, classes, metadata={"site": sites}).to_markdown()
    )


def test_the_worst_group_has_the_lowest_accuracy_and_then_the_most_images():
    finding = build_finding()
    # 0.6 with it: 5 of site b; 0.6 without it: 5, too, so the first. By hand, Wilson for 3 of 5: 0.231 to 0.882.
    assert (finding.worst_group.name, finding.worst_group.images) == ("site b, with it", 5)
    np.testing.assert_allclose(finding.worst_group.accuracy, (0.6, 0.2307, 0.8824), atol=1e-3)
    more = replace(finding, by_group={"site a": (15, 15), "site b": (12, 5)})
    assert (more.worst_group.name, more.worst_group.images) == ("site b, without it", 7)
    alone = replace(finding, by_group={}, accuracy_by_group={})
    assert (alone.worst_group.name, alone.worst_group.images) == ("without it", 5)
    assert replace(alone, accuracy=None).worst_group is None
    # The only group is not the worst one, and neither is one of several that are all right.
    assert replace(alone, present=25).worst_group is None
    assert replace(alone, accuracy=(1.0, 1.0)).worst_group is None


def test_candidates_that_were_not_confirmed_have_a_reason(tmp_path):
    small = build_finding(key="b", name="a small effect", p=0.0004, q=0.0012)
    audit = build_audit(rejected=(build_finding(key="a", p=0.3, q=0.4), small))
    too_small = (
        "the effect is too small: less than 20 % of the answers and 10 points of probability beyond the controls"
    )
    text = audit.to_markdown()
    assert "'heart', the lower right corner (place): q is above 0.02; p = 0.3, q = 0.4; an effect on less" in text
    assert f"'heart', a small effect (place): {too_small}; p = 0.0004, q = 0.0012; an effect on less" in text
    page = (audit.save(tmp_path) / "index.html").read_text(encoding="utf-8")
    assert page.count(f"<td>{too_small}</td>") == page.count("<td>q is above 0.02</td>") == 1
    assert '<td class="figure">0.0012</td>' in page
    assert "Level (largest q of a finding)" in page


def test_decoys_without_a_test_are_one_sentence(tmp_path):
    untested = build_finding(name="untested decoy", removal=None, transplant=None)
    audit = build_audit(decoys=(build_finding(name="tested decoy"), *[untested] * 9))
    page = (audit.save(tmp_path) / "index.html").read_text(encoding="utf-8")
    assert "untested decoy" not in page
    assert "tested decoy" in page
    assert "9 of them are not listed" in page


def test_one_group_of_images_has_no_interval_of_the_probability(tmp_path):
    effect = Effect(20, 1, Interval(0.75, 0.2, 0.9), 0.1, Interval(0.4, math.nan, math.nan), 0.0002)
    audit = build_audit(build_finding(removal=effect))
    page = (audit.save(tmp_path) / "index.html").read_text(encoding="utf-8")
    assert "+40 points<" in page
    assert "nan" not in audit.to_markdown() + re.sub("<script.*?</script>", "", page, flags=re.DOTALL)
    assert read_audit(tmp_path).to_markdown() == audit.to_markdown()


def test_a_page_says_that_nothing_was_tested(tmp_path):
    audit = build_audit(untested="2 classes <with> too few images.", findings=(), rejected=(), decoys=())
    page = (audit.save(tmp_path) / "index.html").read_text(encoding="utf-8")
    assert "<h1>Nothing was tested</h1>" in page
    assert "2 classes &lt;with&gt; too few images." in page
    assert "No finding does not mean" not in page
    assert read_audit(tmp_path).untested == audit.untested


# -------------------------------------------------------------------------------------------------- audits from files


def test_an_audit_is_read_as_it_was_written(tmp_path):
    audit = build_audit()
    audit.save(tmp_path)
    for path in (tmp_path, tmp_path / "audit.json"):
        again = read_audit(path)
        assert again.to_json() == audit.to_json()
        assert again.to_markdown() == audit.to_markdown()
        assert repr(again.findings) == repr(audit.findings)
        assert again.folder == tmp_path
    assert again.rejected[0].smallest_share == math.inf
    assert math.isnan(again.rejected[1].accuracy[0])


def test_verdicts_beside_the_file_are_read(tmp_path):
    build_audit().save(tmp_path)
    key = "star: patch: a patch"
    (tmp_path / "verdicts.json").write_text(json.dumps({key: "object", "other": "unsure"}))
    audit = read_audit(tmp_path)
    assert [finding.verdict for finding in audit.findings] == [None, "object"]
    audit.mark(audit.findings[0].key, "shortcut").save(tmp_path)
    assert read_verdicts(tmp_path / "verdicts.json") == {
        key: "object",
        "other": "unsure",
        "heart: place: the lower right corner": "shortcut",
    }


@pytest.mark.parametrize("change", [{"findings": 3}, {"findings": [{}]}, {"level": "a"}, {"rejected": None}, None])
def test_other_files_are_refused(tmp_path, change):
    build_audit().save(tmp_path)
    path = tmp_path / "audit.json"
    path.write_text("[]" if change is None else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(MetricError, match=r"audit: .*audit.json cannot be read: .*; give an audit.json"):
        read_audit(path)
    with pytest.raises(MetricError, match=r"nothing.json does not exist; give the folder of an audit"):
        read_audit(tmp_path / "nothing.json")


def test_the_colors_of_unnormalized_inputs_are_stretched(tmp_path):
    """Inputs from -3 to 5 have no black and white: the smallest value is drawn black, the largest white."""
    images, classes = draw_images()
    audited = run_audit(images * 8 - 3 + torch.zeros(1), classes, out=tmp_path)
    for finding in audited.findings:
        pixels = read_pixels(find_picture(tmp_path, finding.key))
        assert pixels.shape == (7 * SIDE, 7 * SIDE, 3)
        assert pixels.max() > 240


def test_a_property_is_shown_shifted_and_without_an_outline(tmp_path):
    random, photos = np.random.default_rng(0), []
    for number in range(60):  # green photos are yellower than blue ones, and nothing else tells them apart
        photo = random.integers(60, 120, (SIDE, SIDE, 3))
        photo[..., RED] //= 3
        photo[..., 1 + number % 2] += 30
        photos.append(photo.astype(np.uint8))
    classes = [1 + number % 2 for number in range(60)]
    result = run_audit(photos, classes, kinds=["property"], transform=to_tensor, out=tmp_path)
    (finding,) = (one for one in result.findings if one.label == "green" and "yellower" in one.name)
    kinds = read_pictures(tmp_path)[finding.key]

    def measure_blue(file):
        pixels = read_pixels(tmp_path / file).mean((0, 1))
        return pixels[2] - pixels[1]

    for entry in kinds["covered"]:
        number = int(entry["name"].removeprefix("image "))
        before, after = map(measure_blue, entry["files"])
        assert before == pytest.approx(photos[number][..., 2].mean() - photos[number][..., 1].mean(), abs=1.5)  # JPEG
        assert before < after - 20
    assert [answer["label"] for answer in kinds["covered"][0]["answers"]] == ["green", "blue"]
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<h3>Evened out</h3>" in text
    assert "<h3>Covered</h3>" not in text
    assert "Evening it out changes the answer" in text
