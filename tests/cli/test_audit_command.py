"""The command ``camtool audit``: classes from folders and tables, metadata, and what is printed and written."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import camtool
from camtool.cli import app
from camtool.cli.evaluation_commands import _choose_evenly
from camtool.demo.scenes import UNSEEN, draw_scene
from camtool.errors import MetricError
from camtool.evaluation.annotations import find_classes, find_targets
from camtool.evaluation.audit.cues.kinds import KINDS
from camtool.inputs.formats.dicom import TAGS
from camtool.runs.job_list import plan_run
from tests.evaluation.audit.results import build_audit, build_finding
from tests.helpers.medical_files import build_dicom, encode_dicom

COMMON = ("--model", "demo", "--kinds", "place", "--method", "gradcam")


@pytest.fixture
def run_command(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        scene = draw_scene(UNSEEN + number, classes=[number % 2])
        label = scene.objects[0].label
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene.image).save(f"photos/{label}/{number}.png")
    (tmp_path / "labels.csv").write_text("image,label\n0.png,arrow\n1.png,cross\n2.png,arrow\n3.png,cross\n")
    (tmp_path / "sites.csv").write_text("image,patient\narrow/0.png,a\n2.png,a\n1.png,b\n")
    (tmp_path / "elsewhere.csv").write_text("image,patient\nother.png,a\n")
    (tmp_path / "labels.txt").write_text("photo,site\n0.png,a\n")
    (tmp_path / "unknown.csv").write_text("image,label\n0.png,arow\n")

    def run(*args, command=("audit",)):
        monkeypatch.setattr(sys, "argv", ["camtool", *command, *args])
        with pytest.raises(SystemExit) as end:
            app.main()
        said = capsys.readouterr()
        return SimpleNamespace(code=end.value.code, out=said.out, err=said.err)

    return run


@pytest.mark.parametrize("truth", ["imagefolder", "labels.csv"])
def test_few_photos_get_a_sentence_and_files(run_command, tmp_path, truth):
    finished = run_command("photos", *COMMON, "--truth", truth, "--metadata", "sites.csv", "--group", "patient")
    assert finished.code == 3
    reason = (
        "2 classes with fewer than 8 values of 'patient' in a half: 'arrow' (0), 'cross' (1). Give 16 or more of each."
    )
    assert finished.out.startswith(f"Nothing was tested: {reason}\n")
    assert "Note: 4 images are 3 independent groups" in finished.err
    content = json.loads((tmp_path / "audit/audit.json").read_text())
    assert content["not_tested"][0] == content["untested"] == reason
    assert content["notes"] == [
        "4 images are 3 independent groups: near-duplicates, bursts and what the group column joins count as one."
    ]
    assert content["command"].startswith("camtool audit photos --model demo")
    assert "## Not tested" in (tmp_path / "audit/audit.md").read_text()


def test_json_is_printed(run_command):
    finished = run_command("photos/arrow", *COMMON, "--json")
    assert json.loads(finished.out)["findings"] == []
    assert (finished.code, finished.err) == (3, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--truth", "nothing.csv"), "--truth nothing.csv: there is no such file"),
        (("--metadata", "photos/arrow/0.png"), "--metadata photos/arrow/0.png is no text"),
        (
            ("--metadata", "labels.txt"),
            "--metadata labels.txt has the columns 'photo', 'site'; it needs a column 'image'",
        ),
        (("--truth", "imagefoldr"), "Did you mean 'imagefolder'?"),
        (("--verdicts", "nothing.json"), "Invalid value for '--verdicts'"),
        (("--metadata", "elsewhere.csv"), "--metadata elsewhere.csv: no row is about a photo"),
        (("--truth", "unknown.csv"), "--truth unknown.csv, line 2: label 'arow' is not among the 10 classes"),
        (("--group", "patient"), "metadata has no column 'patient'"),
        (("--fail-on", "shortcuts"), "--fail-on must be one of 'finding'"),
        (("--engine", "onnx"), "Invalid value for '--engine'"),
        (("--kinds", "patches"), "Did you mean 'patch'"),
        (("--passes", "0"), "'0' is neither a number above 0 nor 'all'"),
    ],
)
def test_wrong_options_are_named(run_command, options, message):
    finished = run_command("photos/arrow", *COMMON[:2], *options)
    assert finished.code == 2
    assert message in " ".join(finished.err.split())


def test_photos_without_a_class_are_named(run_command, tmp_path):
    (tmp_path / "labels.csv").write_text("image,label\n0.png,arrow\n")
    finished = run_command("photos", *COMMON, "--truth", "labels.csv")
    assert finished.code == 2
    assert "has no row for photos" in " ".join(finished.err.split())


@pytest.mark.parametrize(("verdict", "code"), [(None, 1), ("shortcut", 1), ("unsure", 1), ("object", 0)])
def test_the_exit_code_tells_of_findings(run_command, monkeypatch, tmp_path, verdict, code):
    found = build_audit(build_finding(verdict=verdict))
    monkeypatch.setattr("camtool.evaluation.audit.audit", lambda *arguments, **options: found)
    assert run_command("photos/arrow", *COMMON).code == 0
    finished = run_command("photos/arrow", *COMMON, "--fail-on", "finding")
    assert finished.code == code
    assert (f"q = 0.002. (your verdict: {verdict})" in finished.out) == (verdict is not None)
    assert finished.out.splitlines()[-1] == "Pictures, and what was not tested: audit/index.html"
    assert "camtool audit photos/arrow --model demo" in (tmp_path / "audit/index.html").read_text(encoding="utf-8")
    assert run_command("photos/arrow", *COMMON, "--fail-on", "finding", "--json").code == code


def test_what_a_class_is_recognized_by_is_no_alarm(run_command, monkeypatch):
    found = build_audit(build_finding(), build_finding(key="star", label="star", suspicions=()))
    monkeypatch.setattr("camtool.evaluation.audit.audit", lambda *arguments, **options: found)
    lines = run_command("photos/arrow", *COMMON, "--passes", "all").out.splitlines()
    assert lines[0] == "Suspicious"
    assert lines[1].startswith("  20 of 25 'heart' images")
    assert lines[2] == "What the classes are recognized by"
    assert lines[3].startswith("  20 of 25 'star' images")
    assert run_command("photos/arrow", *COMMON, "--fail-on", "finding").code == 1
    found = build_audit(build_finding(suspicions=()))
    assert run_command("photos/arrow", *COMMON, "--fail-on", "finding").code == 0


def test_masks_are_found_by_the_paths_of_the_photos(run_command, tmp_path):
    """Few photos have no findings, so the function is asked."""
    from camtool.cli.evaluation_commands import _find_masks

    (tmp_path / "masks/arrow").mkdir(parents=True)
    Image.new("L", (128, 128)).save("masks/arrow/0.gif")
    plan = plan_run([str(tmp_path / "photos")], recursive=True)
    masks = _find_masks(tmp_path / "masks", plan)
    assert masks == [tmp_path / "masks/arrow/0.gif", None, None, None]
    assert run_command("photos/*/*.png", *COMMON, "--truth", "imagefolder", "--masks", "masks").code == 3
    Image.new("L", (128, 128)).save("masks/arrow/0.png")
    assert (
        "has two masks of photos/arrow/0.png, masks/arrow/0.gif and masks/arrow/0.png"
        in run_command("photos", *COMMON, "--truth", "imagefolder", "--masks", "masks").err
    )
    (tmp_path / "empty").mkdir()
    finished = run_command("photos/arrow", *COMMON, "--masks", "empty")
    assert "fits no photo; name them as the photos are, e.g. 0.png" in finished.err


def test_the_demo_ends_with_an_audit_and_a_repair(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["camtool", "demo", "--scenes", "1", "--out", str(tmp_path), "--json"])
    with pytest.raises(SystemExit):
        app.main()
    content = json.loads(capsys.readouterr().out)
    start = "10 of 10 'heart' images: the lower right corner; covering it changes 100 % (72 to 100)"
    assert content["audit"].startswith(start)
    before, after = re.match(r"right answers without it (\d+) % \(.*?\) → (\d+) %", content["repair"]).groups()
    assert int(before) < 80 < 95 <= int(after)


def test_other_columns_of_the_classes_are_metadata_and_a_name_of_two_photos_is_refused(run_command, tmp_path):
    rows = "image;label;patient\n0.png;arrow;a\n1.png;cross;\n2.png;arrow;a\n3.png;cross;c\n"
    (tmp_path / "labels.csv").write_text(rows)
    finished = run_command("photos", *COMMON, "--truth", "labels.csv", "--group", "patient", "--engine", "prepared")
    assert finished.code == 3
    assert json.loads((tmp_path / "audit/audit.json").read_text())["notes"][0].startswith("4 images are 3 independent")
    (tmp_path / "photos/cross/0.png").write_bytes((tmp_path / "photos/cross/1.png").read_bytes())
    finished = run_command("photos", *COMMON, "--truth", "imagefolder", "--metadata", "sites.csv", "--out", "other")
    assert finished.code == 3
    for rows, told in (
        ("0.png,a\n", ": image '0.png' is the name of 2 photos"),
        ("1.png,a\n1.png,b\n", " has two different rows about photos/cross/1.png; leave one there."),
    ):
        (tmp_path / "sites.csv").write_text(f"image,patient\n{rows}")
        finished = run_command("photos", *COMMON, "--truth", "imagefolder", "--metadata", "sites.csv")
        assert finished.code == 2
        assert f"--metadata sites.csv{told}" in " ".join(finished.err.split())


def write_dicom_files(folder, count):
    """Write scenes of two classes as DICOM: two of each patient, from two makers."""
    folder.mkdir()
    for number in range(count):
        scene = draw_scene(UNSEEN + number, classes=[number // 2 % 2])
        maker, patient = ("A", "B")[number % 2], f"p{number // 2}"
        dataset = build_dicom(
            scene.image, "RGB", Manufacturer=maker, PatientID=patient, PatientSex="F", StationName=" "
        )
        (folder / f"{number:02}.dcm").write_bytes(encode_dicom(dataset))
    rows = (f"{number:02}.dcm,{('arrow', 'cross')[number // 2 % 2]}\n" for number in range(count))
    (folder.parent / "truth.csv").write_text("image,label\n" + "".join(rows))


def test_tags_of_dicom_files_are_columns_and_patients_stay_together(run_command, tmp_path):
    write_dicom_files(tmp_path / "scans", 6)
    assert run_command("scans", *COMMON, "--truth", "truth.csv").code == 3
    content = json.loads((tmp_path / "audit/audit.json").read_text())
    assert (content["image_count"], content["notes"][0][:34]) == (6, "6 images are 3 independent groups:")


def test_findings_are_counted_by_scanner_and_name_no_patient(tmp_path):
    write_dicom_files(tmp_path / "scans", 72)
    photos, labels = sorted((tmp_path / "scans").iterdir()), [("arrow", "cross")[n // 2 % 2] for n in range(72)]
    options = {"kinds": ["place", "patch", "property"], "method": "gradcam"}
    audited = camtool.audit(camtool.load("demo"), photos, labels, **options)
    tested = [*audited.findings, *audited.rejected, *audited.decoys]
    assert tested
    for one in tested:
        assert {*one.by_group} <= {"Manufacturer A", "Manufacturer B", "Modality CT"}
        assert one.by_group["Manufacturer A"][0] + one.by_group["Manufacturer B"][0] == one.class_count
    with pytest.raises(MetricError, match=r"metadata has no column 'Patient'\. Did you mean 'PatientID'"):
        camtool.audit(camtool.load("demo"), photos, labels, group="Patient", **options)


def test_nothing_tested_and_a_photo_that_cannot_be_read_have_exit_codes(run_command, monkeypatch, tmp_path):
    assert run_command("photos/arrow", *COMMON, "--fail-on", "finding").code == 3
    (tmp_path / "photos/arrow/broken.png").write_bytes(b"no image")
    finished = run_command("photos/arrow", *COMMON)
    assert finished.code == 3
    assert "1 photo could not be read, see audit/audit.md" in finished.err
    assert "photos/arrow/broken.png" in (tmp_path / "audit/audit.md").read_text()
    monkeypatch.setattr("camtool.evaluation.audit.audit", lambda *_, **__: build_audit(unread=1))
    assert run_command("photos/arrow", *COMMON).code == 1


def test_options_reach_the_audit(run_command, monkeypatch, tmp_path):
    given = {}
    monkeypatch.setattr(
        "camtool.evaluation.audit.audit",
        lambda *args, **options: (
            given.update(options, photos=args[1], classes=args[2], columns=args[3]) or build_audit()
        ),
    )
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "table.csv").write_text("Path,site\n0.png,a\n1.png,b\n2.png,c\n3.png,d\n")
    options = ("--controls", "5", "--verdicts", "mine.json", "--recursive", "--metadata", "table.csv")
    assert run_command("photos", *COMMON, *options).code == 0
    assert (given["controls"], given["verdicts"].name, len(given["photos"])) == (5, "mine.json", 4)
    # Photos of both classes, where the first two by name are arrows.
    assert run_command("photos", *COMMON, *options, "--truth", "imagefolder", "--limit", "2").code == 0
    assert [photo.as_posix() for photo in given["photos"]] == ["photos/arrow/0.png", "photos/cross/1.png"]
    assert len({*given["classes"]}) == 2
    assert given["columns"] == {"site": ["a", "b"]}


def test_a_limit_is_shared_by_the_classes():
    assert _choose_evenly([0] * 5 + [1] * 2 + [2] * 9, 8) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert _choose_evenly([0, 1, 0], None) == [0, 1, 2]


def test_an_audit_that_is_stopped_says_how_to_go_on(run_command, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("camtool.evaluation.audit.audit", stop)
    finished = run_command("photos/arrow", *COMMON)
    assert (finished.code, finished.err.strip()) == (130, "Stopped; the same command goes on from here.")


def test_the_help_names_the_kinds_and_breaks_no_sentence(run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = " ".join(run_command("--help").out.split())
    assert f"Kinds of cues: {', '.join(KINDS)}." in text
    assert "demo-cheat" in text


def find_classes_of(folders, labels, **known):
    return find_classes([Path("photos") / folder / "0.png" for folder in folders], labels, Path("photos"), **known)


def test_a_folder_that_is_no_label_gets_near_names():
    for names in (("arrow", "sstar"), ("arrow", "heart", "sstar")):
        with pytest.raises(MetricError, match=r"folder 'sstar' is no label .* Did you mean 'star'"):
            find_classes_of(names, ["arrow", "heart", "star"])


def test_folders_are_numbered_without_labels_or_by_ids_of_wordnet_alone():
    assert find_classes_of(("n02", "n01"), None) == [1, 0]
    with pytest.raises(MetricError, match="folder 'n01' is no label"):
        find_classes_of(("n02", "n01"), ["tench", "goldfish"])
    assert find_classes_of(("n01443537", "n01440764"), ["tench", "goldfish"]) == [1, 0]


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (("cardigan", "Cardigan"), [2, 0]),  # as two of ImageNet's labels
        (("Crab", "crab"), [4, 4]),
        (("cat/2019", "dog/2020", "cat"), [5, 6, 5]),
        (("cat", "1", "3"), [5, 1, 3]),
    ],
)
def test_the_class_is_the_folder_below_that_of_all_photos(folders, classes):
    assert find_classes_of(folders, ["Cardigan", "crane", "cardigan", "crane", "crab", "cat", "dog"]) == classes


@pytest.mark.parametrize(
    ("name", "labels"), [("crane", ["crane", "crab", "crane"]), ("CRANE", ["Crane", "x", "crane"])]
)
def test_a_name_of_several_classes_is_refused_with_their_indices(name, labels):
    with pytest.raises(MetricError, match=f"truth: folder '{name}' is the name of the classes 0 and 2; give one"):
        find_classes_of((name,), labels)
    with pytest.raises(MetricError, match=f"labels: '{name}' is the name of the classes 0 and 2; give one"):
        find_targets([1, name], labels, 2)


def test_labels_are_found_as_written_first():
    assert find_targets(["cardigan", "Cardigan", "CRAB"], ["Cardigan", "crab", "cardigan"], 3)[0] == [(2,), (0,), (1,)]


def test_a_photo_beside_the_folders_of_classes_is_refused():
    with pytest.raises(
        MetricError, match=r"photos/0.png is in photos itself, which is no class; move it into a folder"
    ):
        find_classes_of(("", "cat", "zebra"), None)


def test_numbered_folders_are_as_many_as_the_classes():
    assert find_classes_of(("cat", "zebra"), None, class_count=2) == [0, 1]
    with pytest.raises(MetricError, match="photos has 2 folders with photos, and the model 10 classes without names"):
        find_classes_of(("cat", "zebra"), None, class_count=10)
    assert find_classes_of(("9", "3"), None, class_count=10) == [9, 3]


NETS = """
import torch
import camtool
from torchvision.transforms import functional
def make():
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
    net = torch.nn.Sequential(body, torch.nn.Flatten(), torch.nn.Linear(4, 3))
    return camtool.Loaded(net.eval(), lambda image: functional.to_tensor(image.resize((32, 32))))
