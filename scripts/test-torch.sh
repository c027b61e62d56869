#!/bin/bash
# test-torch.sh [WHEELS]: installs the Python wheel with PyTorch, Transformers and Ray from PyPI into an empty
# virtual environment, runs the bindings' tests there, and writes the rows of run `torch` in
# evidence/ci/torch.jsonl. CI's own tests have NumPy only: PyTorch's Linux wheel brings about 3 GB. WHEELS is
# the folder that test-wheel.sh leaves (default target/wheels); the wheel is built if there is none. PYTHON
# names the interpreter.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
wheels=${1:-$root/target/wheels}
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
compgen -G "$wheels/flashcore_attention-*.whl" >/dev/null || "$root/scripts/test-wheel.sh" "$wheels"

"$python" -m venv "$work/env"
"$work/env/bin/pip" install --quiet "$(echo "$wheels"/flashcore_attention-*.whl)[test,transformers,ray]"
if [[ -x $root/target/debug/flashcore ]]; then # for the test of Ray
    export FLASHCORE_COMMAND=${FLASHCORE_COMMAND:-$root/target/debug/flashcore}
fi
cd "$work" # away from the sources: what is imported is what was installed
started=$SECONDS
status=0
"$work/env/bin/python" -m pytest -q -rs --show-capture=no -p no:cacheprovider --junitxml="$work/tests.xml" \
    "$root/bindings/python/tests" || status=$?

revision=$(git -C "$root" rev-parse --short=12 HEAD) seconds=$((SECONDS - started)) \
    "$work/env/bin/python" - "$work/tests.xml" "$root/evidence/ci/torch.jsonl" <<'EOF'
import datetime, json, os, platform, sys
import xml.etree.ElementTree as xml
import torch, transformers

tests, out = sys.argv[1:]
counts = {}
for case in xml.parse(tests).iter("testcase"):
    kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
    module = counts.setdefault(case.get("classname").split(".")[-1], {"passed": 0, "failed": 0, "skipped": 0})
    module["failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"] += 1
device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
versions = f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
rows = [{
    "run": "torch", "date": str(datetime.date.today()), "device": device, "driver": None,
    "revision": os.environ["revision"], "command": "scripts/test-torch.sh", "raw": {}, "at": None,
    "note": f"{versions}; {os.environ['seconds']} s; tests of CUDA tensors are skipped where there is no GPU",
}]
for name, count in sorted(counts.items()):
    failed = count.pop("failed")
    rows.append({"run": "torch", "claim": name, "value": failed, "unit": "failed tests", "ok": failed == 0, **count})
with open(out) as file:
    others = [line for line in file if json.loads(line)["run"] != "torch"]
with open(out, "w") as file:
    file.writelines([*(json.dumps(row) + "\n" for row in rows), *others])
print(f"{out}: {sum(row['value'] for row in rows[1:])} failed tests")
EOF
exit $status
