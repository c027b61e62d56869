#!/bin/bash
# test-wheel.sh [WHEELS]: builds the Python wheel, installs it into an empty virtual environment, runs it
# on the CPU with only NumPy installed, then runs the bindings' tests there. Leaves the wheel in the
# folder WHEELS (default target/wheels). PYTHON names the interpreter (default python3, 3.9 or newer), PROFILE
# Cargo's profile (default release, as it is published).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheels=$(mkdir -p "${1:-$root/target/wheels}" && cd "${1:-$root/target/wheels}" && pwd)
python=${PYTHON:-python3}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/python} PIP_DISABLE_PIP_VERSION_CHECK=1
unset FLASHCORE_REQUIRE_TORCH # test-torch.sh runs what is skipped here
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet maturin==1.16.0
rm -f "$wheels"/flashcore_attn-*.whl
"$work/tools/bin/maturin" build --profile "${PROFILE:-release}" --manifest-path "$root/bindings/python/Cargo.toml" --out "$wheels"

"$python" -m venv "$work/empty"
"$work/empty/bin/pip" install --quiet --no-index --no-deps "$wheels"/flashcore_attn-*.whl
"$work/empty/bin/pip" install --quiet numpy
cd "$work" # away from the sources: what is imported is what was installed
"$work/empty/bin/python" - <<'EOF'
import numpy as np
import flashcore_attn

q, k, v = np.random.default_rng(0).standard_normal((3, 2, 33, 4, 64)).astype(np.float32)
out = flashcore_attn.attention(q, k, v)
scores = np.einsum("bqhd,bkhd->bhqk", *(x.astype(np.float64) for x in (q, k))) / 8
weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
error = np.abs(out - np.einsum("bhqk,bkhd->bqhd", weights, v)).max()
assert error < 1e-5, error
print(f"flashcore-attn {flashcore_attn.__version__} answers with NumPy alone: off by {error:.1e} at most")
print(flashcore_attn.explain(q, k, v))
EOF
"$work/empty/bin/pip" install --quiet pytest
"$work/empty/bin/python" -m pytest -q --durations=5 -p no:cacheprovider "$root/bindings/python/tests"
ls -l "$wheels"/flashcore_attn-*.whl
