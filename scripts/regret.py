#!/usr/bin/env python3
"""How much longer the kernels that rules choose take than the best of those that were timed: their regret.

usage: regret.py measure OUT.jsonl [--flashcore PATH] [--until SECONDS] [--devices cuda:0,cuda:1]
       regret.py table OUT.jsonl
       regret.py known

lab/tools/data/regret.jsonl has 90 problems (`draw_problems.py 301126 90 mixed`), committed with what was chosen for
each before any was timed: `today` (rows of the table, and the model of times for splits and short problems), the
`model` alone (MOST_PS of times.rs without end), `rows` alone (whole tiles of the model left out); and six others.
`measure` times them in turns. It skips problems that OUT.jsonl has, so that another call goes on. `table` compares
the rules: one alone is accepted if its p50 is no worse, and its p95 and maximum at most 1 % worse than today's.
`known` does so with the times that the tree has, and the choices of regret-known.csv (empty: as today's).
"""
import argparse
import csv
import json
import re
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "lab/tools/data"
MEASURED = ROOT / "crates/kernels/src/wgmma/defaults/measured"
RULES = ("today", "model", "rows")
KINDS = {"p": "prompts", "c": "few rows over many keys", "d": "decoding"}
# Seconds of rounds for a problem, after each kernel was compiled, compared with float64 and warmed.
ROUNDS = ["--mode", "screen", "--rounds", "8", "--budget", "0.3"]


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def timed(flashcore, row, device, folder):
    """What is kept of a problem: medians, and times relative to today's kernel, paired by round."""
    problem, kernels = row["problem"], [*(row[rule] for rule in RULES), *row["others"]]
    file = Path(folder) / f"{problem['name']}.json"
    file.write_text(json.dumps([problem]), encoding="utf-8")
    command = [flashcore, "bench", file, "--kernel", ",".join(dict.fromkeys(kernels)), "--baseline", row["today"], "--device", device]
    done = subprocess.run([*command, "--peers", "none", "--store", "none", "--json", *ROUNDS], capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return {"name": problem["name"], "failed": f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"}
    report = json.loads(done.stdout)["report"]
    result, run = report["results"][0], report["run"]
    subjects = {one["info"]["kernel"]: one for one in result["measurement"]["subjects"]}
    return {
        "name": problem["name"],
        "us": {kernel: round(one["summary"]["p50"], 3) for kernel, one in subjects.items() if one["summary"]},
        "ratio": {kernel: round(one["ratio"]["value"], 4) for kernel, one in subjects.items() if one["ratio"]},
        "trouble": {kernel: one["trouble"] for kernel, one in subjects.items() if one["trouble"]},
        "absent": result["absent"],
        "rounds": result["measurement"]["rounds"],
        "run": {key: run.get(key) for key in ("device", "revision", "started_at")},
    }


def measure(args):
    began, lock = time.monotonic(), threading.Lock()
    had = {row["name"] for row in lines(args.file) if "us" in row} if args.file.exists() else set()
    wanted = iter([row for row in lines(DATA / "regret.jsonl") if row["problem"]["name"] not in had])

    def work(device):
        while time.monotonic() - began < args.until:
            with lock:
                row = next(wanted, None)
            if row is None:
                return
            kept = timed(args.flashcore, row, device, folder)
            with lock, args.file.open("a", encoding="utf-8") as out:
                print(json.dumps(kept), file=out)
            found = kept.get("failed") or f"{len(kept['us'])} kernels, {kept['rounds']} rounds"
            print(f"{time.monotonic() - began:5.0f} s  {kept['name']}: {found}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        workers = [threading.Thread(target=work, args=(device,)) for device in args.devices.split(",")]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def time_of(kernel, times):
    """Its time, or that of one with other stages, another place of Q or another softmax: a per cent or two."""
    alike = lambda kernel: re.sub(r"-s\d+|-qreg|-(spec|cond|always)\b", "", kernel)
    near = (times[other] for other in times if alike(other) == alike(kernel))
    return times.get(kernel) or next(near, None)


def figures(values):
    """p50, p95 (nearest rank), the maximum and the mean."""
    values = sorted(values)
    return statistics.median(values), values[-(-95 * len(values) // 100) - 1], values[-1], statistics.mean(values)


def compare(rows, times):
    """Prints the regret of each rule alone and of today's choice, over the problems that have a time for both."""
    for rule in RULES[1:]:
        both = []
        for row in rows:
            of = times.get(row["name"], {})
            found = [time_of(row[one], of) for one in ("today", rule)]
            if len(of) > 1 and all(found):
                both.append((row, *(time / min(of.values()) for time in found)))
        print(f"{rule} alone, {len(both)} of {len(rows)} problems: p50, p95, maximum, mean")
        groups = {"all": both, "another choice": [one for one in both if one[0][rule] != one[0]["today"]]}
        groups |= {words: [one for one in both if re.match(rf"{kind}\d\d-", one[0]["name"])] for kind, words in KINDS.items()}
        judged = []
        for words, some in groups.items():
            for place, of in enumerate(("today", rule) if some else (), 1):
                judged.append(figures([one[place] for one in some]))
                print(f"  {words} ({len(some)}), {of}:", *(f"{figure:.4f}" for figure in judged[-1]))
        if judged:
            today, alone = judged[:2]
            as_good = alone[0] <= today[0] and all(alone[at] <= 1.01 * today[at] for at in (1, 2))
            print(f"  {'accepted' if as_good else 'not accepted'}; more than 2 % apart:")
        for row, before, after in sorted(both, key=lambda one: one[1] / one[2]):
            if abs(after / before - 1) > 0.02:
                print(f"    {row['name']}: today {before:.3f} {row['today']}, {rule} {after:.3f} {row[rule]}")


def of_tree():
    """Problems, and times of kernels that were timed together on an H200, relative to each other."""
    for path in sorted(MEASURED.glob("*.csv")):
        for row in csv.DictReader(path.open(encoding="utf-8")):
            yield f"{path.stem}/{row['problem']}", {row["kernel"]: float(row["x_time"] or 1)}
    shape = re.compile(r"B\d+ H\d+/\d+ Sq\d+ Skv\d+ D\d+ (bf16|fp16) (full|causal)\b")
    for row in csv.DictReader((ROOT / "lab/check/data/tensor-times.csv").open(encoding="utf-8")):
        if shape.fullmatch(row["shape"]) and row["mode"] == "hot":
            yield f"tensor/{row['problem']}", {row["subject"]: float(row["p50_us"])}
    for path in sorted((ROOT / "evidence/h200").glob("*.jsonl")):
        # Words of ids that changed.
        text = path.read_text(encoding="utf-8").replace("-turns", "-pingpong").replace("-bold", "-spec").replace("-lazy", "-cond")
        for row in map(json.loads, text.splitlines()):
            found = shape.search(row.get("claim", ""))
            if found and "best" in row and "default" in row:
                yield f"{row['run']}/{found[0]}", {row["best"]: 1.0, row["default"]: row["value"]}
            elif found and "others_us" in row:
                yield f"{row['run']}/{found[0]}", {row["kernel"]: row["value"], **row["others_us"]}


def known(_args):
    times = {}
    for name, some in of_tree():
        times.setdefault(name, {}).update(some)
    chosen = csv.DictReader((DATA / "regret-known.csv").open(encoding="utf-8"))
    compare([{"name": row["problem"], **{rule: row[rule] or row["today"] for rule in RULES}} for row in chosen], times)


def table(args):
    times = {}
    for row in lines(args.file):
        # Without ratios, today's kernel was not timed.
        times[row["name"]] = {kernel: row["ratio"].get(kernel, 1.0) for kernel in row["us"]} if row.get("ratio") else row.get("us", {})
    compare([row | {"name": row["problem"]["name"]} for row in lines(DATA / "regret.jsonl")], times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "table", "known"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--flashcore", default="flashcore")
    parser.add_argument("--until", type=float, default=285, help="seconds after which no problem is begun")
    parser.add_argument("--devices", default="cuda:0", help="GPUs, which share the problems")
    args = parser.parse_args()
    {"measure": measure, "table": table, "known": known}[args.what](args)


main()
