"""Security: no pickles, no network, nothing written outside the output folder, nothing interpreted."""

from __future__ import annotations

import ast
import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

import camtool
from camtool.cli.options import photo_options
from camtool.evaluation.leaderboard import Evaluation
from camtool.evaluation.leaderboard.table import EvaluationRow
from camtool.inputs import image_files
from camtool.runs.text_escapes import escape_formula
from tests.cli.test_commands import (
    Result,
    assert_refused,
    drop_progress,
    list_files,
    read_lines,
    split_notes,
    start_process,
    write_photo,
)
from tests.helpers.missing_extras import needs
from tests.helpers.tiny_models import TINY

ROOT = Path(camtool.__file__).parents[1]
CODE = [path for folder in ("camtool", "benchmarks", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]
posix = pytest.mark.skipif(os.name != "posix", reason="links that every user may create")


@pytest.fixture
def process(tmp_path, photos) -> Callable[..., Result]:
    """Run the command in a process of its own, in a folder with photos."""

    def run(*args: object) -> Result:
        started = start_process(*args, cwd=tmp_path)
        try:
            out, err = started.communicate(timeout=300)
        finally:
            started.kill()
        err, notes = split_notes(drop_progress(err))
        return Result(started.returncode, out, err, notes)

    return run


# ---------------------------------------------------------------------------------------------- files that run code

SAFE_WITH = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
"""Function → the keyword, and its value, with which a call runs no code of the file."""

UNSAFE = (
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "dill.load", "cloudpickle.load"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "pandas.read_pickle", "shelve.open"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec", "os.system", "os.popen"),
)


def find_unsafe_calls(code: str) -> Iterator[str]:
    """Yield the calls in Python code that may run code of a file, as ``"line: call"``."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}
        keyword, value = SAFE_WITH.get(name, ("", None))
        is_unsafe = name in UNSAFE or "True" in (keywords.get("trust_remote_code"), keywords.get("shell"))
        if is_unsafe or (name in SAFE_WITH and keywords.get(keyword) != str(value)):
            yield f"{node.lineno}: {ast.unparse(node)}"


OWN_PROGRAMS = {"benchmarks/hunt.py": ("exec(source, names)",)}
"""File → the calls with which it runs programs that it wrote itself."""


def test_no_code_of_a_file_is_run() -> None:
    assert len(CODE) > 200
    by_file = {path.relative_to(ROOT).as_posix(): find_unsafe_calls(path.read_text("utf-8")) for path in CODE}
    found = [f"{file}:{call}" for file, calls in by_file.items() for call in calls]
    assert [one for one in found if one.partition(": ")[2] not in OWN_PROGRAMS.get(one.partition(":")[0], ())] == []


@pytest.mark.parametrize(
    ("code", "is_unsafe"),
    [
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("np.load(path)", True),
        ("np.load(path, allow_pickle=False)", False),
        ("pickle.load(file)", True),
        ("yaml.safe_load(text)", False),
        ("yaml.load(text, Loader)", True),
        ("model.eval()", False),
        ("eval(text)", True),
        ("AutoConfig.from_pretrained(path, trust_remote_code=True)", True),
    ],
)
def test_the_scan_finds_unsafe_calls(code: str, is_unsafe: bool) -> None:
    assert bool([*find_unsafe_calls(code)]) is is_unsafe


@needs("ultralytics")
def test_a_pickle_of_ultralytics_runs_no_code(tmp_path, camtool_, photos) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "was-run",))

    torch.save({"model": Malicious()}, tmp_path / "mine.pt")
    with pytest.raises(camtool.ModelError, match=r"mine\.pt"):
        camtool.load(f"ultralytics:{tmp_path / 'mine.pt'}")
    assert not (tmp_path / "was-run").exists()


def test_a_pickle_in_a_folder_of_hugging_face_runs_no_code(tmp_path, process) -> None:
    pytest.importorskip("transformers")
    from tests.models.sources.test_hugging_face import vit

    class Malicious:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "was-run",))

    vit().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({"classifier.weight": Malicious()}, tmp_path / "model" / "pytorch_model.bin")
    result = process("run", "photos/a.png", "--model", "hf:model")
    assert_refused(result, "pytorch_model.bin", "could run any code, so it is refused")
    assert not (tmp_path / "was-run").exists()
    torch.load(tmp_path / "model" / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "was-run").exists()  # it is malicious


@pytest.mark.parametrize("kind", ["recursive", "exploding"])
def test_aliases_in_a_file_of_options_are_a_sentence(tmp_path, process, kind) -> None:
    lines = ["model: &a [*a]"]
    if kind == "exploding":
        lines = ["model: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    result = process("run", "photos/a.png", "--config", "run.yaml")
    assert_refused(result, "run.yaml", "aliases of YAML (*name) are not read")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------- the network

NO_NETWORK = """
import socket
def refuse(*args, **kwargs):
    raise RuntimeError("the network was used")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""


def test_no_network_is_used_for_local_weights(tmp_path, photos) -> None:
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(NO_NETWORK)
    model = torchvision.models.get_model("squeezenet1_1", weights=None)
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    settings = '{"input_size": [3, 96, 96], "mean": [0.5, 0.5, 0.5]}'
    (tmp_path / "config.json").write_text(f'{{"pretrained_cfg": {settings}}}')
    places = os.pathsep.join(map(str, (tmp_path / "blocked", ROOT)))
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": places}, "capture_output": True, "text": True}
    check = subprocess.run([sys.executable, "-c", "import socket; socket.create_connection(1)"], **options)
    assert "the network was used" in check.stderr
    run = ["photos", "--model", "squeezenet1_1", "--weights", "mine.safetensors", "--quiet"]
    done = subprocess.run([sys.executable, "-m", "camtool", *run], timeout=300, **options)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


# ------------------------------------------------------------------------------------------------------------- links


@posix
@pytest.mark.parametrize("kind", ["folder", "file", "manifest"])
def test_a_link_in_the_output_folder_does_not_lead_out_of_it(camtool_, tmp_path, kind) -> None:
    write_photo(tmp_path / "photos" / "sub" / "c.png")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("mine")
    run = ("photos", "-r", "--model", TINY, "--target", "2")
    if kind == "folder":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "sub").symlink_to(elsewhere)
    else:
        assert camtool_(*run).code == 0
        name = list_files("out")[0] if kind == "file" else "explanations.jsonl"
        (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / name).symlink_to(elsewhere / "kept")
    result = camtool_(*run)
    assert result.code == (2 if kind == "manifest" else 1)
    assert "a link in the output folder leads out of it" in result.err
    assert [path.name for path in elsewhere.iterdir()] == ["kept"]
    assert (elsewhere / "kept").read_text() == "mine"


