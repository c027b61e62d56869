#!/usr/bin/env python3
"""Draws short chunks over long caches, as a file for `flashcore bench`.

usage: draw_chunks.py SEED COUNT > chunks.json

16 to 512 rows over 512 to 16,384 keys, 1 to 64 heads in groups of 1 to 16, head_dim 64 to 128, 70 % causal.
Every second one has packed rows, from half the length on, over pages of 64 keys; the others have equal lengths.
The 40 chunks of evidence/h200 (runs `serve-late`, `serve-chunks`, `serve-pages`) have seed 2340.
"""

from draw_problems import print_problems

GROUPS = [1, 2, 3, 4, 5, 8, 16]
HEAD_DIMS = [64, 64, 80, 96, 128, 128, 128]
PAGE = 64


def draw(rng, _seed, number):
    """A problem, or None if it is too small or too large."""
    group, kv_heads, head_dim = rng.choice(GROUPS), rng.choice([1, 2, 4, 8]), rng.choice(HEAD_DIMS)
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


if __name__ == "__main__":
    print_problems(draw, __doc__)
