#!/usr/bin/env python3
"""An example of an outside proposer for `flashcore tune --proposer 'python3 scripts/propose.py'`.

Reads one JSON object per line (what was tried) and writes one (what to try). It needs only Python
and is deterministic: the same history gives the same proposals. It first proposes the change with
the largest claimed gain, discounted by how often claims of that kind came true. Then it changes one
lever of the fastest config (of the second or third if all neighbours of the fastest were tried),
beginning with the lever whose changes most often made a new best config. It invents no ids: the
search tells it the neighbours of the fastest configs that may be proposed. docs/tune.md has the
protocol.
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


def warned(told):
    """Configs that are claimed not to build."""
    return {claim["proposes"] for claim in told["claims"] if claim["expected"] is None}


def worth(lever, paid, turned):
    """The part of a lever's turns that made a best config, beginning at a half as if one of two had."""
    return (paid.get(lever, 0) + 1) / (turned.get(lever, 0) + 2)


def beside(told, paid, turned):
    """A config beside the fastest ones that nobody has tried: the fastest's first."""
    bad = warned(told)
    for fast in told["fastest"]:
        near = [other for other in fast["neighbours"] if other["id"] not in bad]
        if near:
            # Of equals the first that was told.
            return fast, max(near, key=lambda other: worth(other["lever"], paid, turned))
    return None, None


def main():
    # How often turning a lever made a new best, and how often it was turned at all.
    paid, turned = {}, {}
    # The lever behind each proposal. Several may be on their way before one is told of.
    made, best = {}, None
    for line in sys.stdin:
        told = json.loads(line)
        if told["best"] != best and told["best"] in made:
            lever = made[told["best"]]
            paid[lever] = paid.get(lever, 0) + 1
        best = told["best"]
        claim = claimed(told, made)
        if claim:
            lever, candidate = claim["lever"], claim["proposes"]
            why = f"{claim['evidence']}: {claim['lever']} {claim['from']} to {claim['to']}"
        else:
            fast, near = beside(told, paid, turned)
            if near is None:
                print(json.dumps({"propose": [], "why": "nothing beside the fastest is left"}), flush=True)
                return
            lever, candidate = near["lever"], near["id"]
            why = f"{lever} {fast['levers'][lever]} to {near['to']} of {fast['id']}"
        made[candidate] = lever
        turned[lever] = turned.get(lever, 0) + 1
        print(json.dumps({"propose": [candidate], "why": why}), flush=True)


if __name__ == "__main__":
    main()
