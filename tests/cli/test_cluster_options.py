"""Options of ``camtool cluster``: what is refused, and folders by URI."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from camtool.cli import app
from camtool.cli.run_and_cluster_commands import to_uri
from tests.helpers.photos import save, unseen


@pytest.fixture
def refuse(monkeypatch, capsys, tmp_path):
    """Run the command on a photo, and return the error with which it ends."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    save(unseen(0), tmp_path / "photos" / "a.png")

    def run(command: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["camtool", command, "photos", "--model", "demo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            app.main()
        assert end.value.code == 2
        assert not (tmp_path / "out").exists()
        return " ".join(capsys.readouterr().err.split())

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((option, f"No such option: {option[0]}") for option in (["--workers", 2], ["--verbose"], ["--sheet"])),
        *((option, f"No such option: {option[0]}") for option in (["--report"], ["--retry-failed"], ["--volume"])),
        (["--format", "npz"], "--save npz: camtool cluster writes Parquet"),
        (["--caption"], "--caption needs overlays, which camtool cluster writes with --save overlay"),
        (["--only-wrong"], "--only-wrong needs the true classes"),
        (["--size", "0"], "--size '0' is not an image size"),
        (["--bands", "x"], "--bands 'x' is not a list of numbers"),
        (["--save", "overlay,raw"], "--save overlay,raw: camtool cluster writes Parquet"),
        (["--method", "gradcan"], "gradcam"),
        (["--option", "samples=5"], "samples"),
    ],
)
def test_what_a_cluster_run_does_not_support_is_refused(refuse, options, message):
    assert message in refuse("cluster", *options)


@pytest.mark.parametrize(
    "options", [["--address", "auto"], ["--gpus-per-worker", 0.5], ["--shard-size", 10], ["--image-column", "x"]]
)
def test_options_of_a_cluster_are_those_of_its_command(refuse, options):
    assert f"No such option: {options[0]}" in refuse("run", *options)


def test_a_missing_library_is_named_with_what_to_install(refuse, monkeypatch):
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if "pyarrow" not in name})

    class NoArrow:
        def find_spec(self, name, *_):
            if name.partition(".")[0] == "pyarrow":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [NoArrow(), *sys.meta_path])
    assert "pip install 'camtool[ray]'" in refuse("cluster")


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
