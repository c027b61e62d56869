#!/usr/bin/env bash
# build-candle-cuda.sh FOLDER [OUT]: builds the tests of bindings/candle for a GPU, on a machine that has neither
# a GPU nor CUDA, and leaves them in OUT (default target/candle-cuda).
#
#   OUT/flashcore-candle-tests           functions and gradients against float64
#   OUT/flashcore-candle-models          tokens of models with flash attention
#   OUT/flashcore-candle-models-unfused  the same models with candle's own attention
#
# FOLDER gets CUDA 13.0's compiler from PyPI (0.5 GB) and link stubs of CUDA's libraries. Candle's
# kernels for quantised and mixture-of-experts models are left out: compiling them takes ten minutes,
# and no model here uses them. COMPUTE_CAP names the GPU (default 90).
#
# They need the driver, and cuBLAS and cuRAND of CUDA 13, such as those of PyTorch's wheels:
# LD_LIBRARY_PATH=.../site-packages/nvidia/cu13/lib FLASHCORE_CANDLE_GPU=1 OUT/flashcore-candle-models --nocapture
set -euo pipefail
if [[ $# -lt 1 ]]; then
    sed -n '2,16s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" "${2:-$root/target/candle-cuda}"
folder=$(cd "$1" && pwd)
out=$(cd "${2:-$root/target/candle-cuda}" && pwd)
toolkit=$folder/toolkit/nvidia/cu13

if [[ ! -x $toolkit/bin/nvcc ]]; then
    python3 -m pip --quiet --disable-pip-version-check install --no-deps --only-binary=:all: --no-compile \
        --root-user-action=ignore --target "$folder/toolkit" nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
    chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
fi
"$root/scripts/cuda_stubs.py" "$folder/stubs"

export REAL_NVCC=$toolkit/bin/nvcc NVCC=$folder/stubs/bin/nvcc CUDA_COMPUTE_CAP=${COMPUTE_CAP:-90} CUDARC_CUDA_VERSION=13000
export LIBRARY_PATH=$folder/stubs/lib CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$folder/target}
cd "$root/bindings/candle"
build() { # build NAME ARGUMENTS OF CARGO
    local tests
    tests=$(cargo test --release --locked --test it --no-run "${@:2}" 2>&1 | sed -n 's/.*Executable tests.*(\(.*\))$/\1/p')
    cp "$tests" "$out/$1"
}
build flashcore-candle-tests --features cuda
build flashcore-candle-models -p flashcore-candle-models
build flashcore-candle-models-unfused -p flashcore-candle-models --no-default-features
ls -l "$out"
