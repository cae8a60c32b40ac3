#!/usr/bin/env bash
# Build a release, install its wheel as a user would on versions of Python, without development tools, and run the demo;
# on the first of them that of the sdist, too. Usage: tools/try_pythons.sh 3.10 3.13
set -euo pipefail
source="$(cd "$(dirname "$0")/.." && pwd)"
mkdir -p "$source/build"
folder="$(mktemp -d "$source/build/pythons-XXXXXX")"  # on the disk of CI's cache, whose files can be linked only there
trap 'rm -rf "$folder"' EXIT

# Without a cache, as its copies take as much disk again. Most of the modules are never imported here, so compiling them
# all would take longer than the demo.
install="${INSTALL:-pip install --no-cache-dir --no-compile}"

python3 "$source/tools/build_release.py" "$folder/dist"

first="$1"
try_version() (
    # Where pyenv holds the versions, it must be told which one to run.
    PYENV_VERSION="$1" "python$1" -m venv "$folder/$1"
    . "$folder/$1/bin/activate"
    $install -q "$folder"/dist/*.whl
    run_demo "$1"
    if [[ "$1" == "$first" ]]; then try_sdist "$1"; fi
    rm -rf "${folder:?}/$1"  # several GB
    # Most of the cache of an installer that has one is of this Python; what others share stays.
    if [[ "$install" == uv* ]]; then uv cache clean -q torch triton; fi
)

# The wheel was built from the sdist, so what an install of the sdist adds is building, which once is enough for.
try_sdist() {
    # It replaces the wheel; what they depend on stays.
    $install -q --force-reinstall --no-deps "$folder"/dist/*.tar.gz
    run_demo "$1"
}

run_demo() {
    # Not beside the checkout, whose files would be imported. Two scenes take every part of the package that twelve take.
    (cd "$folder" && python -m camtool demo --quiet --scenes 2 --out "demo-$1")
    rm -rf "${folder:?}/demo-$1"
}

# One after the other: each takes several GB of disk, of which a server has no more than its own environment needs.
for version in "$@"; do
    try_version "$version"
done
