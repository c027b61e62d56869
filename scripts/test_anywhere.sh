#!/usr/bin/env bash
# Runs test suites under settings that must not matter: the length of TMPDIR, the CPU's name, the number
# of threads, and other load. Ten runs per suite; each setting is in five of them, each pair in two or more.
#
#   scripts/test_anywhere.sh [SUITE...]     default: cli bench tune (packages flashcore-SUITE)
#
# Builds first, as `cargo test --workspace` does. Prints a line per run and the output of each failure;
# writes rows of evidence to the file ROWS (default evidence/ci/anywhere.jsonl). Exits with 1 if a run failed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
suites=("$@")
[[ ${#suites[@]} -gt 0 ]] || suites=(cli bench tune)

LONG_NAME="Intel(R) Xeon(R) Platinum 8480CL CPU with a long name @ 2.00"
SHORT_NAME="CPU"
BUSY_LOOPS=4
# A row a run: long TMPDIR, long name, 16 threads, busy loops. A half of the 16 combinations, in which each pair of
# settings occurs twice, and two more.
DESIGN=("0 0 0 0" "1 1 0 0" "1 0 1 0" "1 0 0 1" "0 1 1 0" "0 1 0 1" "0 0 1 1" "1 1 1 1" "0 1 0 1" "1 0 1 0")

work=$(mktemp -d)
busy=()
stop_busy() {
    if [[ ${#busy[@]} -gt 0 ]]; then
        kill "${busy[@]}" 2>/dev/null || true
        wait "${busy[@]}" 2>/dev/null || true
        busy=()
    fi
}
finish() {
    stop_busy
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# TMPDIR of 5 and of 120 characters. The short one exists everywhere; tests remove what they make in it.
short_tmp=/tmp/
long_tmp=$work/
while [[ ${#long_tmp} -lt 119 ]]; do long_tmp+=x; done
long_tmp+=y
mkdir -p "$long_tmp"
[[ ${#short_tmp} == 5 && ${#long_tmp} == 120 && ${#SHORT_NAME} == 3 && ${#LONG_NAME} == 60 ]]

cargo test --workspace --no-run --quiet --message-format=json >"$work/built.json"
# PACKAGE FOLDER BINARY of each test binary.
python3 - "$work/built.json" >"$work/binaries" <<'PYTHON'
import json, os, sys
for line in open(sys.argv[1], encoding="utf-8"):
    if line.startswith("{"):
        built = json.loads(line)
        if built.get("executable") and built.get("profile", {}).get("test"):
            folder = os.path.dirname(built["manifest_path"])
            package = built["package_id"].split("#")[-1].split("@")[0]
            print(package if package.startswith("flashcore") else os.path.basename(folder), folder, built["executable"])
PYTHON

run_suite() { # run_suite PACKAGE: its test binaries, each in the package's folder; output to $work/out
    local status=0
    while read -r package folder binary; do
        if [[ $package == "$1" ]]; then
            (cd "$folder" && "$binary" </dev/null) >>"$work/out" 2>&1 || status=1
        fi
    done <"$work/binaries"
    return $status
}

total() { # total WORD: the sum of `N passed` or `N failed` over the binaries of a run
    awk -v word="$1;" '/^test result:/ { for (i = 2; i <= NF; i++) if ($i == word) sum += $(i - 1) } END { print sum + 0 }' "$work/out"
}

failed=0
rows=()
export INSTA_UPDATE=no CUDA_VISIBLE_DEVICES= RUST_BACKTRACE=0
printf '%-6s %6s %6s %7s %5s %7s %7s %8s\n' suite tmpdir name threads busy passed failed seconds
for design in "${DESIGN[@]}"; do
    read -r long_path long_name many loaded <<<"$design"
    tmp=$short_tmp name=$SHORT_NAME threads=1
    [[ $long_path == 0 ]] || tmp=$long_tmp
    [[ $long_name == 0 ]] || name=$LONG_NAME
    [[ $many == 0 ]] || threads=16
    loops=$((loaded * BUSY_LOOPS))
    for ((i = 0; i < loops; i++)); do
        (while :; do :; done) &
        busy+=($!)
    done
    for suite in "${suites[@]}"; do
        package=flashcore-$suite
        if ! grep -q "^$package " "$work/binaries"; then
            echo "no test binary of the package $package"
            exit 2
        fi
        : >"$work/out"
        started=$SECONDS
        verdict=true
        TMPDIR=$tmp FLASHCORE_CPU_NAME=$name RUST_TEST_THREADS=$threads RAYON_NUM_THREADS=$threads \
            run_suite "$package" || verdict=false
        seconds=$((SECONDS - started))
        passed=$(total passed)
        wrong=$(total failed)
        printf '%-6s %6d %6d %7d %5d %7d %7d %8d\n' \
            "$suite" ${#tmp} ${#name} "$threads" "$loops" "$passed" "$wrong" "$seconds"
        what="$suite: TMPDIR of ${#tmp} characters, CPU name of ${#name}, $threads threads, $loops busy loops"
        rows+=("{\"run\": \"anywhere\", \"claim\": \"$what\", \"value\": $wrong, \"unit\": \"failed tests\", \"ok\": $verdict, \"passed\": $passed, \"seconds\": $seconds}")
        if [[ $verdict == false ]]; then
            failed=$((failed + 1))
            sed -n '/^failures:/,$p' "$work/out"
        fi
    done
    stop_busy
done

out=${ROWS:-$root/evidence/ci/anywhere.jsonl}
{
    printf '{"run": "anywhere", "date": "%s", "device": "CPU, %d cores", "driver": null, "revision": "%s", ' \
        "$(date -u +%F)" "$(nproc)" "$(git rev-parse --short=12 HEAD)"
    printf '"command": "scripts/test_anywhere.sh", "raw": {}, "at": null, "note": "%d of %d runs failed"}\n' \
        $failed ${#rows[@]}
    printf '%s\n' "${rows[@]}"
} >"$out"
echo "${#rows[@]} runs, $failed failed; $out"
[[ $failed == 0 ]]
