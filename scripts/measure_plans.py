#!/usr/bin/env python3
"""Measures a plan table for this machine's device. The table of the H200 was made with it.

    scripts/measure_plans.py FOLDER [--flashcore PATH] [--device DEVICE] [--dtypes bf16,fp16] [--gain 0.008] PROBLEMS...

PROBLEMS are sets, names or files as `flashcore bench` takes them. First the default and a dozen
kernels near it are ranked, in the first dtype. Those that seem faster than the default by `--gain`
become a draft. Then each is measured head to head with the default, in every dtype. Only this second
measurement makes the table, because the best of a dozen looks better than it is. FOLDER gets every
report, a summary, and table.json.
"""
import argparse
import json
import os
import subprocess
from pathlib import Path


def run(args, *words, plans="none", to=None):
    """Runs flashcore with these words; returns what it printed, which also goes to the file `to`."""
    env = dict(os.environ, FLASHCORE_PLANS=str(plans))
    done = subprocess.run([args.flashcore, *words], env=env, stdout=subprocess.PIPE, text=True)
    # 1 is a finding, such as a kernel that does not compile: it stands in the report.
    if done.returncode > 1:
        raise SystemExit(f"{' '.join(map(str, words))}: exit code {done.returncode}")
    if to:
        to.write_text(done.stdout)
    return done.stdout


def bench(args, to, *words, plans="none"):
    """A report of `flashcore bench`."""
    text = run(args, "bench", *words, "--device", args.device, "--peers", "none", "--store", "none", "--json", plans=plans, to=to)
    return json.loads(text)["report"]


def faster(results, least):
    """The fastest kernel compared with each problem's baseline, where it seems faster by `least`."""
    best = {}
    for result in results:
        problem, measurement = result["case"]["problem"], result["measurement"]
        times = [(s["ratio"]["value"], s["info"]["label"]) for s in measurement["subjects"] if s["ratio"] and s["info"]["kernel"]]
        found = min(times, default=(1.0, None))
        key = json.dumps(problem, sort_keys=True)
        if key not in best or found[0] < best[key][0]:
            best[key] = (*found, problem)
    return [(kernel, problem) for ratio, kernel, problem in best.values() if kernel and 1 - ratio >= least]


def mask_name(mask):
    """A mask of the grids as it prints."""
    if mask["window_left"] is None:
        return {None: "full", 0: "causal"}.get(mask["window_right"])
    return None


def row(kernel, problem, dtype):
    """A row of a draft: its evidence is none."""
    names = {"num_heads": "heads", "num_kv_heads": "kv_heads", "seq_len_q": "seq_q", "seq_len_kv": "seq_kv"}
    fields = ["head_dim", "head_dim_v", "batch", "num_heads", "num_kv_heads", "seq_len_q", "seq_len_kv"]
    of = {names.get(field, field): problem[field] for field in fields}
    of |= {"dtype": dtype, "mask": mask_name(problem["mask"])}
    evidence = {"against": "draft", "gain": 0, "interval": [0, 0], "revision": "draft", "driver": "", "date": "draft"}
    return {"problem": of, "kernel": kernel, **evidence}


def entry(of):
    """A problem of a draft's row as `flashcore bench` reads it."""
    kept = ["batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "dtype"]
    return {field: of[field] for field in kept} | {"causal": of["mask"] == "causal"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--flashcore", default="flashcore")
    parser.add_argument("--device", default="best")
    parser.add_argument("--dtypes", default="bf16,fp16")
    parser.add_argument("--gain", type=float, default=0.008)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    dtypes = args.dtypes.split(",")

    results, device = [], None
    for place, problems in enumerate(args.problems):
        near = args.folder / f"near-{place}.json"
        words = ["--dtype", dtypes[0], "--kernel", "near", "--budget", "10"]
        report = bench(args, near, problems, *words)
        results += report["results"]
        device = report["run"]["device"]
    known = json.loads(run(args, "plans", "--json"))["devices"]
    device = next(one["device"] for one in known if one["device"]["name"] == device["name"])

    found = [(kernel, problem) for kernel, problem in faster(results, args.gain) if mask_name(problem["mask"])]
    print(f"{len(found)} problems on which something seems faster than the default")
    reports = []
    for dtype in dtypes if found else []:
        rows = [row(kernel, problem, dtype) for kernel, problem in found]
        draft, file = args.folder / f"draft-{dtype}.json", args.folder / f"final-{dtype}.problems.json"
        draft.write_text(json.dumps({"format": 1, "device": device, "rows": rows}))
        file.write_text(json.dumps({"problems": [entry(one["problem"]) for one in rows]}))
        final = args.folder / f"final-{dtype}.json"
        bench(args, final, file, "--kernel", "heuristics,default", "--budget", "2.5", plans=draft)
        reports.append(final)
    if reports:
        table = args.folder / "table.json"
        print(run(args, "plans", "make", *reports, "--output", table, to=args.folder / "final.txt"))


main()
