#!/bin/bash
# test-kbench.sh: judges PyTorch kernels, honest and cheating, for a robust-kbench task on the CPU with `flashcore kbench
# verify`, and writes rows of evidence to the file ROWS (default evidence/ci/kbench.jsonl). PYTHON names an interpreter
# with PyTorch (default: scripts/get-torch.sh installs one). FLASHCORE names the command; without it, it is built.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$("$root/scripts/get-torch.sh")/bin/python}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

flashcore=${FLASHCORE:-}
if [[ -z $flashcore ]]; then
    cargo build --quiet --manifest-path "$root/Cargo.toml" -p flashcore-cli
    flashcore=${CARGO_TARGET_DIR:-$root/target}/debug/flashcore
fi
export FLASHCORE_PYTHON=$python FLASHCORE_CACHE_DIR=$work/cache

revision=$(git -C "$root" rev-parse --short=12 HEAD) "$python" - "$flashcore" "$root" "$work" "${ROWS:-$root/evidence/ci/kbench.jsonl}" <<'PYTHON'
import datetime, json, os, pathlib, platform, subprocess, sys, time
import torch

flashcore, root, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
kernels = root / "lab/bench/tests/data/kbench/torch"
# The checks that each must fail, and no others but `clock`: timed calls find some, too, by what they write.
expected = {"honest": [], "cached": ["stale"], "no_max": ["values"], "fixed_length": ["lengths"], "late": ["stream"], "lazy": ["protocol"]}
started = time.monotonic()
claims = []
for dtype in ("fp16", "bf16", "f32"):
    task = work / f"tiny_{dtype}"
    subprocess.run([flashcore, "kbench", "export", "tiny", task, "--kernel", "none", "--dtype", dtype], check=True, stdout=subprocess.DEVNULL)
    for kernel, wanted in expected.items():
        command = [flashcore, "kbench", "verify", task, "--kernel", kernels / f"{kernel}.py", "--trust", "--device", "cpu"]
        ran = subprocess.run(command + ["--multi", "--rounds", "2x5", "--seed", "1", "--json"], capture_output=True, text=True)
        said = json.loads(ran.stdout) if ran.stdout else sys.exit(ran.stderr)
        failed = [check["id"] for check in said["report"]["checks"] if check["status"] == "fail"]
        ok = failed == wanted or (failed and wanted and set(failed) == {*wanted, "clock"})
        details = [check["detail"] for check in said["report"]["checks"] if check["status"] == "fail"]
        print(f"{dtype} {kernel}: {failed or 'passes'} {details}", "" if ok else f"EXPECTED {wanted}")
        claims.append({"run": "kbench", "claim": f"{kernel}, {dtype}: " + (f"fails {wanted[0]}" if wanted else "passes"),
                       "value": int(not ok), "unit": "unexpected verdicts", "ok": ok})
run = {
    "run": "kbench", "date": str(datetime.date.today()), "device": f"CPU, {os.cpu_count()} cores", "driver": None,
    "revision": os.environ["revision"], "command": "scripts/test-kbench.sh", "raw": {}, "at": None,
    "note": f"Python {platform.python_version()}, torch {torch.__version__}; problem tiny, {time.monotonic() - started:.0f} s",
}
out = pathlib.Path(sys.argv[4])
out.write_text("".join(json.dumps(row) + "\n" for row in [run, *claims]))
unexpected = sum(claim["value"] for claim in claims)
print(f"{out}: {unexpected} unexpected verdicts")
sys.exit(unexpected > 0)
PYTHON
