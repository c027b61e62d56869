#!/usr/bin/env python3
"""Prints what the steps of a CI run took and what was not checked, and writes FOLDER/summary.json.

usage: summary.py FOLDER TIER STATUS SECONDS [ENDED ...]    ENDED: steps that were ended before they were done

FOLDER/steps.tsv has a line a step: name, tier, expected seconds, outcome (`passed`, `failed`, `left-out`), seconds, log.
FOLDER/artefacts, if it is there, is what a release publishes: each file's size and SHA-256 are kept.
"""

import collections
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

# What tools say at their end, and the words for its numbers.
COUNTS = [
    (r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", "tests passed", "tests failed", "tests ignored"),
    (r"(\d+) clean \(at most \d+ registers\), .* (\d+) that may spill and do, (\d+) failed", "clean", "spill", "failed"),
    (r"(\d+) programs on ", "programs"),
    (r"(\d+) of (\d+) mistakes found", "found", "mistakes"),
    (r"(\d+) kernels: (\d+) clean, .*; (\d+) simulations", "kernels", "clean", "simulations"),
]
PYTEST = re.compile(r"(?:=+ )?((?:\d+ \w+(?:, )?)+) in \d")
NOT_CHECKED = "NOT CHECKED: "


def counts_of(lines):
    counts = collections.Counter()
    for line in lines:
        for pattern, *words in COUNTS:
            if found := re.search(pattern, line):
                counts.update(dict(zip(words, map(int, found.groups()))))
        if found := PYTEST.match(line):
            counts.update({f"tests {word}": int(number) for number, word in re.findall(r"(\d+) (\w+)", found[1])})
    return dict(counts)


def read_steps(folder, ended):
    steps, not_checked = [], []
    table = folder / "steps.tsv"
    for line in table.read_text(encoding="utf-8").splitlines() if table.exists() else []:
        name, tier, expected, outcome, took, log = line.split("\t")[:6]
        step = {"step": name, "tier": tier, "expected_s": int(expected), "outcome": outcome}
        if outcome == "left-out":
            not_checked.append(f"{name}: left out; tier {tier}, about {expected} s")
        else:
            lines = pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
            step.update(took_s=int(took), log=pathlib.Path(log).name, counts=counts_of(lines))
            said = (line.removeprefix(NOT_CHECKED) for line in lines if line.startswith(NOT_CHECKED))
            not_checked.extend(dict.fromkeys(said))  # once each
        steps.append(step)
    for name in ended:
        steps.append({"step": name, "outcome": "ended"})
        not_checked.append(f"{name}: ended before it was done")
    return steps, not_checked


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def artefacts(folder):
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        yield {"file": str(path.relative_to(folder)), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def main(folder, tier, status, seconds, *ended):
    folder = pathlib.Path(folder)
    steps, not_checked = read_steps(folder, ended)
    now = datetime.datetime.now(datetime.timezone.utc)
    summary = {
        "schema": 1,
        "tier": tier,
        "passed": status == "0",
        "revision": output("git", "rev-parse", "HEAD"),
        "modified": bool(output("git", "status", "--porcelain")),
        "start": (now - datetime.timedelta(seconds=int(seconds))).isoformat(timespec="seconds"),
        "seconds": int(seconds),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "versions": {"rustc": output("rustc", "--version"), "python": platform.python_version()},
        "steps": steps,
        "not_checked": not_checked,
        "artefacts": list(artefacts(folder / "artefacts")),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")

    print(f"\n{'took':>8} {'expected':>9}  tier  step")
    for step in steps:
        if "took_s" in step:
            counts = ", ".join(f"{number} {what}" for what, number in step["counts"].items())
            told = f"{step['step']}{': ' + counts if counts else ''}{' FAILED' if step['outcome'] == 'failed' else ''}"
            print(f"{step['took_s']:>6} s {step['expected_s']:>7} s  {step['tier']:<4}  {told}")
    for what in not_checked:
        print(f"{NOT_CHECKED}{what}")
    wrong = [step["step"] for step in steps if step["outcome"] in ("failed", "ended")]
    if status == "0":
        print(f"=== all steps of tier {tier} that were meant passed in {seconds} s", end="; ")
    else:
        print(f"=== FAILED after {seconds} s: {', '.join(wrong) or 'no step: the script'}", end="; ")
    print(folder / "summary.json")


main(*sys.argv[1:])
