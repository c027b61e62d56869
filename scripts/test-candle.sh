#!/usr/bin/env bash
# test-candle.sh: lints and tests bindings/candle on the CPU, on a machine without CUDA. The feature
# `cuda` is on, so that its code is compiled, against link stubs (scripts/cuda_stubs.py).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/candle}
stubs=$root/target/candle-stubs
"$root/scripts/cuda_stubs.py" "$stubs"
export NVCC=$stubs/bin/nvcc CUDA_COMPUTE_CAP=90 CUDARC_CUDA_VERSION=13000
export LIBRARY_PATH=$stubs/lib LD_LIBRARY_PATH=$stubs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
cd "$root/bindings/candle"
cargo fmt --check
# The compiler of the tests lints, too: `cargo clippy` would read all dependencies a second time.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
cargo test --quiet --locked --workspace --features cuda
