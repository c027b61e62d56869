#!/usr/bin/env python3
"""Holds the simulator against NVIDIA's tools: passes over shared memory against ncu, races against racecheck.

usage: agree_with_tools.py watch PROBE RAW.json     runs the tools, on a machine with a GPU
       agree_with_tools.py compare RAW.json OUT     writes OUT.json and OUT.md

PROBE is the built example `probe` of `flashcore-fuzz`. ncu counts wavefronts for every instruction of the machine code;
its line table says which Rust line an instruction is of.
"""

import concurrent.futures
import datetime
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

METRICS = {"shared": "memory_l1_wavefronts_shared", "global": "memory_l2_theoretical_sectors_global"}


def ncu_report():
    """The Python module that comes with ncu."""
    ncu = os.path.realpath(shutil.which("ncu"))
    places = glob.glob("/usr/local/cuda*/nsight-compute-*/extras/python") + glob.glob("/opt/nvidia/nsight-compute/*/extras/python")
    folder = os.path.dirname(ncu)
    while folder != "/":
        places += glob.glob(folder + "/extras/python")
        folder = os.path.dirname(folder)
    for place in places:
        if os.path.exists(place + "/ncu_report.py"):
            sys.path.insert(0, place)
            import ncu_report as module

            return module
    raise SystemExit(f"error: ncu_report.py is not beside {ncu}, nor in {places}")


def instructions(report):
    """Every launch in a report: its kernel, and its instructions that touch shared memory, in order."""
    launches = []
    context = ncu_report().load_report(report)
    for r in range(context.num_ranges()):
        part = context.range_by_idx(r)
        for a in range(part.num_actions()):
            action = part.action_by_idx(a)
            counts = {}
            for which, name in METRICS.items():
                metric = action.metric_by_name(name)
                places = metric.correlation_ids()
                for i in range(metric.num_instances()):
                    if count := metric.as_uint64(i):
                        counts.setdefault(places.as_uint64(i), {})[which] = count
            rows = []
            for pc, count in sorted(counts.items()):
                source = action.source_info(pc)
                rows.append({"sass": action.sass_by_pc(pc).strip(), "file": source.file_name(), "line": source.line(), **count})
            launches.append({"kernel": action.name(), "instructions": rows})
    return launches


def racecheck(probe, name):
    """racecheck's word on a probe: hazards by severity, and its messages."""
    command = ["compute-sanitizer", "--tool", "racecheck", "--racecheck-report", "all", "--print-limit", "20", probe, "run", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired as late:
        return {"name": name, "timed_out": True, "output": (late.stdout or b"").decode()[-3000:]}
    text = done.stdout + done.stderr
    summary = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)", text)
    lines = [line for line in text.splitlines() if re.search(r"Error|Warning|hazard", line) and "SUMMARY" not in line]
    return {
        "name": name, "code": done.returncode, "ran": f"{name} ran" in text,
        "hazards": [int(n) for n in summary.groups()] if summary else None,
        "messages": [re.sub(r"^=+ *", "", line) for line in lines[:6]], "output": text[-3000:] if not summary else None,
    }


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def watch(probe, raw):
    listed = json.loads(output(probe, "list"))
    result = {"date": datetime.date.today().isoformat(), "simulator": listed}
    device = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").strip().splitlines()[0]
    result["device"], result["driver"] = [part.strip() for part in device.split(",")]
    result["ncu"] = output("ncu", "--version").strip().splitlines()[-1]
    result["compute_sanitizer"] = output("compute-sanitizer", "--version").strip().splitlines()[-1]
    names = [race["name"] for race in listed["races"]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        result["races"] = list(pool.map(lambda name: racecheck(probe, name), names))
    json.dump(result, open(raw, "w"))
    result["launches"] = []
    for what in ["banks", "attention"]:
        with tempfile.TemporaryDirectory() as folder:
            report = folder + "/report"
            command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--metrics", ",".join(METRICS.values())]
            done = subprocess.run(command + ["-f", "-o", report, probe, "run", what], capture_output=True, text=True)
            result.setdefault("ncu_said", []).append((done.stdout + done.stderr)[-2000:])
            json.dump(result, open(raw, "w"))
            result["launches"] += instructions(report + ".ncu-rep")
            json.dump(result, open(raw, "w"))


def main():
    match sys.argv[1:]:
        case ["watch", probe, raw]:
            watch(os.path.abspath(probe), raw)
        case ["compare", raw, out]:
            compare(json.load(open(raw)), out)
        case _:
            raise SystemExit(__doc__)


def compare(raw, out):
    raise SystemExit("not yet")


if __name__ == "__main__":
    main()
