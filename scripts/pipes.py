#!/usr/bin/env python3
"""Holds predicted pipe shares and bank conflicts against those that ncu reads, over a list that was fixed before.

usage: scripts/pipes.py FOLDER [--flashcore PATH] [--only NAME] [--predict CARD]

Runs `flashcore profile` on every kernel of lab/tools/data/pipes.txt, about five minutes on a GPU, and
writes what it prints to FOLDER; what is there already is compared as it is. The evidence store keeps
the counters, too. --predict prints what is predicted for a card, neither reads nor writes FOLDER, and
needs no GPU. Shares count where either value is at least 10 %; a prediction is right within 10 points.
Exits with 1 where less than 80 % of the rows are right, where bank conflicts differ, or where counters
or predictions are missing.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import grid

LIST = pathlib.Path(__file__).resolve().parent.parent / "lab/tools/data/pipes.txt"
PIPES = ("tensor", "mufu", "fma", "alu", "issue", "shared", "l2_read", "dram")
COUNTS, WITHIN, SHARE = 10.0, 10.0, 0.8


def listed(only):
    """(problem, kernel, whether its counters had been read before)"""
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#") and line.startswith(only):
            problem, kernel, *seen = line.split()
            yield problem, kernel, seen == ["seen"]


def shape(problem):
    """The words of the command for a problem: its name, or the flags of a shape of the grid."""
    sizes = grid.sizes(problem)
    if sizes is None:
        return [problem]
    flags = zip(("--batch", "--heads", "--seq", "--head-dim"), sizes)
    return [str(word) for pair in flags for word in pair] + ["--causal"] * sizes[-1]


def profiled(options, problem, kernel):
    """The first launch of a kernel, as `flashcore profile` told it; None if it failed."""
    file = options.folder / f"{problem} {kernel.replace('/', ' ')}.json"
    # What a measurement left is no prediction of now, nor for this card.
    if options.predict or not file.exists():
        command = [options.flashcore, "profile", *shape(problem), "--kernel", kernel, "--json"]
        command += ["--device", f"predict:{options.predict}"] if options.predict else []
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            print(f"{problem} {kernel}: {run.stderr.strip()[-300:]}")
            return None
        if options.predict:
            return json.loads(run.stdout)["kernels"][0]
        file.write_text(run.stdout)
    return json.loads(file.read_text())["kernels"][0]


def score(name, kernels):
    """Prints how many rows are right, and returns whether these are enough."""
    rows = [row for _, rows, _ in kernels for row in rows]
    right = sum(1 for _, measured, predicted in rows if abs(measured - predicted) <= WITHIN)
    equal = sum(1 for *_, (measured, predicted) in kernels if measured == predicted)
    percent = 100 * right / max(len(rows), 1)
    print(
        f"{name}: {right} of {len(rows)} rows of {COUNTS:.0f} % or more within {WITHIN:.0f} points ({percent:.0f} %); "
        f"bank conflicts equal on {equal} of {len(kernels)} kernels"
    )
    return bool(rows) and percent >= 100 * SHARE and equal == len(kernels)


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path, help="what was read, and where the rest goes")
    usage.add_argument("--flashcore", default="flashcore", help="the command")
    usage.add_argument("--only", default="", metavar="NAME", help="kernels of the list whose problem begins so")
    usage.add_argument("--predict", metavar="CARD", help="print the predictions alone")
    options = usage.parse_args()
    if not options.predict:
        options.folder.mkdir(parents=True, exist_ok=True)
    all_of_them, missing = [], 0
    for problem, kernel, seen in listed(options.only):
        told = profiled(options, problem, kernel)
        if options.predict and told and told["prediction"]:
            shares = [f"{row['key']} {row['predicted']:.0f}" for row in told["rows"] if (row["predicted"] or 0) >= COUNTS]
            conflicts = told["prediction"]["wavefronts_excess"]
            print(f"{problem} {kernel}: {told['prediction']['micros']:.2f} us, conflicts {conflicts}, {', '.join(shares)}")
            continue
        if not told or not told["counters"] or not told["prediction"]:
            missing += 1
            print(f"no {'prediction' if options.predict else 'counters'} of {problem} {kernel}")
            continue
        rows = [(row["key"], row["measured"], row["predicted"]) for row in told["rows"] if row["key"] in PIPES]
        rows = [row for row in rows if None not in row and max(row[1:]) >= COUNTS]
        conflicts = (told["counters"]["counters"].get("wavefronts_excess"), told["prediction"]["wavefronts_excess"])
        for key, measured, predicted in rows:
            off = "" if abs(measured - predicted) <= WITHIN else "  off"
            print(f"{problem:<20}{kernel:<44}{key:<10}{measured:>10.1f}{predicted:>10.1f}{off}")
        print(f"{problem:<20}{kernel:<44}conflicts {conflicts[0]} {conflicts[1]} {'equal' if conflicts[0] == conflicts[1] else 'DIFFER'}")
        all_of_them.append((seen, rows, conflicts))
    if options.predict:
        return 1 if missing else 0
    passed = [score("all", all_of_them), score("not seen before", [kernel for kernel in all_of_them if not kernel[0]])]
    return 0 if all(passed) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
