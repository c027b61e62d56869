#!/usr/bin/env python3
"""Kills a search of `flashcore tune` and its workers with SIGKILL at random moments, and resumes it each time.

usage: scripts/kill_tune.py FOLDER [--flashcore PATH] [--device cuda:0] [--problem mission] [--strategy NAME] [--kills 20]
                            [--trials 60] [--seed 1]

First runs an undisturbed search in FOLDER/whole, then the same in FOLDER/killed. After that one has
a leaderboard of its first few trials, three kinds of rounds alternate. Each waits for some new
trials and then for a random part of the time of a trial, or of the finals:

  search  the search is killed among its trials
  worker  a worker is killed among the trials; the search must go on to more of them, and is killed later
  finals  the round's budget is spent, and the search is killed in its finals

What must hold:
  - after each kill the trials that were kept before are the first ones, unchanged, and there is no leaderboard of fewer;
  - each leaderboard has the first candidate and the best four others of its own trials, what was accepted among them;
  - both searches come to as many trials, candidates that both tried have one verdict but for the clock's, and where proposals
    do not depend on times (random, exhaustive) they are the same in the same order;
  - both winners are as fast beside the first candidate, within --slack; finalists of one that the other tried, too, were within
    --near of the last of its finalists there, by the times of the search;
  - taken up once more, with nothing left to do, the leaderboard stays as it is.
Times, and with them ranks of equals and what a strategy proposes after them, differ as between any two runs. Exits with 1 where
something does not hold.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import time

# Besides the first candidate.
FINALISTS = 4
# What the clock decides; all else the candidate.
BY_CLOCK = {"SLOWER", "AMBIGUOUS", "FASTER"}
# Proposed whatever the times are.
TIMELESS = {"random", "exhaustive"}
# Longest that anything is waited for, seconds.
PATIENCE = 240


def lines(folder):
    """The trials that are kept whole: a last line without its end is one that was being written."""
    path = folder / "trials.jsonl"
    text = path.read_bytes() if path.exists() else b""
    return [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def read(folder):
    return [json.loads(line) for line in lines(folder)]


def workers(parent):
    """Processes that this one started: the device's worker first, then those that compile."""
    found = []
    # Not /proc/PID/task/TID/children: not every kernel is built with it.
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, of = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(of) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def wait(process, is_so):
    """Whether something comes to be so while a process is there."""
    began = time.monotonic()
    while not is_so():
        if process.poll() is not None or time.monotonic() - began > PATIENCE:
            return is_so()
        time.sleep(0.002)
    return True