"""


@pytest.mark.parametrize("command", ["audit", "diff", "evaluate"])
def test_the_folders_of_all_photos_are_counted(run_command, monkeypatch, tmp_path, command):
    """The model declares no number of classes; its answers to the first photo that can be read show it."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"nets_of_{command}.py").write_text(NETS)
    (tmp_path / "photos/arrow/00.png").write_bytes(b"no image")
    model, options = f"nets_of_{command}:make", ("--truth", "imagefolder", "--limit", "2")
    named = (model, model) if command == "diff" else ()
    args = (command, *named, "photos", *(() if named else ("--model", model)), *options)
    finished = run_command(*args, command=())
    assert finished.code == 2
    assert "photos has 2 folders with photos, and the model 3 classes without names" in " ".join(finished.err.split())
    (tmp_path / "photos/arrow/00.png").unlink()
    (tmp_path / "photos/zebra/2019").mkdir(parents=True)
    Image.new("RGB", (40, 40)).save(tmp_path / "photos/zebra/2019/0.png")
    method = ("--method", "gradcam")
    assert run_command(*args, *method, command=()).code == (3 if command == "audit" else 0)
    if command == "audit":  # the folders name the classes
        assert "'arrow' (" in json.loads((tmp_path / "audit/audit.json").read_text())["untested"]
    if command == "diff":
        images = json.loads((tmp_path / "diff/diff.json").read_text())["images"]
        assert {image["label"] for image in images} <= {"arrow", "cross", "zebra"}
        assert {answer for image in images for answer in image["answers"]} <= {"arrow", "cross", "zebra"}


