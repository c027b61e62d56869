#!/usr/bin/env python3
"""Compares our kernels with the best peer of each shape, by groups of shapes, from `flashcore bench --csv`.

usage: scripts/best_peer.py FILE.csv ...

Prints two figures per group: from the ratios, and from the median times. A ratio is paired round by
round: the median over rounds of a subject's time over the baseline's (fa3 in the evidence here). If
a peer other than the baseline is the best, the figure is the quotient of two such ratios. Above 1
our kernel is faster. A later file's shape replaces an earlier one's. Shapes with another head_dim of
V are not part of the grid and are left out.
"""

import csv
import math
import re
import sys

GROUPS = {
    "canonical grid and Llama": lambda shape: True,
    "head_dim 64": lambda shape: shape["head_dim"] == 64,
    "head_dim 128": lambda shape: shape["head_dim"] == 128,
    "head_dim 128 from 4k keys": lambda shape: shape["head_dim"] == 128 and shape["keys"] >= 4096,
    "head_dim 256": lambda shape: shape["head_dim"] == 256,
    "up to 1k keys": lambda shape: shape["keys"] <= 1024,
}


def is_ours(subject):
    return subject.split("/")[0] in ("mma", "wgmma", "scalar")


def read(paths):
    """{(dtype, problem): {subject: row}}, the mission's forms apart: they are no shapes of the grid."""
    shapes = {}
    for path in paths:
        found = {}
        for row in csv.DictReader(open(path)):
            dtype = re.search(r" (fp16|bf16|e4m3) ", row["shape"] + " ")[1]
            found.setdefault((dtype, row["problem"]), {})[row["subject"]] = row
        shapes.update(found)
    return shapes


def beside_best(rows):
    """(of ratios, of medians): the best peer's time over ours."""
    ours = next(row for subject, row in rows.items() if is_ours(subject))
    peers = [row for subject, row in rows.items() if not is_ours(subject)]
    # The baseline has no ratio: it is what others are divided by. Nothing else may lack one.
    if sum(not row["ratio"] for row in rows.values()) > 1:
        raise SystemExit(f"more than one subject without a ratio: {sorted(rows)}")
    ratio = lambda row: float(row["ratio"] or 1)
    return min(map(ratio, peers)) / ratio(ours), min(float(peer["p50_us"]) for peer in peers) / float(ours["p50_us"])


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 2
    shapes = read(sys.argv[1:])
    for dtype in sorted({dtype for dtype, _ in shapes}):
        of_dtype = []
        for (other, problem), rows in shapes.items():
            if other != dtype or " Dv" in next(iter(rows.values()))["shape"]:
                continue
            numbers = re.search(r"Skv(\d+) D(\d+)", next(iter(rows.values()))["shape"])
            of_dtype.append({"problem": problem, "keys": int(numbers[1]), "head_dim": int(numbers[2]), "best": beside_best(rows)})
        missions = [shape for shape in of_dtype if shape["problem"].startswith("mission")]
        print(f"{dtype}{'':23}shapes  by ratios (worst)                      by medians (worst)")
        for name, belongs in GROUPS.items():
            group = [shape for shape in of_dtype if shape not in missions and belongs(shape)]
            line = f"  {name:25}{len(group):6}"
            for which in (0, 1):
                values = [shape["best"][which] for shape in group]
                worst = min(group, key=lambda shape: shape["best"][which])
                line += f"  {geomean(values):6.3f} ({min(values):.3f} {worst['problem']})".ljust(39)
            print(line.rstrip())
        for shape in missions:
            print(f"  {shape['problem']:31}  {shape['best'][0]:6.3f}".ljust(72) + f"{shape['best'][1]:6.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
