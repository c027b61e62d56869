#!/usr/bin/env python3
"""An example of an outside proposer for `flashcore tune --proposer 'python3 scripts/propose.py'`.

Reads a JSON object a line (what was tried) and answers with one (what to try). It needs nothing but Python and always
proposes the same after the same history: first the change that is claimed to pay most, as far as claims of its kind
came true; then it walks through the levers of the best config, one at a time, in the order in which changing them has
paid so far. docs/tune.md has the protocol.
"""
import json
import re
import sys


def variants(best, space):
    """Configs that differ from `best` in one number of its id, as (lever, id)."""
    family = best.split("/")[0]
    levers = next((f["levers"] for f in space if f["family"] == family), [])
    for place, match in enumerate(re.finditer(r"\d+", best)):
        for lever in levers:
            values = lever["values"]
            if match.group() not in values:
                continue
            for value in values:
                if value != match.group():
                    yield (f"{family}:{place}", best[: match.start()] + value + best[match.end() :])


def claimed(told, tried):
    """The claim about the best config that promises most, by how far its kind is to be believed."""
    trust = {kind["kind"]: (kind["came_true"] + 1) / (kind["tried"] + 2) for kind in told["record"]}
    open_claims = [
        (claim["expected"] * trust.get(claim["kind"], 0.5), claim)
        for claim in told["claims"]
        if claim["about"] == told["best"] and claim["expected"] is not None and claim["proposes"] not in tried
    ]
    promise, claim = min(open_claims, key=lambda option: option[0], default=(0, None))
    return claim if promise <= -LEAST else None


# Least gain that a claim must promise, per cent, what it is not believed taken off.
LEAST = 2.0


def main():
    space, tried, paid = [], {}, {}
    before = None
    for line in sys.stdin:
        told = json.loads(line)
        if "about" in told:
            space = told["about"]["space"]
        for trial in told["trials"]:
            tried[trial["id"]] = trial
        best = told["best"]
        if best is None:
            print(json.dumps({"propose": []}), flush=True)
            return
        if before and best != before[0]:
            paid[before[1]] = paid.get(before[1], 0) + 1
        claim = claimed(told, tried)
        if claim:
            before = None
            why = f"{claim['evidence']}: {claim['lever']} {claim['from']} to {claim['to']}"
            print(json.dumps({"propose": [claim["proposes"]], "why": why}), flush=True)
            continue
        # A number may be a value of several levers: every reading is tried once.
        options, seen = [], set()
        for lever, candidate in variants(best, space):
            if candidate not in tried and candidate not in seen:
                seen.add(candidate)
                options.append((-paid.get(lever, 0), lever, candidate))
        options.sort()
        if not options:
            print(json.dumps({"propose": [], "why": "nothing around the best is left"}), flush=True)
            return
        _, lever, candidate = options[0]
        before = (best, lever)
        print(json.dumps({"propose": [candidate], "why": f"{lever} of {best}"}), flush=True)


if __name__ == "__main__":
    main()
