#!/usr/bin/env bash
# get-torch.sh [REQUIREMENTS]: installs PyTorch, Transformers and what else the Python tests can use (3 GB) from PyPI, or
# what another file REQUIREMENTS lists (default bindings/python/tests/requirements.txt), and prints the path of the virtual
# environment. Its name has the hash of that file, which pins each version, and of the interpreter, so that the next call
# finds it; it is complete only with the file `complete` in it.
# Those unused for 30 days are removed. PYTHON names the interpreter (default python3, 3.11 or newer).
# FLASHCORE_CI_CACHE names the folder of environments (default ~/.cache/flashcore-ci).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
requirements=${1:-$root/bindings/python/tests/requirements.txt}
python=${PYTHON:-python3}
cache=${FLASHCORE_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/flashcore-ci}
mkdir -p "$cache"

interpreter=$("$python" -c 'import sys; print(sys.executable, sys.version)')
hash=$({ echo "$interpreter" && cat "$requirements"; } | sha256sum | cut -c 1-16)
env=$cache/python-$hash

exec 9>"$env.lock" # two at a time would write into one folder
flock 9
if [[ ! -f $env/complete ]]; then
    rm -rf "$env" # what an interrupted install left
    "$python" -m venv "$env"
    # uv installs in a quarter of pip's time, and keeps what it downloaded for the next requirements.
    "$env/bin/python" -m pip --quiet --disable-pip-version-check install uv==0.13.9 >&2
    "$env/bin/uv" pip install --quiet --compile-bytecode --python "$env/bin/python" --requirement "$requirements" >&2
    [[ $# -gt 0 ]] || "$env/bin/python" -c 'import torch, transformers' # each file is there and loads
fi
touch "$env/complete"
# Only environments: the folder may have other things in it.
find "$cache" -mindepth 2 -maxdepth 2 -path '*/python-*/complete' -mtime +30 -printf '%h\0' | xargs -0 --no-run-if-empty rm -rf
echo "$env"
