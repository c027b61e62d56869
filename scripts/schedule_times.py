#!/usr/bin/env python3
"""Times a step of decoding in one CUDA graph with a schedule for each layer and with one for all. Needs a GPU.

usage: schedule_times.py [--rounds N] [--layers N]   (one JSON row a line)

Layers have 32 heads that share 8, head_dim 128, pages of 16 keys, bf16. A row has the microseconds of a step, the
median of rounds of 20 replays in turns.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from flashcore_attn.flash_attn_interface import flash_attn_with_kvcache, get_scheduler_metadata

# Sequences, the fewest keys of one, and rows of each.
BATCHES = {"B4 4,096 keys": (4, 4096, 1), "B16 mixed": (16, 100, 1), "B16 mixed, 4 rows": (16, 100, 4),
           "B64 mixed": (64, 100, 1)}  # fmt: skip
CAPACITY, HEADS, KV_HEADS, DIM, PAGE = 4096, 32, 8, 128, 16


def graphs(batch, least, rows, layers):
    """A graph of a step for each way, captured after a run."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(least, CAPACITY + 1, (batch,), generator=draw, dtype=torch.int32).cuda()
    pages = batch * CAPACITY // PAGE
    table = torch.randperm(pages, generator=draw, dtype=torch.int32).view(batch, -1).cuda()
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * rows
    randn = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device="cuda")
    q, caches = randn(batch * rows, HEADS, DIM), [[randn(pages, PAGE, KV_HEADS, DIM) for _ in "kv"] for _ in range(layers)]
    both = {"cache_seqlens": lengths, "cu_seqlens_q": starts, "causal": True}
    sizes = {"batch_size": batch, "max_seqlen_q": rows, "max_seqlen_k": CAPACITY, "num_heads_q": HEADS}
    sizes |= {"num_heads_kv": KV_HEADS, "headdim": DIM, "page_size": PAGE, "total_q": batch * rows, **both}
    made = get_scheduler_metadata(**sizes)
    assert made.numel() > 0, "the plan of this problem has a schedule"

    def step(metadata):
        for cache in caches:
            flash_attn_with_kvcache(q, *cache, page_table=table, max_seqlen_q=rows, scheduler_metadata=metadata, **both)

    def one():
        get_scheduler_metadata(**sizes, out=made)
        step(made)

    for name, run in (("a schedule for each layer", lambda: step(None)), ("one for all", one)):
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        yield name, graph


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--layers", type=int, default=16)
    options = parser.parse_args()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for batch, sizes in BATCHES.items():
        with torch.inference_mode():
            found = list(graphs(*sizes, options.layers))
        times = {name: [] for name, _ in found}
        for _ in range(options.rounds):
            for name, graph in found:
                torch.cuda.synchronize()
                started = time.perf_counter()
                for _ in range(20):
                    graph.replay()
                torch.cuda.synchronize()
                times[name].append((time.perf_counter() - started) / 20 * 1e6)
        row = {"batch": batch, "layers": options.layers}
        row["step_us"] = {name: round(statistics.median(of), 1) for name, of in times.items()}
        print(json.dumps({**row, **about}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
