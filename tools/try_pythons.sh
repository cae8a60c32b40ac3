#!/usr/bin/env bash
# Build a release and install it as a user would on versions of Python, without development tools: in turns the wheel
# and the sdist. Run the demo of each. Usage: tools/try_pythons.sh 3.10 3.13
set -euo pipefail
source="$(cd "$(dirname "$0")/.." && pwd)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

python3 "$source/tools/build_release.py" "$folder/dist"

try_version() {
    # Where pyenv holds the versions, it must be told which one to run.
    PYENV_VERSION="$1" "python$1" -m venv "$folder/$1"
    # Most of the modules are never imported here, so compiling them all would take longer than the demo.
    "$folder/$1/bin/pip" install -q --no-compile "$2"
    # Not beside the checkout, whose files would be imported.
    (cd "$folder" && "$folder/$1/bin/python" -m camtool demo --out "demo-$1")
    rm -rf "${folder:?}/$1"  # several GB
}

# One after the other: each takes several GB of disk, of which a server has no more than its own environment needs.
built=("$folder"/dist/*)
for at in $(seq 0 $(($# - 1))); do
    versions=("$@")
    try_version "${versions[$at]}" "${built[$((at % 2))]}"
done
