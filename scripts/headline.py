#!/usr/bin/env python3
"""Measures the problems of README.md and docs/performance.md (headline.toml), each with at least eight rounds of every subject.

    scripts/headline.py OUT --libraries fa3 --until 540 [--had FILE.jsonl ...] [--device cpu] [--flashcore PATH]

OUT/runs.jsonl gets the runs, as `flashcore evidence export` writes them. What earlier files (`--had`) have is not
measured again, and a part that would not end before `--until` seconds is left out, so several calls can share the
work. Parts that need a library other than PyTorch run where `--libraries` names it. With `--device cpu` the CPU's part
runs alone. The last lines are the commands that make bundles of the runs, after `flashcore evidence import` of the
files (evidence/README.md).
"""
import argparse
import json
import os
import subprocess
import time
import tomllib
from pathlib import Path

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
START_SECONDS = 8  # of a process with PyTorch


def parts():
    """Name, seconds for a problem on an H200, library, problems and flags of each part."""
    for part in TABLE["part"]:
        problems = [problem for group in part["problems"] for problem in TABLE["problems"][group]]
        yield part["name"], part["seconds"], part.get("library", ""), problems, part["flags"].split()


def ended(files):
    """Problems that were measured to their end, and keys of the runs that did so, by the name of their part."""
    problems, keys = {}, {}
    for line in (line for file in files if file.exists() for line in file.open(encoding="utf-8")):
        kind, value = next(iter(json.loads(line).items()))
        if kind == "run":
            key, command = value["key"], value["identity"].get("command", [])
            is_of = lambda part: command[-len(part[4]):] == part[4] and command[2:3] and command[2] in part[3]
            name = next((part[0] for part in parts() if is_of(part)), None)
        elif kind == "measurement":
            case = value["case"]["name"]
        elif kind == "end":
            problems.setdefault(name, set()).add(case)
            keys.setdefault(name, {})[key] = None
    return problems, keys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--libraries", default="", help="fa3,fa4,flashinfer: those that are installed")
    parser.add_argument("--until", type=float, default=600, help="seconds after which nothing begins")
    parser.add_argument("--had", type=Path, nargs="*", default=[])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--flashcore", default="flashcore")
    args = parser.parse_args()
    began, libraries = time.monotonic(), {"", "cpu", *args.libraries.split(",")}
    args.out.mkdir(parents=True, exist_ok=True)
    runs = args.out / "runs.jsonl"
    env = dict(os.environ, XDG_DATA_HOME=str(args.out.resolve() / "data"))
    for name, seconds, library, problems, flags in parts():
        left = args.until - (time.monotonic() - began)
        done = ended([*args.had, runs])[0].get(name, set())
        wanted = [problem for problem in problems if problem not in done]
        fitting = wanted[:max(0, int((left - START_SECONDS) / seconds))]
        is_asked = library in libraries and (args.device == "cuda" or library == "cpu")
        if not is_asked or not fitting:
            print(f"{name}: {len(problems) - len(wanted)} of {len(problems)} measured before, left out with {left:.0f} s left", flush=True)
            continue
        # Names and flags alone: a file of problems or kernels would not come along with the command.
        command = [args.flashcore, "bench", *fitting, *flags]
        try:
            code = subprocess.run(command, env=env, timeout=left).returncode
        except subprocess.TimeoutExpired:
            code = "timed out"
        subprocess.run([args.flashcore, "evidence", "export", "all", "-o", runs], env=env, check=True)
        ends = time.monotonic() - began
        print(f"{name}: {len(fitting)} of {len(wanted)}, exit code {code}, from {args.until - left:.0f} to {ends:.0f} s", flush=True)
    for name, keys in ended([*args.had, runs])[1].items():
        print(f"flashcore evidence publish {name} {' '.join(keys)}")


main()
