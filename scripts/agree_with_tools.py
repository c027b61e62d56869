#!/usr/bin/env python3
"""Compares the simulator with NVIDIA's tools: passes over shared memory with ncu, races with racecheck.

usage: agree_with_tools.py watch PROBE RAW.json     runs the tools, on a machine with a GPU
       agree_with_tools.py compare RAW.json OUT     writes OUT.json and OUT.md
       agree_with_tools.py compare RAW.json OUT LIST.json     the same, with the current output of
                                                    the test `list` for the kernels that are equal

PROBE is the test program of `flashcore-tools` (`target/release/deps/it-…`, which `cargo test
--release -p flashcore-tools --test it --no-run` prints). Its tests `probes::watched::list` (with
`FLASHCORE_PROBE_LIST=LIST.json`) and `launch` are those that run here. ncu counts wavefronts for
every instruction of the machine code; its line table gives the Rust line of each instruction.
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


def test(probe, name):
    """The command that runs an ignored test of the probes."""
    return [probe, "--ignored", "--exact", f"probes::watched::{name}", "--nocapture"]


def launching(names):
    """The environment in which the test `launch` launches these probes, and fails without a GPU."""
    return {**os.environ, "FLASHCORE_PROBES": names, "FLASHCORE_REQUIRE_GPU": "1"}


def racecheck(probe, name):
    """racecheck's word on a probe: hazards by severity, and its messages."""
    command = ["compute-sanitizer", "--tool", "racecheck", "--racecheck-report", "all", "--print-limit", "20", *test(probe, "launch")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=launching(name))
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
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FLASHCORE_PROBE_LIST": folder + "/list.json"}
        subprocess.run(test(probe, "list"), capture_output=True, check=True, env=environment)
        listed = json.load(open(folder + "/list.json"))
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
            command += ["-f", "-o", report, *test(probe, "launch")]
            done = subprocess.run(command, capture_output=True, text=True, env=launching(what))
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
        case ["compare", raw, out, listed]:
            raw, listed = json.load(open(raw)), json.load(open(listed))
            now = {probe["name"]: probe for probe in listed["banks"]}
            # Kernels of attention may have changed since; those made to be watched have not.
            same = lambda probe: "/" not in probe["name"]
            raw["simulator"]["banks"] = [now[p["name"]] if same(p) else p for p in raw["simulator"]["banks"]]
            compare(raw, out)
        case _:
            raise SystemExit(__doc__)


WRITES = re.compile(r"\b(STS|STSM|LDGSTS)\b")


def measured(launch):
    """What ncu counts for a launch, line by line, as the simulator calls it."""
    lines = {}
    for row in launch["instructions"]:
        for which in METRICS.keys() & row.keys():
            writes = "shared_writes" if WRITES.search(row["sass"]) else "shared_reads"
            key = (row["file"], row["line"], "global_sectors" if which == "global" else writes)
            lines[key] = lines.get(key, 0) + row[which]
    return lines


def compare_lines(raw):
    """Every kernel with both counts of each of its lines."""
    kernels = []
    for probe, launch in zip(raw["simulator"]["banks"], raw["launches"], strict=True):
        if probe["kernel"] != launch["kernel"]:
            raise SystemExit(f"error: {probe['kernel']} was expected, ncu saw {launch['kernel']}")
        ours = {(line["file"], line["line"], line["what"]): line["count"] for line in probe["lines"]}
        theirs = measured(launch)
        lines = [
            {"at": f"{file.removeprefix('crates/')}:{line}", "what": what, "simulator": ours.get(key, 0), "ncu": theirs.get(key, 0)}
            for key in sorted(ours.keys() | theirs.keys())
            for file, line, what in [key]
        ]
        kernels.append({"name": probe["name"], "lines": lines})
    return kernels


def group(name):
    """Which row of the table a kernel belongs to: patterns of one kind share one."""
    found = re.match(r"(load|store|copy_through_l1|copy_past_l1)_(\d+)_", name)
    kinds = {"load": "loads", "store": "stores", "copy_through_l1": "copies", "copy_past_l1": "copies past L1"}
    return f"{kinds[found[1]]} of {found[2]} B a lane" if found else f"`{name}`"


def compare(raw, out):
    kernels = compare_lines(raw)
    about = {key: raw[key] for key in ["device", "driver", "date", "ncu", "compute_sanitizer"]}
    races = []
    for ours, theirs in zip(raw["simulator"]["races"], raw["races"], strict=True):
        hazards = theirs["hazards"] or [None] * 3
        races.append({**ours, "racecheck_errors": hazards[1], "racecheck_warnings": hazards[2], "racecheck_says": theirs["messages"][:1]})
    with open(out + ".json", "w") as file:
        head = json.dumps({**about, "command": "agree_with_tools.py watch PROBE RAW.json, then compare"})[:-1]
        rows = ",\n".join(json.dumps(kernel) for kernel in kernels)
        both = ",\n".join(json.dumps(race) for race in races)
        file.write(f'{head}, "kernels": [\n{rows}\n], "races": [\n{both}\n]}}\n')
    with open(out + ".md", "w") as file:
        file.write("\n".join(report(about, kernels, races)) + "\n")
    wrong = [(k["name"], line) for k in kernels for line in k["lines"] if line["simulator"] != line["ncu"]]
    for name, line in wrong:
        print(name, line)
    print(f"{sum(len(k['lines']) for k in kernels)} lines of {len(kernels)} kernels, {len(wrong)} differ")


def report(about, kernels, races):
    yield f"# The simulator compared with NVIDIA's tools: {about['device']}, driver {about['driver']}, {about['date']}"
    yield ""
    yield f"ncu and compute-sanitizer {about['ncu'].split()[1]}. By `scripts/agree_with_tools.py`; every line of every kernel is in"
    yield "the JSON file beside this one."
    yield ""
    yield "## Passes over shared memory and sectors of global memory, against ncu"
    yield ""
    yield "Sums over all lines of a kernel, or of all kernels of a kind; a line agrees if its own counts are equal."
    yield ""
    yield "Of the `wgmma` kernel ptxas merges equal ends of branches, whose products and stores then carry the line of one of"
    yield "them, and two loads; the sums are equal but for those."
    yield ""
    yield "| kernel | launches | lines | agree | shared passes: simulator | ncu | global sectors: simulator | ncu |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    rows = {}
    for kernel in kernels:
        rows.setdefault(group(kernel["name"]), []).append(kernel["lines"])
    for name, launches in rows.items():
        lines = [line for launch in launches for line in launch]
        agree = sum(line["simulator"] == line["ncu"] for line in lines)
        total = lambda who, is_global: sum(line[who] for line in lines if (line["what"] == "global_sectors") == is_global)
        counts = " | ".join(f"{total(who, is_global):,}" for is_global in [False, True] for who in ["simulator", "ncu"])
        yield f"| {name} | {len(launches)} | {len(lines)} | {agree} | {counts} |"
    yield ""
    yield "## Races, against racecheck"
    yield ""
    yield "| mistake | simulator | racecheck | mended: simulator | racecheck |"
    yield "|---|---|---|---|---|"
    says = lambda race: ", ".join(
        f"{race[key]} {word}" for key, word in [("racecheck_errors", "errors"), ("racecheck_warnings", "warnings")] if race[key]
    ) or "nothing"
    for racy, clean in zip(races[::2], races[1::2]):
        found = [", ".join(race["simulator"]) or "nothing" for race in (racy, clean)]
        yield f"| {racy['about']} | {found[0]} | {says(racy)} | {found[1]} | {says(clean)} |"


if __name__ == "__main__":
    main()
