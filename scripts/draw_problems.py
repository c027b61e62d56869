#!/usr/bin/env python3
"""Draws random problems that defaults are judged on, as a file for `flashcore bench`.

usage: draw_problems.py SEED COUNT [chunks|mixed] > problems.json

Lengths 100 to 16,000, heads 8 to 64 in groups of 1 to 8, head_dim 64 to 256, a fifth with more keys
than rows, half causal; at most 2.5 TFLOP and 1.2 GB a tensor. Run `draw` of evidence/h200 has seed 11.

`chunks` are short ones over long caches: 16 to 512 rows over 512 to 16,384 keys, 1 to 64 heads in groups of 1 to 16,
head_dim 64 to 128, 70 % causal. Every second one has packed rows, from half the length on, over pages of 64 keys; the
others have equal lengths. The 40 of evidence/h200 (runs `serve-late`, `serve-chunks`, `serve-pages`) have seed 2340.

`mixed` are what choices are compared on (scripts/regret.py): of five problems three prompts of 150 to 9,000 rows, one
of few rows over 600 to 20,000 keys, and one of decoding, each short enough to be timed with nine kernels in seconds.
"""

import json
import math
import random
import sys

PAGE = 64
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


def chunk(rng, _seed, number):
    """The same of chunks."""
    group, kv_heads, head_dim = rng.choice([1, 2, 3, 4, 5, 8, 16]), rng.choice([1, 2, 4, 8]), rng.choice([64, 64, 80, 96, 128, 128, 128])
    batch = rng.choice([1, 2, 3, 4, 8, 12, 16])
    rows = max(16, min(512, round(2 ** rng.uniform(4, 9))))
    keys = max(512, min(16384, round(2 ** rng.uniform(9, 14))))
    causal = rng.random() < 0.7
    heads = group * kv_heads
    flops, read = 4 * batch * heads * rows * keys * head_dim, 4 * batch * kv_heads * keys * head_dim
    if heads > 64 or not 2e8 <= flops <= 6e11 or read > 5e8:
        return None
    packed = number % 2 == 1
    lengths = [(rows, keys)] * batch
    if packed:
        at_least = [max(16, rows // 2), max(512, keys // 2)]
        lengths = [(rng.randint(at_least[0], rows), rng.randint(at_least[1], keys)) for _ in range(batch)]
    kind, mask = "paged" if packed else "equal", "c" if causal else "f"
    problem = {
        "name": f"c{number:02}-{kind}-b{batch}-h{heads}-{kv_heads}-{rows}x{keys}-d{head_dim}{mask}",
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "seq_q": max(rows for rows, _ in lengths),
        "seq_kv": max(keys for _, keys in lengths),
        "dtype": "bf16",
        "causal": causal,
    }
    if packed:
        pages = [-(-keys // PAGE) for _, keys in lengths]
        problem["q_lengths"] = {"packed": {"total": sum(rows for rows, _ in lengths), "used": False}}
        problem["kv_lengths"] = {"paged": {"page_size": PAGE, "pages": sum(pages), "max_pages": max(pages)}}
        problem["sequences"] = [{"count": 1, "rows": rows, "keys": keys} for rows, keys in lengths]
    return problem


def mixed(rng, _seed, number):
    """The same of prompts, chunks and decoding. No length is a power of two but by chance."""
    between = lambda least, most: int(math.exp(rng.uniform(math.log(least), math.log(most))))
    kv_heads, group = rng.choice([1, 2, 4, 8, 8, 16]), rng.choice([1, 1, 2, 4, 5, 8])
    head_dim, kind = [64, 96, 128, 192, 256][number // 5 % 5], "ppcpd"[number % 5]
    causal = rng.random() < 0.5
    heads = kv_heads * group
    if kind == "p":
        batch, rows = rng.choice([1, 1, 2, 3, 4, 7]), between(150, 9000)
        keys = rows
    elif kind == "c":
        batch, rows, keys = rng.choice([1, 1, 2, 3, 5]), between(17, 600), between(600, 20000)
    else:
        batch, rows, keys = rng.choice([1, 2, 3, 6, 12, 25]), rng.choice([1, 1, 1, 2, 3]), between(300, 40000)
        causal &= rows > 1
    flops = 4 * batch * heads * rows * keys * head_dim * (0.5 if causal and rows == keys else 1)
    read, few_rows = 4 * batch * kv_heads * keys * head_dim, rows * group <= 16
    if heads > 64 or keys < rows or few_rows != (kind == "d") or read > 2e8:
        return None
    if kind != "d" and not 2e9 <= flops <= 3e11 or kind == "d" and read < 1e6:
        return None
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": rows, "seq_kv": keys}
    dtype, mask = rng.choice(["fp16", "bf16"]), "c" if causal else "f"
    name = f"{kind}{number:02}-b{batch}-h{heads}-{kv_heads}-{rows}x{keys}-d{head_dim}{mask}"
    return {"name": name, **sizes, "head_dim": head_dim, "causal": causal, "dtype": dtype}


def main():
    words = sys.argv[1:]
    kind = {"chunks": chunk, "mixed": mixed}.get("".join(words[2:]), draw)
    if len(words) != 2 + (kind is not draw) or not all(word.isdecimal() for word in words[:2]):
        sys.exit(__doc__)
    seed, count = map(int, words[:2])
    rng, problems = random.Random(seed), []
    while len(problems) < count:
        problems += filter(None, [kind(rng, seed, len(problems))])
    print(json.dumps(problems, indent=0))


if __name__ == "__main__":
    main()
