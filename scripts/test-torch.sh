#!/bin/bash
# test-torch.sh [WHEELS [COMMAND...]]: runs the bindings' tests with PyTorch, Transformers, Ray and JAX of the versions that
# scripts/get-torch.sh pins and installs, or the COMMAND of its Python. WHEELS is the folder that test-wheel.sh leaves
# (default target/wheels); the wheel is built if there is none. PYTHON names the interpreter. FLASHCORE_COMMAND names the
# command, which some tests run (default target/debug/flashcore, where it was built).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheels=$(mkdir -p "${1:-$root/target/wheels}" && cd "${1:-$root/target/wheels}" && pwd)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
compgen -G "$wheels/flashcore_attn-*.whl" >/dev/null || "$root/scripts/test-wheel.sh" "$wheels"
cached=$("$root/scripts/get-torch.sh")

# The wheel goes into an environment of this run, which finds all else in the cached one: other runs may use that.
"$cached/bin/python" -m venv --without-pip "$work/env"
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
echo "import site; site.addsitedir('$(packages "$cached")')" >"$(packages "$work/env")/cached.pth"
# By name: the folder may have wheels of other systems. Without the cache, which knows a wheel by its folder and version:
# it would install the one of an earlier build.
"$cached/bin/uv" pip install --quiet --no-cache --no-index --no-deps --only-binary :all: --find-links "$wheels" --python "$work/env/bin/python" flashcore-attn

command=${FLASHCORE_COMMAND:-$root/target/debug/flashcore}
if [[ -x $command ]]; then export FLASHCORE_COMMAND=$command; fi
# A time limit ends what hangs; it says nothing about slow machines.
set -- "${@:2}"
[[ $# -gt 0 ]] || set -- -m pytest -q -p no:cacheprovider --timeout=1800 --numprocesses=2 --durations=5 "$root/bindings/python/tests"
cd "$work" # away from the sources: what is imported is what was installed
FLASHCORE_REQUIRE_TORCH=1 "$work/env/bin/python" "$@"
