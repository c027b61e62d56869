#!/usr/bin/env python3
"""Counts the shapes on which the forward pass was faster than each library that was timed in the same run, on an H200:
those whose rows have no samples, as no bundle (evidence/*.jsonl) has them.

usage: count_faster.py            prints the counts, and each shape that is not faster
       count_faster.py --check    exits with 1 if docs/performance.md says other counts

Read are the newest runs under evidence/ of each set of shapes (RUNS): the grid, Llama's prompts and decoding, a random
draw, lengths between powers of two, serving, other head sizes, split-KV, FlashAttention-4, and measurements from Python
with other scripts. A shape in a dtype counts once. It is faster if its median is smaller than that of every library in
every one of these runs. Of serving, all libraries keep their schedules.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = [
    "grid-one-call-h200", "draw-261128", "draw-261128-2", "off-grid-2-h200", "off-grid-3-h200", "serve-again",
    "head-sizes", "splits-peers", "peer-fa4", "independent-4-h200",
]
NAMES = {"fa3": "FlashAttention-3", "fa4": "FlashAttention-4", "cudnn": "cuDNN", "flashinfer": "FlashInfer"}
# Shapes of the grid that other runs call otherwise.
SAME = {f"D256 causal {k}k": f"d256-s{1024 * k}-causal" for k in (4, 8, 16)}
SAME |= {"D256 full 16k": "d256-s16384", "mission in bf16": "small"}
SAME |= {"B16 H64/8 2883 D192 full": "B16 H64/8 Sq2883 Skv2883 D192 full"}


def key(name, dtype):
    """A shape and its dtype, by one name in all runs."""
    named = re.search(r" (bf16|fp16)\b", name)
    name = re.sub(r"^\d+: | (bf16|fp16)\b|, (hot|sustained)$", "", SAME.get(name, name))
    # What is called small was called mission.
    return f"{name.replace('mission', 'small')} {named[1] if named else dtype}"


def compared(row):
    """What a claim compares: shape, library, the library's time over ours."""
    value, claim = row["value"], row["claim"]
    peers = dict(row.get("peers_us", {}))
    peers |= {name: row[name] for name in ("fa4", "cudnn") if name in row}
    if peers and isinstance(value, (int, float)):
        for peer, us in peers.items():
            yield key(claim, "bf16"), peer.removeprefix("torch/"), us / value
    elif row["run"] == "independent-4-h200":
        for name, ratios in value.items():
            for dtype, (of_medians, _) in zip(("bf16", "fp16"), ratios, strict=True):
                yield key(name, dtype), "fa3", of_medians
    elif claim.startswith("40 random chunks"):
        for number, ratio in enumerate(value["kept"]):
            yield key(f"chunks {number}", "bf16"), "fa3", ratio
    elif isinstance(value, dict):
        dtype = "fp16" if claim.startswith("fp16") else "bf16"
        for name, times in value.items():
            if isinstance(times, list) and len(times) == 3 and "times of FlashCore" in claim:
                ours, peers = times[0], dict(zip(("fa3", "cudnn"), times[1:], strict=True))
            elif isinstance(times, dict) and "kept" in times:
                ours, peers = times["kept"], {peer: times.get(peer) for peer in NAMES}
            else:
                continue
            # Caches in turn are another measurement than one cache.
            name += ", 8 in turn" if "in turn" in claim else ""
            for peer, us in peers.items():
                if us is not None:
                    yield key(name, dtype), peer, us / ours


def published():
    """Shapes that bundles have, of which pages show figures with intervals."""
    for path in (ROOT / "evidence").glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            problem = json.loads(line).get("row", {}).get("problem")
            if problem:
                yield key(problem["name"], problem.get("dtype", "fp16"))


def count():
    shapes, newer = {}, set(published())
    for path in sorted((ROOT / "evidence" / "h200").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line) if line.strip() else {}
            if "claim" in row and row["run"] in RUNS:
                for shape, peer, ratio in compared(row):
                    if shape in newer:
                        continue
                    shapes.setdefault(shape, {}).setdefault(peer, []).append(ratio)
    return shapes


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    shapes = count()
    slower = {shape: peers for shape, peers in shapes.items() if min(map(min, peers.values())) <= 1}
    total = f"{len(shapes) - len(slower)} of {len(shapes)}"
    rows = {}
    for peer, name in NAMES.items():
        ratios = [min(peers[peer]) for peers in shapes.values() if peer in peers]
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
        times = ", ".join(f"{NAMES[peer]}'s time {min(ratios):.3f} x ours" for peer, ratios in sorted(peers.items()) if min(ratios) <= 1)
        print(f"  {shape}: {times}")


main()
