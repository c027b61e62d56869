#!/usr/bin/env python3
"""Assembles PTX files for every architecture they run on and refuses any code that is not clean.

usage: scripts/assemble.py FOLDER [--sample N] [--every N] [--always PATTERN ...] [--may-spill PATTERN ...]
       [--ptxas PATH] [--nvdisasm PATH] [--summary FILE]

Every .ptx file below FOLDER goes through `ptxas -v` once per target, or, if its folder has the name
of a target, for that target only. A kernel fails on an error, on a spill, on a stack frame, and on
any line that ptxas prints beyond its usual statistics: it prints serialised wgmma, which costs a
factor of three, only as information. A kernel with wgmma fails, too, if its machine code overwrites an
operand that a loop holds in registers (held_operands.py); that needs nvdisasm, which is --nvdisasm or
.bin/nvdisasm. Without it the last line says that this was not checked.

Kernels below FOLDER/varied, and those that --may-spill names, may spill: they are listed and do not
fail. The driver layer refuses to load them.

Targets are sm_80, sm_89, sm_90a and sm_120, as far as this ptxas knows them. A kernel is not
assembled for targets below its own, nor by a ptxas that does not know its PTX version. ptxas is
--ptxas, $FLASHCORE_PTXAS, or .bin/ptxas.

--summary writes a small JSON file: for each target how many kernels are clean, what spilled and what failed.

Exit code: 0 all clean, 1 something failed, 2 wrong usage or a ptxas that knows none of the targets, 3 no ptxas.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import held_operands

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ["sm_80", "sm_89", "sm_90a", "sm_120"]
TIMEOUT_S = 300

# What ptxas -v prints about code that is as it should be.
STATISTICS = [
    re.compile(r"ptxas\S* info\s*: \d+ bytes gmem(, .*)?"),
    re.compile(r"ptxas\S* info\s*: Compiling entry function '.*' for '.*'"),
    re.compile(r"ptxas\S* info\s*: Function properties for .*"),
    re.compile(r"ptxas\S* info\s*: Compile time = .*"),
    re.compile(r"ptxas\S* info\s*: Used (?P<registers>\d+) registers(?P<rest>.*)"),
    re.compile(
        r"\s*(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    ),
]


def known_targets(ptxas):
    help_text = subprocess.run([ptxas, "--help"], capture_output=True, text=True, timeout=60).stdout
    return set(re.findall(r"'(sm_\d+[af]?)'", help_text))


def runs_on(own, target):
    """Whether PTX for `own` can be assembled for `target`: architecture-specific code for its own only."""
    number = lambda name: int(re.fullmatch(r"sm_(\d+)[af]?", name)[1])
    return target == own if own[-1] in "af" else number(target) >= number(own)


def targets_of(path, targets, turn):
    """Those of the targets that a kernel is for: the one that its folder is named after, or all, or one in turn."""
    own = path.parent.name
    if re.fullmatch(r"sm_\d+[af]?", own):
        return [t for t in targets if t == own]
    return targets if turn is None else [targets[turn % len(targets)]]


def assemble(ptxas, nvdisasm, may_spill, path, target):
    """One kernel file for one target: a record of what ptxas said."""
    record = {"kernel": path.stem, "target": target, "verdict": "clean", "notes": []}
    may_spill = "varied" in path.parts or any(fnmatch.fnmatchcase(path.stem, pattern) for pattern in may_spill)
    text = path.read_text()
    own = re.search(r"^\.target\s+(sm_\d+[af]?)", text, re.MULTILINE)
    if not own:
        return record | {"verdict": "FAILED", "notes": ["the file has no .target line"]}
    if not runs_on(own[1], target):
        return record | {"verdict": f"not for {own[1]} code"}

    started = time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        command = [ptxas, "-v", "-arch", target, str(path), "-o", cubin.name]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return record | {"verdict": "FAILED", "notes": [f"ptxas did not finish in {TIMEOUT_S} s"]}
        record["seconds"] = round(time.monotonic() - started, 3)
        if run.returncode == 0 and "wgmma.mma_async" in text:
            record["held_operands"] = "checked" if nvdisasm else "not checked"
            try:
                record["notes"] += held_operands.check(nvdisasm, cubin.name) if nvdisasm else []
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                record["notes"].append(f"operands that loops hold: {error}")

    too_new = re.search(r"Unsupported \.version ([\d.]+)", run.stdout + run.stderr)
    if too_new:
        return record | {"verdict": f"not for PTX {too_new[1]}"}
    notes = record["notes"]
    for line in (run.stdout + run.stderr).splitlines():
        match = next((m for m in (s.fullmatch(line) for s in STATISTICS) if m), None)
        if not match:
            if line.strip():
                notes.append(line.strip())
            continue
        found = match.groupdict()
        if "registers" in found:
            record["registers"] = max(record.get("registers", 0), int(found["registers"]))
            shared = re.search(r"(\d+)(?:\+(\d+))? bytes smem", found["rest"])
            record["static_smem"] = sum(int(n) for n in shared.groups() if n) if shared else 0
        if "stack" in found:
            stack, stores, loads = (int(found[key]) for key in ("stack", "stores", "loads"))
            record["spills"] = record.get("spills", 0) + stores + loads
            if stores or loads:
                spilled = f"spills: {stores} bytes stored, {loads} bytes loaded"
                if may_spill:
                    record["verdict"] = spilled
                else:
                    notes.append(spilled)
            elif stack:
                notes.append(f"a stack frame of {stack} bytes")
    if run.returncode != 0 and not notes:
        notes.append(f"ptxas exited with {run.returncode}")
    if run.returncode == 0 and "registers" not in record:
        notes.append("the file contains no kernel")
    if notes:
        record["verdict"] = "FAILED"
    return record


def version(ptxas):
    text = subprocess.run([ptxas, "--version"], capture_output=True, text=True, timeout=60).stdout
    return re.search(r"release [\d.]+, V[\d.]+", text)[0]


def summary(ptxas, targets, records):
    by_target = {}
    for target in targets:
        mine = [r for r in records if r["target"] == target]
        by_target[target] = {
            "clean": sum(r["verdict"] == "clean" for r in mine),
            "most registers": max((r.get("registers", 0) for r in mine if r["verdict"] == "clean"), default=0),
            "spilled, refused when loaded": {r["kernel"]: r["verdict"] for r in mine if r["verdict"].startswith("spills")},
            "failed": {r["kernel"]: r["notes"] for r in mine if r["verdict"] == "FAILED"},
        }
    return {"ptxas": version(ptxas), "targets": by_target}


def table(records):
    for r in records:
        numbers = [f"{r.get(key, '-')} {key}" for key in ("registers", "static_smem", "spills")]
        yield f"{r['kernel']} {r['target']}: {r['verdict']} ({', '.join(numbers)})"
        yield from (f"    {note[:96]}" for note in r["notes"][:8])


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path, help="folder of .ptx files")
    usage.add_argument("--sample", type=int, metavar="N", help="each kernel for one target in turn, the first for the Nth")
    usage.add_argument("--every", type=int, default=1, metavar="N", help="only the first of every N kernels, by their paths")
    usage.add_argument("--always", action="append", default=[], metavar="PATTERN", help="kernels that --every takes besides")
    usage.add_argument("--may-spill", action="append", default=[], metavar="PATTERN", help="kernels that may, such as 'mma_*_d256'")
    usage.add_argument("--ptxas", metavar="PATH", help="the assembler")
    usage.add_argument("--nvdisasm", default=str(ROOT / ".bin" / "nvdisasm"), metavar="PATH", help="the disassembler")
    usage.add_argument("--summary", type=pathlib.Path, metavar="FILE", help="also write a summary there")
    options = usage.parse_args()

    ptxas = options.ptxas or os.environ.get("FLASHCORE_PTXAS") or str(ROOT / ".bin" / "ptxas")
    if not os.access(ptxas, os.X_OK):
        print(f"no ptxas at {ptxas}; run scripts/get-ptxas.sh", file=sys.stderr)
        return 3
    files = sorted(options.folder.rglob("*.ptx"))
    if not files:
        print(f"no .ptx files in {options.folder}", file=sys.stderr)
        return 2
    unmatched = [p for p in options.always if not any(fnmatch.fnmatchcase(path.stem, p) for path in files)]
    if unmatched:
        print(f"--always {unmatched[0]}: no kernel has such a name", file=sys.stderr)
        return 2
    sampled = set(files[:: options.every])
    files = [f for f in files if f in sampled or any(fnmatch.fnmatchcase(f.stem, p) for p in options.always)]
    known = known_targets(ptxas)
    targets = [target for target in TARGETS if target in known]
    unknown = [target for target in TARGETS if target not in known]
    if not targets:
        print(f"{version(ptxas)}: this ptxas does not know {', '.join(unknown)}", file=sys.stderr)
        return 2

    started = time.monotonic()
    nvdisasm = options.nvdisasm if os.access(options.nvdisasm, os.X_OK) else None
    turns = [None if options.sample is None else options.sample + i for i in range(len(files))]
    jobs = [(path, target) for path, turn in zip(files, turns) for target in targets_of(path, targets, turn)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        records = list(pool.map(lambda job: assemble(ptxas, nvdisasm, options.may_spill, *job), jobs))
    failed = [r for r in records if r["verdict"] == "FAILED"]
    refused = [r for r in records if r["verdict"].startswith("spills")]
    skipped = [r for r in records if r["verdict"].startswith("not for")]

    if options.summary:
        found = summary(ptxas, targets, records)
        options.summary.write_text(json.dumps(found, indent=1) + "\n")
    if failed + refused:
        print("\n".join(table(failed + refused)))
    clean = len(records) - len(failed) - len(skipped) - len(refused)
    most = max((r.get("registers", 0) for r in records), default=0)
    print(f"{len(files)} kernels for {', '.join(targets)} in {time.monotonic() - started:.1f} s:")
    print(
        f"{clean} clean (at most {most} registers), {len(skipped)} not for the target, "
        f"{len(refused)} that may spill and do, {len(failed)} failed"
    )
    with_wgmma = sum("held_operands" in r for r in records)
    if with_wgmma and not nvdisasm:
        print(f"NOT CHECKED: operands that loops hold, in {with_wgmma} kernels with wgmma: no nvdisasm at {options.nvdisasm}")
    elif with_wgmma:
        print(f"operands that loops hold are checked in {with_wgmma} kernels with wgmma")
    if unknown:
        print(f"not known to this ptxas: {', '.join(unknown)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