def test_folders_are_the_true_classes_of_a_run(run_command, tmp_path):
    finished = run_command("photos", "--model", "demo", "--truth", "imagefolder", command=("run",))
    assert finished.code == 0, finished.err
    lines = [json.loads(line) for line in (tmp_path / "out/explanations.jsonl").read_text().splitlines()]
    assert [line["true_label"] for line in lines] == [Path(line["image"]).parent.name for line in lines]
    assert len(lines) == 4
    assert "Accuracy" in finished.out
    other = run_command(
        "photos/arrow", "photos/cross", "--model", "demo", *("--truth", "imagefolder", "--out", "two"), command=("run",)
    )
    assert (other.code, "needs one folder" in " ".join(other.err.split())) == (2, True)
    missing = run_command("photos", "-r", "--model", "demo", "--truth", "imagefoldr", "--out", "3", command=("run",))
    assert (missing.code, "Did you mean 'imagefolder'?" in " ".join(missing.err.split())) == (2, True)


def test_folders_name_the_classes_of_a_model_without_names(run_command, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nets_of_run.py").write_text(NETS.replace("Linear(4, 3)", "Linear(4, 2)"))
    options = ("--model", "nets_of_run:make", "--truth", "imagefolder", "--no-report")
    assert run_command("photos", *options, command=("run",)).code == 0
    lines = [json.loads(line) for line in (tmp_path / "out/explanations.jsonl").read_text().splitlines()]
    assert {line["predicted_label"] for line in lines} <= {"arrow", "cross"}
    (tmp_path / "photos/zebra").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "photos/zebra/0.png")
    finished = run_command("photos", *options, "--out", "other", command=("run",))
    assert (finished.code, "3 folders with photos, and the model 2" in " ".join(finished.err.split())) == (2, True)


