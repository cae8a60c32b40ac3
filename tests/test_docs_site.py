"""The documentation site: it builds without a warning, its links lead somewhere, it loads nothing from elsewhere."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import camtool
from camtool.methods import METHODS
from camtool.trust.metrics import METRICS
from camtool.warning_codes import WARNING_KINDS
from tools.docs_site import building, pages
from tools.docs_site.checking import find_faults, read_pages
from tools.docs_site.reference import add_reference
from tools.docs_site.twins import draw_list
from tools.note import __main__ as note

ROOT = Path(__file__).parents[1]


# Every picture of the gallery by Grad-CAM, as methods of a thousand passes take half of the time to build. CI and the
# workflow that publishes the site draw each by its own method.
BUILD_QUICKLY = """
import sys
from pathlib import Path

from tools.docs_site import gallery
from tools.docs_site.building import build

draw = gallery._draw_overlays
gallery._draw_overlays = lambda model, scenes, method: draw(model, scenes, "gradcam")
build(*map(Path, sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    for needed in ("sphinx", "myst_nb", "pydata_sphinx_theme"):
        pytest.importorskip(needed, reason="needs Sphinx: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", BUILD_QUICKLY, str(folder / "site"), str(folder / "staged")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    yield folder / "site"
    shutil.rmtree(folder)


def write_page(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<html><head></head><body>{body}</body></html>", encoding="utf-8")


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other.html">x</a>', "index.html: other.html leads to no file"),
        ('<a href="deep/page.html#there">x</a>', "index.html: deep/page.html#there leads to no such anchor"),
        ('<script src="https://cdn.example/x.js"></script>', "index.html: loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "index.html: loads //fonts.example/x.css"),
        ('<img src="deep/x.png" alt="">', "index.html: deep/x.png has no alt text"),
        ('<img src="deep/x.png" alt="deep/x.png">', "index.html: deep/x.png has no alt text"),
    ],
)
def test_a_fault_of_a_page_is_told(tmp_path: Path, body: str, fault: str) -> None:
    write_page(tmp_path / "deep" / "page.html", '<h1 id="here">x</h1><a href="../index.html">x</a>')
    (tmp_path / "deep" / "x.png").write_bytes(b"")
    fine = '<a href="deep/page.html#here">x</a><a href="https://example.org">x</a><img src="deep/x.png" alt="x">'
    write_page(tmp_path / "index.html", fine)
    assert find_faults(tmp_path) == []
    write_page(tmp_path / "index.html", fine + body)
    assert find_faults(tmp_path) == [fault]


def test_a_page_without_a_way_to_it_and_a_remote_font_are_told(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", "x")
    write_page(tmp_path / "lost.html", '<a href="index.html">x</a>')
    (tmp_path / "x.css").write_text("@font-face { src: url('https://fonts.example/x.woff2'); }")
    assert sorted(find_faults(tmp_path)) == [
        "lost.html: no link leads there",
        "x.css: loads https://fonts.example/x.woff2",
    ]


def test_a_folder_of_the_user_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: name)
    (tmp_path / "thesis.md").write_text("x")
    with pytest.raises(SystemExit, match="holds files that are no site"):
        building.build(tmp_path, tmp_path / "staged")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]


def test_an_older_site_stays_until_there_is_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: name)
    monkeypatch.setattr(building, "add_gallery", lambda *_: None)
    monkeypatch.setattr(
        building.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "")
    )
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "searchindex.js").write_text("old")
    with pytest.raises(SystemExit, match="Sphinx failed"):
        building.build(tmp_path / "site", tmp_path / "staged")
    assert (tmp_path / "site" / "searchindex.js").read_text() == "old"


def test_a_demo_that_cannot_be_exported_is_an_error_unless_npm_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, "", "It needs a runtime.\n")

    monkeypatch.setattr(building.subprocess, "run", run)
    monkeypatch.setattr(building.shutil, "which", lambda name: npm)
    site, code, npm = pages.Site({"index": "no place"}), 2, "/usr/bin/npm"
    with pytest.raises(SystemExit, match=r"The site has no live demo\. It needs a runtime\."):
        building._add_demo(site, tmp_path)
    code = 0
    with pytest.raises(SystemExit, match=r"docs/index\.md lacks <!-- demo -->"):
        building._add_demo(site, tmp_path)
    code, npm = 2, None
    assert not building._add_demo(site, tmp_path)
    assert capsys.readouterr().err == "The site has no live demo. It needs a runtime.\n"


