"""A release: one version everywhere, a README whose links work outside of the repository, and complete files."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

import camtool
from tools import build_release

ROOT = Path(__file__).resolve().parents[1]


def test_all_files_name_one_version() -> None:
    package = json.loads((ROOT / "camtool" / "app" / "web_page" / "assets" / "package.json").read_text())
    sections = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    newest = next(section for section in sections if section != "Unreleased")
    assert {camtool.__version__, build_release.read_version(), package["version"]} == {newest}


def test_the_site_that_a_tag_publishes_is_built_before_a_merge() -> None:
    checked, published = (
        (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8") for name in ("ci", "site")
    )
    commands = re.findall(r"run: (.*make docs.*)", published)
    assert len(commands) == 1
    assert f"run: {commands[0]}\n" in checked


def test_links_to_files_become_addresses() -> None:
    text = (
        "![A dog](assets/a.jpg) and [the page](docs/a.md#part), [there](https://x.org), [here](#develop)\n"
        "```python\nrows[0](docs)\n```\n[x](LICENSE)"
    )
    start = "https://github.com/camtool/camtool"
    assert build_release.link_to_repository(text, "1.2") == (
        f"![A dog]({start}/raw/v1.2/assets/a.jpg) and [the page]({start}/blob/v1.2/docs/a.md#part), "
        "[there](https://x.org), [here](#develop)\n"
        f"```python\nrows[0](docs)\n```\n[x]({start}/blob/v1.2/LICENSE)"
    )


def test_each_link_of_the_readme_leads_to_a_file_or_an_address() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", readme, flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)]+)\)", prose):
        assert re.match("https?:|#", link) or (ROOT / link.partition("#")[0]).exists(), link
    published = build_release.publish_readme(readme, "0.2.0")
    assert "```bash\npip install camtool && python -m camtool demo\n```" in published
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```$", "", published, flags=re.DOTALL | re.MULTILINE))
    assert len(links) > 20
    assert all(re.match("https?:|#", link) for link in links)


def test_an_incomplete_wheel_and_a_full_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match="must be empty"):
        build_release.build(tmp_path)
    wheel, sdist = tmp_path / "camtool-1.0-py3-none-any.whl", tmp_path / "camtool-1.0.tar.gz"
    with pytest.raises(SystemExit, match=r"expected camtool-1.0-py3-none-any.whl and .*, got old.whl"):
        build_release.check([tmp_path / "old.whl"], "1.0")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("camtool/__init__.py", "")
    with tarfile.open(sdist, "w"):
        pass
    with pytest.raises(SystemExit, match=r"whl lacks .*camtool/py.typed.* and has \[\]"):
        build_release.check([wheel, sdist], "1.0")