class Killing:
    def __init__(self, options):
        self.options = options
        self.draw = random.Random(options.seed)
        folder = options.folder.resolve()
        self.whole, self.killed = folder / "whole", folder / "killed"
        self.environment = dict(os.environ, XDG_DATA_HOME=str(folder / "data"))
        self.wrong = []
        self.kills = self.survived = self.in_finals = 0

    def search(self, folder, trials, *more):
        options = self.options
        command = [options.flashcore, "tune", options.problem, "--device", options.device, "--strategy", options.strategy]
        command += ["--seed", "5", "--budget", str(trials), "--peers", "none", "--no-plan", "--folder", str(folder), *more]
        with open(options.folder / "log.txt", "ab") as log:
            log.write(f"\n$ {shlex.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)

    def undisturbed(self):
        """Searches once; how long the search and the finals take."""
        process = self.search(self.whole, self.options.trials)
        wait(process, lambda: len(lines(self.whole)) > 0)
        first, last = time.monotonic(), 0.0
        count = 1
        while process.poll() is None:
            if len(lines(self.whole)) > count:
                count, last = len(lines(self.whole)), time.monotonic()
            time.sleep(0.002)
        if process.returncode != 0 or last == 0.0:
            sys.exit(f"the undisturbed search failed; {self.options.folder}/log.txt says why")
        self.a_trial, self.finals = (last - first) / (count - 1), time.monotonic() - last
        run = json.loads((self.whole / "run.json").read_text())
        for device in run["devices"]:
            print(f"device      {device['device']}: {device['name']}, {device['architecture']}, {device['units']} units, "
                  f"driver {device['driver'] or 'none'}")
        print(f"revision    {run['revision']}, program {run['executable'][:12]}")
        print(f"undisturbed {count} trials by {run['strategy']}, {self.a_trial:.2f} s each, finals {self.finals:.1f} s", flush=True)

    def expect(self, holds, what):
        if not holds:
            self.wrong.append(what)
            print(f"            WRONG: {what}")

    def round(self, number, kind, rounds_left):
        """One round. Where the search ends by itself before its kill, there is no kill."""
        before = lines(self.killed)
        left = self.options.trials - len(before)
        # As many that some are left for the last round.
        more = min(left, self.draw.randint(1, max(1, 2 * left // (rounds_left + 1) - 1)))
        goal = len(before) + more
        budget = goal if kind == "finals" else self.options.trials
        began = time.monotonic()
        process = self.search(self.killed, budget, *(["--resume"] if (self.killed / "run.json").exists() else []))
        kept = lambda: len(lines(self.killed))
        wait(process, lambda: kept() > len(before) or left == 0)
        if left > 0:
            self.startup = time.monotonic() - began
        else:
            # Nothing is left but finals, which begin about when a first trial would.
            time.sleep(self.startup)
        wait(process, lambda: kept() >= goal)
        moment = self.draw.uniform(0, 0.8 * self.finals if kind == "finals" else self.a_trial)
        time.sleep(moment)
        said = []
        if kind == "worker" and process.poll() is None:
            there = workers(process.pid)
            # The device's, or one that compiles where there are such.
            victim = there[0] if there and number % 2 == 1 else self.draw.choice(there or [0])
            at = kept()
            if victim:
                os.kill(victim, 9)
                self.kills += 1
                said.append(f"worker {there.index(victim) + 1} of {len(there)} at {at}")
            if at < budget:
                goes_on = wait(process, lambda: kept() > at)
                self.survived += goes_on
                said.append(f"it went on to {kept()}")
                self.expect(goes_on, "the search did not outlive its worker")
            time.sleep(self.draw.uniform(0, 2 * self.a_trial))
        if process.poll() is None:
            process.kill()
            process.wait()
            self.kills += 1
            is_finals = kept() >= budget
            self.in_finals += is_finals
            said.append(f"the search at {kept()}" + (", in its finals" if is_finals else ""))
            # One that came after the last trial is of them all, and the search was about to end.
            board, trials = self.killed / "board.json", self.killed / "trials.jsonl"
            is_older = board.exists() and board.stat().st_mtime_ns < trials.stat().st_mtime_ns
            is_stale = is_older and kept() > len(before)
            self.expect(not is_stale, "a search that was killed has a leaderboard of fewer trials")
        else:
            said.append(f"it ended before, with {process.returncode}")
            self.expect(process.returncode == 0, "a search ended by itself and badly")
        after = lines(self.killed)
        self.expect(after[: len(before)] == before, "what was kept before changed")
        print(f"round {number:2}    {kind:6}  {len(before):3} trials before, {len(after):3} after; killed: {'; '.join(said)}", flush=True)

    def board(self, folder, name):
        """A leaderboard, which has the first candidate and the best others of the trials beside it."""
        board, trials = json.loads((folder / "board.json").read_text()), read(folder)
        best = [trial for trial in trials if trial["timed"] and not trial["same_as"] and trial["id"] != board["start"]]
        best.sort(key=lambda trial: trial["timed"]["score"])
        due = [trial["id"] for trial in best[:FINALISTS]]
        accepted = next((trial["id"] for trial in best if trial["verdict"] == "FASTER"), None)
        if accepted and accepted not in due:
            due[-1] = accepted
        due = {board["start"], *due}
        rows = {row["id"] for row in board["rows"]}
        self.expect(board["head_to_head"]["ok"], f"the {name} search's finalists did not meet")
        # Where somebody is struck the next best come in its place.
        self.expect(rows == due or board["struck"], f"the {name} search's finalists are {sorted(rows)}, its best {sorted(due)}")
        return board

    def compare(self):
        one, other = read(self.whole), read(self.killed)
        ids = [[trial["id"] for trial in trials] for trials in (one, other)]
        both = set(ids[0]) & set(ids[1])
        prefix = next((at for at, (a, b) in enumerate(zip(*ids)) if a != b), min(map(len, ids)))
        self.expect(len(one) == len(other), f"{len(one)} and {len(other)} trials")
        timeless = self.options.strategy in TIMELESS
        self.expect(ids[0] == ids[1] or not timeless, "other candidates, or in another order")
        verdict = lambda trial: "timed" if trial["verdict"] in BY_CLOCK else trial["verdict"]
        verdicts = {trial["id"]: verdict(trial) for trial in one}
        differ = [f"{trial['id']}: {verdicts[trial['id']]}, {verdict(trial)}"
                  for trial in other if trial["id"] in both and verdict(trial) != verdicts[trial["id"]]]
        self.expect(not differ, f"verdicts differ: {differ}")
        print(f"candidates  {len(other)} in the end, {len(both)} of them in both, the first {prefix} in the same order")
        boards = [self.board(self.whole, "undisturbed"), self.board(self.killed, "killed")]
        shares = []
        for name, board in zip(("undisturbed", "killed"), boards):
            row = next((row for row in board["rows"] if row["id"] == board["winner"]), None)
            self.expect(row is not None, f"the {name} search has no winner")
            share = row["ratio"]["value"] if row and row["ratio"] else 1.0
            shares.append(share)
            print(f"winner      {name}: {board['winner']}, x {share:.3f} of {board['start']}")
        self.expect(abs(shares[0] / shares[1] - 1) <= self.options.slack, "one winner is faster by more than the clock's share")
        rows = [{row["id"] for row in board["rows"]} for board in boards]
        self.expect(boards[0]["start"] == boards[1]["start"], "the first candidates differ")
        print(f"finalists   {len(rows[0] & rows[1])} of {len(rows[0])} and {len(rows[1])} are the same")
        for row in sorted(rows[0] ^ rows[1]):
            there, trials = ("killed", other) if row in rows[0] else ("undisturbed", one)
            trial = next((trial for trial in trials if trial["id"] == row), None)
            if trial is None or not trial["timed"]:
                what = "not proposed" if trial is None else trial["verdict"]
            else:
                scores = sorted(trial["timed"]["score"] for trial in trials if trial["timed"] and not trial["same_as"])
                score, last = trial["timed"]["score"], scores[:FINALISTS][-1]
                what = f"place {sum(other < score for other in scores) + 1}, x {score / last:.3f} of place {FINALISTS}"
                self.expect(score / last <= 1 + self.options.near, f"{row} is no near finalist of the {there} search")
            print(f"            {row}: in the {there} search {what}")

    def run(self):
        print(f"command     {shlex.join(sys.argv)}")
        self.undisturbed()
        early = max(1, self.options.trials // 10)
        self.expect(self.search(self.killed, early).wait() == 0, f"a search of {early} trials failed")
        self.expect((self.killed / "board.json").exists(), f"a search of {early} trials has no leaderboard")
        print(f"early       {len(lines(self.killed))} trials of the search that is killed from now on, and a leaderboard", flush=True)
        kinds = ["search", "worker", "finals"]
        # Four kills in three rounds, and some rounds more where a search ended before its kill.
        planned = -(-3 * self.options.kills // 4)
        for number in range(1, 2 * planned + 1):
            if self.kills >= self.options.kills:
                break
            self.round(number, kinds[(number - 1) % len(kinds)], max(1, planned - number + 1))
        print(f"kills       {self.kills}, {self.in_finals} of them in finals; {self.survived} workers that the search outlived")
        self.expect(self.kills >= self.options.kills, f"no more than {self.kills} kills")
        again = lambda: self.search(self.killed, self.options.trials, "--resume").wait()
        self.expect(again() == 0, "the last search failed")
        if (self.killed / "board.json").exists():
            self.compare()
            board = (self.killed / "board.json").read_bytes()
            self.expect(again() == 0 and (self.killed / "board.json").read_bytes() == board, "with nothing left to do the leaderboard changed")
        else:
            self.expect(False, "the killed search has no leaderboard in the end")
        print("result      " + (f"{len(self.wrong)} WRONG: {'; '.join(self.wrong)}" if self.wrong else "all holds"))
        return 1 if self.wrong else 0


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path)
    usage.add_argument("--flashcore", default="flashcore")
    usage.add_argument("--device", default="cuda:0")
    usage.add_argument("--problem", default="mission")
    usage.add_argument("--strategy", help="ranked on a GPU, where something models it; random on the host")
    usage.add_argument("--kills", type=int, default=20)
    usage.add_argument("--trials", type=int, default=60)
    usage.add_argument("--seed", type=int, default=1)
    usage.add_argument("--slack", type=float, help="by how much the winners may differ: 0.05 on a GPU, 0.15 on the host")
    usage.add_argument("--near", type=float, help="and finalists in the search: 0.1 on a GPU, 0.25 on the host")
    options = usage.parse_args()
    is_host = options.device == "cpu"
    options.strategy = options.strategy or ("random" if is_host else "ranked")
    options.slack = options.slack or (0.15 if is_host else 0.05)
    options.near = options.near or (0.25 if is_host else 0.1)
    if (options.folder / "whole").exists() or (options.folder / "killed").exists():
        sys.exit(f"{options.folder} has runs already; name a new folder")
    options.folder.mkdir(parents=True, exist_ok=True)
    return Killing(options).run()


if __name__ == "__main__":
    sys.exit(main())
