#!/usr/bin/env bash
# Install the package as a user would on other versions of Python, without development tools, and run the demo.
# Usage: tools/try_pythons.sh 3.10 3.13
set -euo pipefail
source="$(cd "$(dirname "$0")/.." && pwd)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

python3 -m pip wheel -q --no-deps -w "$folder" "$source"

try_version() {
    # Where pyenv holds the versions, it must be told which one to run.
    PYENV_VERSION="$1" "python$1" -m venv "$folder/$1"
    # Most of the modules are never imported here, so compiling them all would take longer than the demo.
    "$folder/$1/bin/pip" install -q --no-compile "$folder"/camtool-*.whl
    # Not beside the checkout, whose files would be imported.
    (cd "$folder" && "$folder/$1/bin/python" -m camtool demo --out "demo-$1")
    rm -rf "${folder:?}/$1"  # several GB
}

# One after the other: each takes several GB of disk, of which a server has no more than its own environment needs.
for version in "$@"; do
    try_version "$version"
done