def test_the_first_page_has_the_live_demo(built: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs npm: apt-get install npm")
    assert "demo/index.html" in read_pages(built)[built / "index.html"].loads
    assert {"index.html", "model.onnx", "runtime.wasm"} <= {path.name for path in (built / "demo").iterdir()}


def test_no_other_command_writes_into_the_site() -> None:
    """It is emptied, and a folder with other files is refused."""
    rules = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, commands in rules if re.search(r"\ssite\b", commands)] == ["docs"]
    default = inspect.signature(note.main).parameters["out"].default
    assert not default.is_relative_to(ROOT / "site")


def test_links_hold_on_the_site() -> None:
    site = pages.Site()
    homes = {ROOT / "docs" / "trust.md": "trust", ROOT / "notebooks" / "01-first-look.ipynb": "notebooks/01-first-look"}

    def point(link: str, name: str) -> str:
        return pages._point(link, name, ROOT / "docs" / "coming-from", homes, site.pictures)

    text = (
        "[a](../trust.md#x) ![b](../../assets/app.jpg) [c](../../LICENSE) "
        "[`d`](../../tools) [e](https://x.org/y.md) "
        "[f](#here) [![g](../../assets/app.jpg)](../../notebooks/01-first-look.ipynb)\n"
        "```python\nx[0](../trust.md)\n```\n"
    )
    assert pages.rewrite_links(text, "coming-from/captum", point) == (
        "[a](../trust.md#x) ![b](../assets/app.jpg) [c](https://github.com/camtool/camtool/blob/main/LICENSE) "
        "[`d`](https://github.com/camtool/camtool/tree/main/tools) [e](https://x.org/y.md) [f](#here) "
        "[![g](../assets/app.jpg)](../notebooks/01-first-look.ipynb)\n```python\nx[0](../trust.md)\n```\n"
    )
    assert site.pictures == {"assets/app.jpg": ROOT / "assets" / "app.jpg"}


def test_each_page_of_the_repository_is_in_one_table_of_contents() -> None:
    site = pages.stage_repository()
    listed = [name for items in pages.list_contents(site).values() for _, name, _ in items]
    assert sorted(["index", *listed]) == sorted(site.names)
    assert len(listed) > 40
    assert all(f"({name}.md)" in draw_list(site) for name in site.names)


def test_no_paragraph_stands_twice_in_a_page() -> None:
    """Two versions of one begin alike, as after a merge."""
    for name, path in pages.list_sources().items():
        if path.suffix == ".md":
            prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
            starts = [line[:60] for line in prose.splitlines() if len(line) > 60 and not line.startswith(("|", "<!--"))]
            assert len({*starts}) == len(starts), name


def test_the_page_of_a_method_has_what_the_repository_says_of_it() -> None:
    site = pages.stage_repository()
    add_reference(site)
    page = site.texts["reference/methods/gradcamplusplus"]
    rows = [*find_rows("trust.md"), *find_rows("known-answers.md"), *find_rows("../camtool/methods/README.md")]
    assert len(rows) == 5
    *measured, formula, released = rows
    assert all(f"| {' | '.join(row)} |\n" in page for row in measured)
    assert all(cell in page for cell in (formula[0], *released))
    assert "torchcam 0.5.0, Grad-CAM++: alpha is divided in place" in page
    assert "eq. 19" in page


def find_rows(path: str) -> list[list[str]]:
    """Return the rows of the page for ``gradcam++``, in all tables, without its name."""
    lines = (ROOT / "docs" / path).read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `gradcam++`")]
    return [row[1:] for row in rows if "gradcam++" in row[0] and len(row) > 2]


def test_the_site_has_a_page_or_an_address_for_each_name(built: Path) -> None:
    read = read_pages(built)
    assert {path.stem for path in (built / "reference" / "api").glob("*.html")} == {*dir(camtool), "index"}
    for name in METHODS:
        assert (
            f'method="{name}"' in (built / "reference" / "methods" / f"{name.replace('++', 'plusplus')}.md").read_text()
        )
    for kind in WARNING_KINDS.values():
        page, anchor = kind.address.removeprefix("https://camtool.github.io/camtool/").split("#")
        assert anchor in read[built / page].anchors
    assert METRICS.keys() <= read[built / "reference" / "metrics.html"].anchors


def test_each_page_has_a_markdown_twin_that_is_listed(built: Path) -> None:
    listed, whole = ((built / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    names = [path.relative_to(built).with_suffix("").as_posix() for path in read_pages(built)]
    assert len(names) > 150
    for name in set(names) - {"search"}:
        twin = (built / f"{name}.md").read_text(encoding="utf-8")
        assert f"]({name}.md)" in listed
        assert twin.strip() in whole
        assert "{toctree}" not in twin
        assert "{eval-rst}" not in twin


def test_the_words_of_a_page_can_be_searched(built: Path) -> None:
    index = (built / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index[index.index("{") : index.rindex("}") + 1])["terms"]
    assert {"hirescam", "rivalcam"} <= terms.keys()
