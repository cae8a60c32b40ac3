#!/usr/bin/env bash
# Install the package as a user would on other versions of Python, without development tools, and run the demo.
# Usage: tools/try_pythons.sh 3.10 3.13
set -euo pipefail
source="$(cd "$(dirname "$0")/.." && pwd)"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

for version in "$@"; do
    # Where pyenv holds the versions, it must be told which one to run.
    PYENV_VERSION="$version" "python$version" -m venv "$folder/$version"
    "$folder/$version/bin/pip" install -q "$source"
    # Not beside the checkout, whose files would be imported.
    (cd "$folder" && "$folder/$version/bin/python" -m camtool demo --out "demo-$version")
    rm -rf "${folder:?}/$version"  # several GB
done