@posix
def test_the_output_folder_itself_may_be_a_link(camtool_, photos, tmp_path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert camtool_("photos", "-r", "--model", TINY).code == 0
    assert len(list_files("disk")) == len(read_lines("disk")) == 3


@posix
def test_figures_and_tables_are_not_written_through_links(camtool_, photos, tmp_path) -> None:
    (tmp_path / "kept").write_text("mine")
    for folder, name in (("figures", "kernels.png"), ("leaderboard", "checkpoint.jsonl")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).symlink_to(tmp_path / "kept")
    for command in (["kernels", "--model", TINY], ["evaluate", "photos", "--model", TINY]):
        result = camtool_(*command)
        assert (result.code, "leads out of it" in result.err) == (2, True)
    assert (tmp_path / "kept").read_text() == "mine"


# ---------------------------------------------------------------------------------------------- interpreted contents


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *(("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@SUM(1)", "'@SUM(1)")),
        *(("\t=1", r"\t=1"), ("\r=1", r"\r=1")),
        *(("cat;=1", "cat;'=1"), ("cat; @A1;-1;x", "cat;' @A1;'-1;x"), (" =1", "' =1"), ('a;"=1"', 'a;\'"=1"')),
        *((f"{sign}1", f"'{sign}1") for sign in "＝＋－＠"),  # noqa: RUF001
    ],
)
def test_a_cell_of_a_csv_file_is_no_formula(text, cell) -> None:
    row = EvaluationRow(text, text, text, 1.0, {"entropy": np.array([-0.25])})
    written = Evaluation((row,), ("entropy",), {}, {}, (), 1, 0).to_csv()
    (read,) = csv.DictReader(StringIO(written, newline=""))
    assert [read[name] for name in ("name", "method", "layer")] == [cell] * 3
    assert float(read["entropy"]) == -0.25
    assert [escape_formula(each) for each in (-1, "a=1", "", None)] == [-1, "a=1", "", None]


