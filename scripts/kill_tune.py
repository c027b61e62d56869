#!/usr/bin/env python3
"""Kills a search of `flashcore tune` with SIGKILL, parent or worker, at random moments, and takes it up again each time.

usage: scripts/kill_tune.py FOLDER [--flashcore PATH] [--device cuda:0] [--kills 20] [--trials 60] [--seed 1]

First an undisturbed search in FOLDER/whole, then the same in FOLDER/killed. After each kill the trials that were kept before must
still be the first ones, unchanged. At the end both searches must have tried the same candidates in the same order. Says
what was found and exits with 1 where that does not hold; times and with them ranks of equals may differ, as between any two runs.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time


def lines(folder):
    """The trials that are kept whole: a last line without its end is one that was being written."""
    path = folder / "trials.jsonl"
    return path.read_text().splitlines(keepends=True) if path.exists() else []


def workers(parent):
    """Processes that this one started, as the kernel lists them."""
    tasks = pathlib.Path(f"/proc/{parent}/task")
    found = []
    for task in tasks.iterdir() if tasks.exists() else []:
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path)
    usage.add_argument("--flashcore", default="flashcore")
    usage.add_argument("--device", default="best")
    usage.add_argument("--problem", default="mission")
    usage.add_argument("--kills", type=int, default=20)
    usage.add_argument("--trials", type=int, default=60)
    usage.add_argument("--seed", type=int, default=1)
    options = usage.parse_args()
    draw = random.Random(options.seed)
    whole, killed = (options.folder.resolve() / name for name in ("whole", "killed"))
    environment = dict(os.environ, XDG_DATA_HOME=str(options.folder.resolve() / "data"))

    def search(folder, *more):
        command = [options.flashcore, "tune", options.problem, "--device", options.device, "--strategy", "random", "--seed", "5"]
        command += ["--budget", str(options.trials), "--peers", "none", "--no-plan", "--folder", str(folder), *more]
        with open(options.folder / "log.txt", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    options.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    if search(whole).wait() != 0:
        print(f"the undisturbed search failed; {options.folder}/log.txt says why")
        return 1
    seconds = time.monotonic() - began
    print(f"undisturbed: {len(lines(whole))} trials in {seconds:.0f} s")
    wrong = 0
    for kill in range(options.kills):
        before = lines(killed)
        process = search(killed, *(["--resume"] if before else []))
        time.sleep(draw.uniform(0.3, 1.0) * min(3.0, seconds / 3))
        of_parent = kill % 2 == 0 or not workers(process.pid)
        victim = process.pid if of_parent else draw.choice(workers(process.pid) or [process.pid])
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if not of_parent:
            # The search goes on with another worker; a little later it is ended, too.
            time.sleep(draw.uniform(0.2, 0.6))
            process.kill()
        process.wait()
        after = lines(killed)
        # The last line may have been cut: a search that is taken up again drops it.
        whole_before = [line for line in before if line.endswith("\n")]
        kept = after[: len(whole_before)] == whole_before
        wrong += not kept
        print(f"kill {kill + 1:2} of {'the search' if of_parent else 'a worker':10}: {len(before)} trials before, {len(after)} after"
              + ("" if kept else ": WHAT WAS KEPT BEFORE CHANGED"), flush=True)
    if search(killed, "--resume").wait() not in (0, 1):
        print("the last search failed")
        return 1
    one, other = ([json.loads(line) for line in lines(folder)] for folder in (whole, killed))
    same = [trial["id"] for trial in one] == [trial["id"] for trial in other]
    # The clock decides these three, all others the candidate.
    by_clock = {"SLOWER", "AMBIGUOUS", "FASTER"}
    verdict = lambda trial: "timed" if trial["verdict"] in by_clock else trial["verdict"]
    differ = [(a["id"], a["verdict"], b["verdict"]) for a, b in zip(one, other) if verdict(a) != verdict(b)]
    print(f"taken up again to the end: {len(other)} trials, {'the same candidates in the same order' if same else 'OTHER CANDIDATES'}"
          + (f"; verdicts that differ: {differ}" if differ else "; the same verdicts but for the clock's"))
    return 1 if wrong or not same or differ else 0


if __name__ == "__main__":
    sys.exit(main())
