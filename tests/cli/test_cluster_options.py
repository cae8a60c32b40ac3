"""Options of ``camtool run --cluster``: what is refused, and folders by URI."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from camtool.cli import app
from camtool.cli.run_folders.cluster_run import to_uri
from tests.helpers.photos import save, unseen


@pytest.fixture
def refuse(monkeypatch, capsys, tmp_path):
    """Run the command on a photo, and return the error with which it ends."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    save(unseen(0), tmp_path / "photos" / "a.png")

    def command(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["camtool", "photos", "--model", "demo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            app.main()
        assert end.value.code == 2
        assert not (tmp_path / "out").exists()
        return " ".join(capsys.readouterr().err.split())

    return command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", 2], "--workers has no effect on a run with --cluster: the threads of a worker follow"),
        (["--verbose"], "--verbose has no effect"),
        (["--sheet"], "--sheet has no effect on a run with --cluster: no worker has all overlays"),
        (["--report"], "camtool report OUT"),
        (["--retry-failed"], "remove its file"),
        (["--format", "npz"], "--save npz: a run with --cluster writes Parquet"),
        (["--caption"], "--caption needs overlays, which a run with --cluster writes with --save overlay"),
        (["--only-wrong"], "--only-wrong needs the true classes"),
        (["--size", "0"], "--size '0' is not an image size"),
        (["--bands", "x"], "--bands 'x' is not a list of numbers"),
        (["--save", "overlay,raw"], "--save overlay,raw: a run with --cluster writes Parquet"),
        (["--method", "gradcan"], "gradcam"),
        (["--option", "samples=5"], "samples"),
    ],
)
def test_what_a_cluster_run_does_not_support_is_refused(refuse, options, message):
    assert message in refuse("--cluster", "ray", *options)


@pytest.mark.parametrize(
    "options", [["--address", "auto"], ["--gpus-per-worker", 0.5], ["--shard-size", 10], ["--image-column", "x"]]
)
def test_options_of_a_cluster_need_one(refuse, options):
    assert f"{options[0]} needs --cluster ray" in refuse(*options)


def test_an_unknown_cluster_is_refused(refuse):
    assert "ray" in refuse("--cluster", "slurm")


def test_a_missing_library_is_named_with_what_to_install(refuse, monkeypatch):
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if "pyarrow" not in name})

    class NoArrow:
        def find_spec(self, name, *_):
            if name.partition(".")[0] == "pyarrow":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [NoArrow(), *sys.meta_path])
    assert "pip install 'camtool[ray]'" in refuse("--cluster", "ray")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("s3://bucket/out", "s3://bucket/out"),
        ("gs://bucket", "gs://bucket"),
        ("file:///data/out", "file:///data/out"),
        ("memory://a/b", "memory://a/b"),
        ("out", "out"),
        ("a:b/c", str(Path("a:b/c"))),
    ],
)
def test_the_folder_for_results_may_be_a_uri(given, wanted):
    assert to_uri(Path(given)) == wanted
