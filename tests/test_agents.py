"""The skill for agents that use camtool, and the page for those that change it. Their blocks run in ``test_readme``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
import typer
import yaml

import camtool
from camtool.cli.app import app
from camtool.methods import METHODS
from camtool.warning_codes import WARNING_KINDS
from tests.helpers.readme_world import README, SKILL

ROOT = README.parent
NAME = ".agents/skills/camtool/SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
PAGES = {"skill": TEXT, "page": (ROOT / "AGENTS.md").read_text(encoding="utf-8")}


def test_the_skill_is_found_in_the_package() -> None:
    assert files("camtool").joinpath(NAME).read_text(encoding="utf-8") == TEXT


def test_its_front_matter_has_a_name_and_a_description() -> None:
    _, matter, body = TEXT.split("---\n", 2)
    fields = yaml.safe_load(matter)
    assert fields.keys() == {"name", "description"}
    assert fields["name"] == SKILL.parent.name
    assert 100 < len(fields["description"]) <= 1024, "the limit of the format"
    assert body.count("\n") < 200


def test_what_it_names_exists() -> None:
    calls = {*re.findall(r"`(?:with )?camtool\.(\w+)", TEXT)}
    assert len(calls) > 8
    assert [name for name in calls if name not in dir(camtool)] == []
    commands = {*re.findall(r"`camtool ([a-z]+)\b(?!/)", TEXT)} - {"photos"}  # it is a folder
    assert len(commands) > 3
    assert [name for name in commands if name not in typer.main.get_command(app).commands] == []
    methods = re.findall(r"`([\w+-]+)`", TEXT[TEXT.index("## Which method") : TEXT.index("Do not choose by looks")])
    assert len(methods) == 5
    assert [name for name in methods if name not in METHODS] == []


def test_its_table_of_warnings_names_codes() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", TEXT[TEXT.index("| code | do this |") :], re.MULTILINE)
    codes = [code for row in rows for code in re.findall(r"`([\w-]+)`", row)]
    assert len(codes) > 20
    assert [code for code in codes if code not in WARNING_KINDS] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_paths_that_they_name_exist(page: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGES[page])
    paths = [
        path for path in re.findall(r"`([\w./-]+/[\w./-]*)`", PAGES[page]) if path.startswith(("camtool/", "tests/"))
    ]
    assert [path for path in [*links, *paths] if not (ROOT / path).exists()] == []


def test_the_skill_is_in_the_wheel_and_in_the_source_distribution(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "camtool", tree / "camtool", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = "from setuptools import build_meta as b; b.build_wheel('..'); b.build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"camtool/{NAME}").decode() == TEXT
        own = {name for name in archive.namelist() if not name.startswith("camtool-")}
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    packaged = {path.relative_to(tree).as_posix() for path in (tree / "camtool").rglob("*") if path.is_file()}
    assert own <= packaged
    assert own - inside == set(), "a wheel can be built from the source distribution"
    assert {path for path in packaged if path.endswith(".py")} <= own