FORMULA = "＝1;=1"  # noqa: RUF001  full-width

NETS_WITH_A_FORMULA = f"""
import camtool
from tests.helpers.tiny_models import Net, prepare
class WithFormula(Net):
    def __init__(self):
        super().__init__()
        self.add_module({FORMULA!r}, self.second)
        del self.second
    def forward(self, x):
        return self.head(getattr(self, {FORMULA!r})(self.first(x)).mean((2, 3)))
def make():
    return camtool.Loaded(WithFormula(), prepare, [{FORMULA!r}, "b", "c", "d"])
"""


def test_the_command_writes_no_formula_into_its_table(tmp_path, process) -> None:
    """The class and the layer are named as a formula."""
    (tmp_path / "nets_with_a_formula.py").write_text(NETS_WITH_A_FORMULA, encoding="utf-8")
    write_photo(tmp_path / "sorted" / FORMULA / "a.png")
    result = process(
        *("evaluate", "sorted", "--model", "nets_with_a_formula:make", "--truth", "imagefolder"),
        *("--method", "gradcam", "--layer", FORMULA, "--metric", "sparsity"),
    )
    assert (result.code, "Traceback" in result.err) == (0, False)
    with (tmp_path / "leaderboard" / "leaderboard.csv").open(encoding="utf-8", newline="") as stream:
        rows = [*csv.DictReader(stream)]
    (row,) = [row for row in rows if row["method"] == "gradcam"]
    assert row["layer"] == "'＝1;'=1"  # noqa: RUF001
    cells = [cell for row in rows for value in row.values() for cell in value.split(";")]
    assert not [cell for cell in cells if re.match(r"[=＝@＠]", cell)]  # noqa: RUF001


def test_labels_and_names_do_not_reach_the_terminal_as_commands(camtool_, photos) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m[bold]\u202e\nsecond line"
    Path("labels.json").write_text(str([evil + str(number) for number in range(4)]).replace("'", '"'), encoding="utf-8")
    commands = [
        ["photos", "--model", TINY, "--labels", "labels.json", "--verbose", "--target", "top4"],
        ["photos", "--model", TINY, "--labels", "labels.json", "--target", evil],
        ["photos", "--model", TINY, "--layer", evil],
        ["photos", "--model", TINY, "--method", evil],
        ["photos", "--model", evil],
        ["photos", "--model", f"{evil}:make"],
        ["photos", "--model", TINY, "--transform", f"{evil}:make"],
        ["photos", "--model", TINY, "--size", evil],
        ["photos", "--model", TINY, "--weights", evil],
        [evil, "--model", TINY],
        ["layers", evil],
        ["methods", evil],
        ["features", evil, "--model", TINY],
        ["evaluate", evil, "--model", TINY],
    ]
    for command in commands:
        result = camtool_(*command)
        said = result.out + result.err + "".join(result.notes)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", said), command
        assert not re.search(r"^second line", said, re.MULTILINE), command


def test_the_limit_of_pixels_is_that_of_the_reader(camtool_, photos) -> None:
    assert photo_options.DEFAULT_MAX_PIXELS == image_files.MAX_PIXELS
    result = camtool_("photos/a.png", "--model", TINY, "--max-pixels", "559")
    assert (result.code, "it has 560 pixels, and the limit is 559" in result.err) == (1, True)
    assert camtool_("photos/a.png", "--model", TINY, "--max-pixels", "560", "--overwrite").code == 0
