#!/usr/bin/env bash
# Fetches NVIDIA's offline assembler and disassembler into DIR (.bin by default), which git ignores,
# and prints the path of ptxas. Needs python3 with pip, no GPU and no toolkit. They may be used but not
# redistributed: nothing of them belongs in the repository or in a package.
#
# usage: scripts/get-ptxas.sh [DIR]
#
#   DIR/ptxas        CUDA 13.0: every target
#   DIR/ptxas-12.0   CUDA 12.0: the oldest that drivers this project supports embed (x86-64 only)
#   DIR/nvdisasm     prints machine code
#
# Does nothing where they are there already. Versions and hashes are pinned below.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${1:-.bin}

# fetch NAME PROGRAM PACKAGE SHA256...: unpacks a wheel of one of these hashes and links DIR/NAME to PROGRAM.
fetch() {
    local name=$1 program=$2 package=$3
    shift 3
    local unpacked=$dir/${package//==/-}
    if [[ -x $dir/$name && -d $unpacked ]]; then return; fi

    local wanted
    wanted=$(mktemp)
    printf '%s' "$package" >"$wanted"
    printf ' --hash=sha256:%s' "$@" >>"$wanted"
    rm -rf "$unpacked"
    python3 -m pip --quiet --disable-pip-version-check install --no-deps --only-binary=:all: \
        --no-compile --root-user-action=ignore --require-hashes --target "$unpacked" --requirement "$wanted" >&2
    rm -f "$wanted"

    local found
    found=$(find "$unpacked" -type f -name "$program" -path '*/bin/*' | head -n 1)
    if [[ -z $found ]]; then
        echo "get-ptxas: $package contains no $program" >&2
        exit 1
    fi
    chmod +x "$found"
    ln -sfn "${found#"$dir"/}" "$dir/$name"
}

mkdir -p "$dir"
fetch ptxas ptxas nvidia-cuda-nvcc==13.0.88 \
    56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03 \
    c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f
fetch nvdisasm nvdisasm nvidia-cuda-nvdisasm==13.5.37 \
    d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca \
    a3a8248074edb9fba63b74c38a5416b712a91ab09e70b8ab37186c3d293fc605
if [[ $(uname -m) == x86_64 ]]; then
    fetch ptxas-12.0 ptxas nvidia-cuda-nvcc-cu12==12.0.76 \
        c989c1d8f52b4f52016dcdd702d62ae4969d4fc349517eeb9fecae652a3d1388
fi
echo "$dir/ptxas"
