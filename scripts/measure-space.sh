#!/usr/bin/env bash
# Measures the space that replays of searches are made from, on this machine's GPU (about three minutes on an H200):
# every config that `flashcore-tools measured-space` lists, on four problems, and writes it as one file.
#
#   scripts/measure-space.sh FOLDER     FOLDER/space.json, for `flashcore tune --device replay:FOLDER/space.json`
set -euo pipefail
folder=${1:?usage: scripts/measure-space.sh FOLDER}
mkdir -p "$folder"
cargo build --release --quiet -p flashcore-cli
flashcore=${CARGO_TARGET_DIR:-target}/release/flashcore
space() { cargo run --release --quiet -p flashcore-tools -- measured-space "$@"; }

reports=()
measure() { # measure NAME FIELDS: a problem of the sets of `flashcore bench`, and its fields as JSON
    local problem=$folder/$1.problem.json
    printf '[{"name": "%s", %s}]\n' "$1" "$2" >"$problem"
    space "$1" >"$folder/$1.ids.txt"
    "$flashcore" bench "$problem" --device cuda --kernel "$folder/$1.ids.txt" --sweep=12 --budget 0.3 --steady-lead 20 --peers none \
        --no-store --json >"$folder/$1.json"
    reports+=("$folder/$1.json")
}
measure mission '"like": "mission"'
measure d128-s1024 '"batch": 16, "heads": 16, "seq": 1024, "head_dim": 128'
measure d64-s4096-causal '"batch": 4, "heads": 32, "seq": 4096, "head_dim": 64, "causal": true'
measure d128-s8192-causal '"batch": 2, "heads": 16, "seq": 8192, "head_dim": 128, "causal": true'
space --of "${reports[@]}" >"$folder/space.json"
