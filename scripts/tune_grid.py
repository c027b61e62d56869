#!/usr/bin/env python3
"""Runs `flashcore tune` on every shape of the canonical grid, Llama prefill and the mission, and reports the results.

usage: scripts/tune_grid.py FOLDER [--flashcore PATH] [--dtype fp16|bf16] [--budget 12s] [--seconds N] [--only TEXT]

A line of FOLDER/DTYPE.jsonl is a shape: the kernel that the library would have run, the best that
was found, the ratio of their times in the finals with its interval (below 1: the one found is
faster), and how many candidates were tried. A shape that has its line is not searched again, so a
run that --seconds ended can be resumed. Winners go to a plan table in FOLDER/data, which
XDG_DATA_HOME names for these searches: the user's tables are not changed. FOLDER/DTYPE.md has all as
a table.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time


def shapes():
    """(name, batch, heads, K/V heads, length, head_dim, causal): 16k tokens a shape, 2,048 columns of Q."""
    yield "mission", 1, 8, 8, 512, 64, False
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                heads = 2048 // head_dim
                name = f"d{head_dim}-s{length}" + ("-causal" if causal else "")
                yield name, 16384 // length, heads, heads, length, head_dim, causal
    yield "llama8b-prefill-8k", 1, 32, 8, 8192, 128, True


def search(options, shape, seconds):
    """One search: what is kept of it, or why there is nothing."""
    name, batch, heads, kv_heads, length, head_dim, causal = shape
    command = [options.flashcore, "tune", "--batch", batch, "--heads", heads, "--kv-heads", kv_heads, "--seq", length]
    command += ["--head-dim", head_dim, "--dtype", options.dtype, "--budget", options.budget, "--peers", "none", "--json"]
    command += ["--causal"] if causal else []
    environment = dict(os.environ, XDG_DATA_HOME=str(options.folder / "data"))
    started = time.monotonic()
    try:
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"not done in {seconds:.0f} s"
    if run.returncode != 0:
        return None, f"exit code {run.returncode}: {run.stderr.strip()[-300:]}"
    found = json.loads(run.stdout)
    board, default = found["board"], found["run"]["default"]["kernel"]
    rows = [row for row in board["rows"] if row["id"] != default and row["ratio"]]
    best = min(rows, key=lambda row: row["ratio"]["value"], default=None)
    return {
        "shape": name,
        "default": default,
        "why": "plan row" if found["run"]["default"]["row"] else "heuristics",
        "winner": board["winner"],
        "best_other": best and best["id"],
        "ratio": best and best["ratio"]["value"],
        "interval": best and [best["ratio"]["interval"]["lo"], best["ratio"]["interval"]["hi"]],
        "against": board["against"],
        "default_us": next((row["us"] for row in board["rows"] if row["id"] == default), None),
        "trials": sum(1 for line in open(pathlib.Path(found["folder"]) / "trials.jsonl") if line.strip()),
        "seconds": round(time.monotonic() - started, 1),
        "revision": found["run"]["revision"],
    }, None


def markdown(lines):
    yield "| shape | default | us | best other of the finals | x time of the default | interval | trials | s |"
    yield "|---|---|--:|---|--:|---|--:|--:|"
    for one in lines:
        ratio = f"{one['ratio']:.3f}" if one["ratio"] else "-"
        interval = "-".join(f"{end:.3f}" for end in one["interval"]) if one["interval"] else "-"
        other = f"`{one['best_other']}`" + (" **new row**" if one["winner"] != one["default"] else "") if one["best_other"] else "-"
        micros = f"{one['default_us']:.1f}" if one["default_us"] else "-"
        yield f"| {one['shape']} | `{one['default']}` | {micros} | {other} | {ratio} | {interval} | {one['trials']} | {one['seconds']} |"


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path, help="where results go")
    usage.add_argument("--flashcore", default="flashcore", help="the command")
    usage.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    usage.add_argument("--budget", default="12s", help="of each search, as `flashcore tune` takes it")
    usage.add_argument("--seconds", type=float, default=3600, help="begin no search that could not end by then")
    usage.add_argument("--only", default="", metavar="TEXT", help="shapes whose name contains it")
    options = usage.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = options.folder / f"{options.dtype}.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done, began, failed = {one["shape"] for one in lines}, time.monotonic(), 0
    for shape in shapes():
        left = options.seconds - (time.monotonic() - began)
        if shape[0] in done or options.only not in shape[0]:
            continue
        if left < 5:
            print(f"{shape[0]} and what follows: no time left")
            break
        found, why = search(options, shape, left)
        if not found:
            failed += 1
            print(f"{shape[0]}: {why}", flush=True)
            continue
        lines.append(found)
        with kept.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{shape[0]}: {found['default']}, best other {found['best_other']} x {found['ratio']}", flush=True)
    (options.folder / f"{options.dtype}.md").write_text("\n".join(markdown(lines)) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
