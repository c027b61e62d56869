#!/usr/bin/env python3
"""Runs `flashcore tune` on many shapes, and reports how far the defaults are behind the best that was found.

usage: scripts/tune_grid.py FOLDER [--problems FILE.json] [--flashcore PATH] [--device NAME] [--dtype fp16|bf16]
                            [--budget 12s] [--seconds N] [--within 0.05] [--share 0.9]

The shapes are those of the canonical grid, Llama prefill and the small shape, or those of a problem file
such as scripts/draw_problems.py draws. A line of FOLDER/DTYPE.jsonl is a shape: the kernel that the library would have run, the best that
was found, the ratio of their times in the finals with its interval (below 1: the one found is
faster), and how many candidates were tried. A shape that has its line is not searched again, so a
run that --seconds ended can be resumed. Winners go to a plan table in FOLDER/data, which
XDG_DATA_HOME names for these searches: the user's tables are not changed. Exits with 1 where a
search fails, and with --share where fewer of the shapes have a default within --within of the best;
those that --seconds left out count as behind.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time


def shapes(options):
    """Names, and the words of the command for each. Those of the grid have 16k tokens and 2,048 columns of Q."""
    if options.problems:
        for problem in json.loads(options.problems.read_text()):
            yield problem["name"], [f"{options.problems}:{problem['name']}"]
        return
    for one in grid():
        yield one[0], words(*one) + ["--dtype", options.dtype]


def words(_name, *sizes):
    """The flags of the command for a shape of the grid."""
    flags = ("--batch", "--heads", "--kv-heads", "--seq", "--head-dim")
    return [str(word) for pair in zip(flags, sizes) for word in pair] + ["--causal"] * sizes[-1]


def grid():
    """(name, batch, heads, K/V heads, length, head_dim, causal)"""
    yield "small", 1, 8, 8, 512, 64, False
    for head_dim in (64, 128, 256):
        for causal in (False, True):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                heads = 2048 // head_dim
                name = f"d{head_dim}-s{length}" + ("-causal" if causal else "")
                yield name, 16384 // length, heads, heads, length, head_dim, causal
    yield "llama8b-prefill-8k", 1, 32, 8, 8192, 128, True


def search(options, shape, seconds):
    """One search: what is kept of it, or why there is nothing."""
    name, words = shape
    command = [options.flashcore, "tune", *words, "--trials" if options.budget.isdigit() else "--budget", options.budget, "--peers", "none", "--json"]
    command += ["--device", options.device] if options.device else []
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
        "winner": board["winner"],
        "best_other": best and best["id"],
        "ratio": best and best["ratio"]["value"],
        "interval": best and [best["ratio"]["interval"]["lo"], best["ratio"]["interval"]["hi"]],
        "trials": sum(1 for line in open(pathlib.Path(found["folder"]) / "trials.jsonl") if line.strip()),
        "seconds": round(time.monotonic() - started, 1),
        "revision": found["run"]["revision"],
    }, None


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path, help="where results go")
    usage.add_argument("--problems", type=pathlib.Path, metavar="FILE.json", help="shapes in place of the grid's; their dtypes, too")
    usage.add_argument("--device", help="where to search, as `flashcore tune` takes it")
    usage.add_argument("--within", type=float, default=0.05, help="share of its time that a default may be behind")
    usage.add_argument("--share", type=float, default=0.0, help="share of the shapes whose default must be within that")
    usage.add_argument("--flashcore", default="flashcore", help="the command")
    usage.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    usage.add_argument("--budget", default="12s", help="of each search: a time such as 12s, or a number of trials")
    usage.add_argument("--seconds", type=float, default=3600, help="begin no search that could not end by then")
    options = usage.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    name = options.problems.stem if options.problems else options.dtype
    kept = options.folder / f"{name}.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done, began, failed = {one["shape"] for one in lines}, time.monotonic(), 0
    wanted = list(shapes(options))
    for shape in wanted:
        left = options.seconds - (time.monotonic() - began)
        if shape[0] in done:
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
    good = sum(1 for one in lines if one["ratio"] is None or one["ratio"] * (1 + options.within) >= 1)
    print(f"the default is within {100 * options.within:g} % of the best on {good} of {len(wanted)} shapes, {len(lines)} searched")
    return 1 if failed or good < options.share * len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
