#!/usr/bin/env bash
# native.sh DIST SDIST: builds the Python package with the command, from the source distribution in the folder SDIST, with
# this machine's own compilers, and leaves the wheel in DIST. For macOS on Arm and for Windows (in Git's bash); Linux has
# linux.sh. What it builds is not run: no test of this project has run on these systems.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
sdist=$(cd "$2" && pwd)
export CARGO_TARGET_DIR=$root/target MACOSX_DEPLOYMENT_TARGET=11.0 CARGO_PROFILE_RELEASE_STRIP=true
python=${PYTHON:-python3}
"$python" -m pip install --quiet "$(grep '^maturin==' "$root/scripts/release/requirements.txt")"

source=$CARGO_TARGET_DIR/from-sdist/native
rm -rf "$source" && mkdir -p "$source"
tar xzf "$sdist"/flashcore_attn-*.tar.gz -C "$source" --strip-components 1
cd "$root"
cargo build --release --locked -p flashcore-cli
mkdir -p "$source/flashcore_attn.data/scripts"
exe=
[[ ${OS-} != Windows_NT ]] || exe=.exe
cp "$CARGO_TARGET_DIR/release/flashcore$exe" "$source/flashcore_attn.data/scripts"
# maturin takes scripts from a folder that the key `data` names (linux.sh).
sed -i.bak 's/^\[tool\.maturin\]$/&\
data = "flashcore_attn.data"/' "$source/pyproject.toml"
cd "$source"
"$python" -m maturin build --release --locked --out "$out"
