"""Build the site: stage the pages, run Sphinx with warnings as errors, write Markdown twins, and check the result."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tools.docs_site.checking import find_faults
from tools.docs_site.gallery import add_gallery
from tools.docs_site.pages import ROOT, Site, stage_repository, write_sources
from tools.docs_site.reference import add_reference
from tools.docs_site.twins import write_twins

STAGED = ROOT / "build" / "docs"
_DEMO_PLACE = "<!-- demo -->"
_DEMO = '<iframe class="demo" src="demo/index.html" loading="lazy" title="The bundled model, in the browser"></iframe>'


def build(out: Path, staged: Path = STAGED) -> None:
    """Build the site in the folder ``out``, which is emptied when Sphinx is done. ``staged`` keeps what Sphinx read.

    Raises:
        SystemExit: Sphinx is missing, warned or failed, the demo cannot be exported, ``out`` holds something else than
            a site, or :func:`~tools.docs_site.checking.find_faults` found something.
    """
    if find_spec("sphinx") is None:
        raise SystemExit("Sphinx is not installed: pip install -e '.[docs]'")
    if out.is_dir() and not (out / "searchindex.js").is_file() and any(out.iterdir()):
        raise SystemExit(f"{out} holds files that are no site; name another folder.")
    site = stage_repository()
    add_reference(site)
    add_gallery(site, staged / "gallery")
    has_demo = _add_demo(site, staged / "demo")
    write_sources(site, staged / "pages")
    html = staged / "html"  # MyST-NB leaves files beside it
    shutil.rmtree(html, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", "-c", str(ROOT / "docs")]
    command += ["-d", str(staged / "doctrees"), str(staged / "pages"), str(html)]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit("Sphinx failed, or warned.")
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(html, out)
    if has_demo:
        shutil.copytree(staged / "demo", out / "demo")
    write_twins(site, out)
    faults = find_faults(out)
    if faults:
        raise SystemExit("\n".join(faults))


def _add_demo(site: Site, folder: Path) -> bool:
    """Export the page of the demo and frame it on the first page, which has none if there is no npm to get its runtime.

    Raises:
        SystemExit: It cannot be exported, though npm is there, or the first page has no place for it.
    """
    command = [sys.executable, "-m", "camtool", "export", "demo", str(folder), "--overwrite", "--quiet"]
    exported = subprocess.run(command, check=False, capture_output=True, text=True)
    if exported.returncode:
        problem = f"The site has no live demo. {exported.stderr.strip()}"
        if shutil.which("npm"):
            raise SystemExit(problem)
        sys.stderr.write(f"{problem}\n")
        return False
    if _DEMO_PLACE not in site.texts["index"]:
        raise SystemExit(f"docs/index.md lacks {_DEMO_PLACE}, which says where the live demo is.")
    site.twins["index"] = site.texts["index"]
    site.texts["index"] = site.texts["index"].replace(_DEMO_PLACE, _DEMO)
    return True


def main() -> None:
    """Build the site in the folder that is named, or in ``site``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "site")
    build(parser.parse_args().out.resolve())
