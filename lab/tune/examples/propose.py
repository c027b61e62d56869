#!/usr/bin/env python3
"""An example of an outside proposer for `flashcore tune --proposer 'python3 lab/tune/examples/propose.py'`.

Reads one JSON object per line (what was tried) and writes one (what to try). It needs only Python
and is deterministic: the same history gives the same proposals. It first proposes the change with
the largest claimed gain, discounted by how often claims of that kind came true. Then it changes one
lever of the fastest config (of the second or third if all neighbours of the fastest were tried). It
invents no ids: the search tells it the neighbours of the fastest configs that may be proposed.
docs/tune-protocols.md has the protocol.
"""
import json
import sys

# Least gain that a claim must promise, per cent, what it is not believed taken off.
LEAST = 2.0


def claimed(told, made):
    """The claim about the best config that promises most, by how far its kind is to be believed, and was not followed yet."""
    trust = {kind["kind"]: (kind["came_true"] + 1) / (kind["tried"] + 2) for kind in told["record"]}
    open_claims = [
        (claim["expected"] * trust.get(claim["kind"], 0.5), claim)
        for claim in told["claims"]
        if claim["about"] == told["best"] and claim["expected"] is not None and claim["proposes"] not in made
    ]
    promise, claim = min(open_claims, key=lambda option: option[0], default=(0, None))
    return claim if promise <= -LEAST else None


def untried_neighbour(told):
    """A fast config and its first neighbour that may be proposed and that no claim says does not build."""
    bad = {claim["proposes"] for claim in told["claims"] if claim["expected"] is None}
    near = ((fast, other) for fast in told["fastest"] for other in fast["neighbours"] if other["id"] not in bad)
    return next(near, (None, None))


def main():
    made = set()  # several may be on their way before one is told of
    for line in sys.stdin:
        told = json.loads(line)
        claim = claimed(told, made)
        if claim:
            candidate, why = claim["proposes"], f"{claim['evidence']}: {claim['lever']} {claim['from']} to {claim['to']}"
        else:
            fast, near = untried_neighbour(told)
            if near is None:
                print(json.dumps({"propose": [], "why": "no neighbour of the fastest is left"}), flush=True)
                return
            candidate, why = near["id"], f"{near['lever']} {fast['levers'][near['lever']]} to {near['to']} of {fast['id']}"
        made.add(candidate)
        print(json.dumps({"propose": [candidate], "why": why}), flush=True)


main()
