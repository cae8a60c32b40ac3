"""Build the wheel and the sdist of a release into a folder, and check them: ``python tools/build_release.py dist``.

The pages of PyPI know no folders of the repository, so the links of the README to files become those of the tagged
version on GitHub first, in a copy of the files that git knows. There, camtool is installed by its name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/camtool/camtool"

_CHECKOUT, _PUBLISHED = "pip install -e . &&", "pip install camtool &&"

_BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(!?)(\[[^\[\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")


def read_version(root: Path = ROOT) -> str:
    """Return the version in ``pyproject.toml``, which Python 3.10 has no parser for."""
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit("pyproject.toml has no version.")
    return found[1]


def link_to_repository(text: str, version: str) -> str:
    """Return a text in Markdown whose links to files are addresses; blocks of code stay."""

    def replace(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}{match[2]}({REPOSITORY}/{kind}/v{version}/{match[3]})"

    parts = _BLOCK.split(text)
    return "".join(part if number % 2 else _LINK.sub(replace, part) for number, part in enumerate(parts))


def publish_readme(text: str, version: str) -> str:
    """Return the README as PyPI shows it.

    Raises:
        SystemExit: It does not say once how to install a checkout.
    """
    if text.count(_CHECKOUT) != 1:
        raise SystemExit(f"README.md must say {_CHECKOUT!r} once, which becomes {_PUBLISHED!r}.")
    return link_to_repository(text, version).replace(_CHECKOUT, _PUBLISHED)


def build(out: Path) -> list[Path]:
    """Build into an empty folder, and return the paths of the wheel and the sdist.

    Raises:
        SystemExit: The folder has files, or what was built lacks something.
    """
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} must be empty, as old files in it would be published, too.")
    version = read_version()
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "camtool"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for path in filter(None, listed.split("\0")):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, copy / path)
        readme = copy / "README.md"
        readme.write_text(publish_readme(readme.read_text(encoding="utf-8"), version), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "build", "--outdir", out, copy], check=True, stdout=subprocess.DEVNULL)
    built = sorted(out.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    check(built, version)
    return built


def check(built: list[Path], version: str) -> None:
    """Raise an error unless wheel and sdist hold all files of the package that git knows, and no others of it."""
    wheel, sdist = f"camtool-{version}-py3-none-any.whl", f"camtool-{version}.tar.gz"
    if [path.name for path in built] != [wheel, sdist]:
        raise SystemExit(f"expected {wheel} and {sdist}, got {', '.join(path.name for path in built)}.")
    listed = subprocess.run(["git", "ls-files", "camtool"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    expected = set(listed.split("\n")) - {""}
    with zipfile.ZipFile(built[0]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(built[1]) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    for where, held in ((wheel, names), (sdist, {name for name in inside if name.startswith("camtool/")})):
        if held != expected:
            raise SystemExit(
                f"{where} lacks {sorted(expected - held)} and has {sorted(held - expected)}: see package-data."
            )


if __name__ == "__main__":
    sys.stdout.write("\n".join(map(str, build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))) + "\n")