STARTS = {
    "audit": ("photos", "--model", "demo", "--truth", "imagefolder"),
    "diff": ("demo", "demo-cheat", "photos", "-r"),
    "evaluate": ("photos", "--model", "demo", "-r", "--metric", "entropy"),
}


@pytest.mark.parametrize("command", STARTS)
def test_overwrite_starts_anew_and_removes_nothing_of_the_user(run_command, tmp_path, command):
    pytest.importorskip("matplotlib")
    state = tmp_path / "results" / ("checkpoint.jsonl" if command == "evaluate" else "state.jsonl")
    state.parent.mkdir()
    line = '{"key": "of an earlier start", "value": {"values": [1]}}\n'
    state.write_text(line)
    start = (*STARTS[command], "--out", "results", "--method")
    finished = run_command(*start, "gradcm", "--overwrite", command=(command,))
    assert (finished.code, "gradcm" in finished.err) == (2, True)
    assert [path.read_text() for path in state.parent.iterdir()] == [line]
    state.rename(
        state.parent / f".{state.name}.replaced"
    )  # as a start leaves it that is killed before its first result
    assert run_command(*start, "gradcm", command=(command,)).code == 2
    assert [path.read_text() for path in state.parent.iterdir()] == [line]
    start = (*start, "gradcam")
    assert run_command(*start, "--overwrite", command=(command,)).code == (3 if command == "audit" else 0)
    assert not (state.parent / f".{state.name}.replaced").exists()
    assert "of an earlier start" not in state.read_text()
    state.write_text("my notes\n")
    finished = run_command(*start, "--overwrite", command=(command,))
    assert (finished.code, state.name in finished.err.replace("\n", "")) == (2, True)
    assert state.read_text() == "my notes\n"


def test_the_documentation_lists_the_tags_that_are_columns():
    page = Path(__file__).parents[2] / "docs/audit.md"
    assert all(f"`{tag}`" in page.read_text(encoding="utf-8") for tag in TAGS)
    assert "PatientSex" not in TAGS


def test_a_table_that_is_a_pipe_is_not_left_out(run_command):
    os.mkfifo("pipe")
    finished = run_command("photos", *COMMON, "--recursive", "--metadata", "pipe")
    assert finished.code == 2
    assert "pipe cannot be read: it is a named pipe" in finished.err
