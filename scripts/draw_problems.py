#!/usr/bin/env python3
"""Draws random problems that defaults are judged on, as a file for `flashcore bench`.

usage: draw_problems.py SEED COUNT > problems.json

Lengths 100 to 16,000, heads 8 to 64 in groups of 1 to 8, head_dim 64 to 256, a fifth with more keys
than rows, half causal; at most 2.5 TFLOP and 1.2 GB a tensor. Run `draw` of evidence/h200 has seed 11.
"""

import json
import math
import random
import sys

HEAD_DIMS = [64, 64, 80, 96, 112, 128, 128, 128, 160, 192, 256, 256]


def draw(rng, seed, number):
    """A problem, or None if it is too small or too large."""
    head_dim = rng.choice(HEAD_DIMS)
    heads, group = rng.choice([8, 16, 24, 32, 40, 64]), rng.choice([1, 1, 2, 4, 8])
    if heads % group:
        return None
    batch = rng.choice([1, 1, 1, 2, 3, 4, 8])
    rows = keys = int(math.exp(rng.uniform(math.log(100), math.log(16000))))
    if rng.random() < 0.2:
        rows = rng.randint(64, 512)
        keys = rng.randint(max(rows, 512), 8192)
    causal = rng.random() < 0.5
    flops = 4 * batch * heads * rows * keys * head_dim * (0.5 if causal and rows == keys else 1)
    if not 5e8 <= flops <= 2.5e12 or batch * heads * max(rows, keys) * head_dim * 2 > 1.2e9:
        return None
    sizes = {"batch": batch, "heads": heads, "kv_heads": heads // group, "seq_q": rows, "seq_kv": keys}
    dtype = rng.choice(["fp16", "bf16"])
    return {"name": f"draw-{seed}-{number:03}", **sizes, "head_dim": head_dim, "causal": causal, "dtype": dtype}


def main():
    if len(sys.argv) != 3 or not all(word.isdecimal() for word in sys.argv[1:]):
        sys.exit(__doc__)
    seed, count = map(int, sys.argv[1:])
    rng, problems = random.Random(seed), []
    while len(problems) < count:
        problems += filter(None, [draw(rng, seed, len(problems))])
    print(json.dumps(problems, indent=0))


if __name__ == "__main__":
    main()
