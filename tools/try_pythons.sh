#!/usr/bin/env bash
# Build a release and install it as a user would on versions of Python, without development tools: the wheel, and then
# the sdist in its place. Run the demo of each. Usage: tools/try_pythons.sh 3.10 3.13
set -euo pipefail
source="$(cd "$(dirname "$0")/.." && pwd)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

python3 "$source/tools/build_release.py" "$folder/dist"

try_version() {
    # Where pyenv holds the versions, it must be told which one to run.
    PYENV_VERSION="$1" "python$1" -m venv "$folder/$1"
    # Without a cache, as its copies take as much disk again. Most of the modules are never imported here, so compiling
    # them all would take longer than the demo.
    local install=("$folder/$1/bin/pip" install -q --no-cache-dir --no-compile)
    "${install[@]}" "$folder"/dist/*.whl
    run_demo "$1"
    # The sdist replaces the wheel; what they depend on stays.
    "${install[@]}" --force-reinstall --no-deps "$folder"/dist/*.tar.gz
    run_demo "$1"
    rm -rf "${folder:?}/$1"  # several GB
}

run_demo() {
    # Not beside the checkout, whose files would be imported.
    (cd "$folder" && "$folder/$1/bin/python" -m camtool demo --out "demo-$1")
    rm -rf "${folder:?}/demo-$1"
}

# One after the other: each takes several GB of disk, of which a server has no more than its own environment needs.
for version in "$@"; do
    try_version "$version"
done
