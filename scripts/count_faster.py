#!/usr/bin/env python3
"""Counts the shapes on which the forward pass was faster than each library that was timed in the same run, on an H200:
those whose rows have no samples, as no bundle (evidence/*.jsonl) has them.

usage: count_faster.py            prints the counts, and each shape that is not faster
       count_faster.py --check    exits with 1 if docs/performance.md says other counts

count_faster.json has of each shape and library the smallest of the library's medians over ours, in the newest runs of
evidence/h200, to which none is added: `grid-one-call-h200`, `draw-261128`, `draw-261128-2`, `off-grid-2-h200`,
`off-grid-3-h200`, `serve-again`, `head-sizes`, `splits-peers`, `peer-fa4`, `independent-4-h200`. It was made of their
rows by `git show 9cebebdb:scripts/count_faster.py`. A shape in a dtype counts once.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = {"fa3": "FlashAttention-3", "fa4": "FlashAttention-4", "cudnn": "cuDNN", "flashinfer": "FlashInfer"}


def published():
    """Shapes that bundles have, of which pages show figures with intervals."""
    for path in (ROOT / "evidence").glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            problem = json.loads(line).get("row", {}).get("problem")
            if problem:
                # What is called small was called mission.
                yield f"{problem['name'].replace('mission', 'small')} {problem.get('dtype', 'fp16')}"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    table, newer = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8")), set(published())
    shapes = {shape: peers for shape, peers in table.items() if shape not in newer}
    slower = {shape: peers for shape, peers in shapes.items() if min(peers.values()) <= 1}
    total = f"{len(shapes) - len(slower)} of {len(shapes)}"
    rows = {}
    for peer, name in NAMES.items():
        ratios = [peers[peer] for peers in shapes.values() if peer in peers]
        if ratios:
            rows[name] = f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}"
    if sys.argv[1:] == ["--check"]:
        page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
        said = f"{total} other shapes"
        wrong = [] if said in " ".join(page.split()) else [f"docs/performance.md does not say `{said}`"]
        for name, row in rows.items():
            if not re.search(rf"^\| {name}\b.*\| {row} \|$", page, re.MULTILINE):
                wrong.append(f"docs/performance.md has no row `| {name} ... | {row} |`")
        sys.exit("; ".join(wrong) or 0)
    print("\n".join([total, *(f"{name} {row}" for name, row in rows.items())]))
    for shape, peers in sorted(slower.items()):
        times = ", ".join(f"{NAMES[peer]}'s time {ratio:.3f} x ours" for peer, ratio in sorted(peers.items()) if ratio <= 1)
        print(f"  {shape}: {times}")


main()
