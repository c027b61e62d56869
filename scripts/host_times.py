#!/usr/bin/env python3
"""Times what calls of attention cost the host, at the small shape and at a step of decoding. Needs a GPU.

usage: host_times.py [--rounds N] [--calls N]   (one JSON row a line)

A round is a queue of calls while the device is idle, few enough that none waits for a place in it; the device is
waited for between rounds. Ways take turns, and a row has the median of the rounds of each, with the least and the
greatest tenth.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time

import flashcore_attn
import flashcore_attn.torch
import torch
from flashcore_attn.flash_attn_interface import flash_attn_func, flash_attn_with_kvcache, get_scheduler_metadata
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

SHAPES = {"small": (1, 512, 512, 8, 8, 64), "decode": (1, 1, 4096, 32, 8, 128)}


def ways(shape):
    """Name, whether gradients are recorded, and the function of each way to call; where it needs a context, that."""
    batch, seq_q, seq_kv, heads, kv_heads, head_dim = SHAPES[shape]
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    q = torch.randn(batch, seq_q, heads, head_dim, **options)
    k, v = (torch.randn(batch, seq_kv, kv_heads, head_dim, **options) for _ in range(2))
    out = torch.empty_like(q)
    bhsd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    grads = [x.clone().requires_grad_() for x in (q, k, v)]
    bhsd_grads = [x.clone().requires_grad_() for x in bhsd]
    lengths = torch.full((batch,), seq_kv, dtype=torch.int32, device="cuda")

    yield "attention(out=)", False, lambda: flashcore_attn.attention(q, k, v, out=out)
    yield "attention()", False, lambda: flashcore_attn.attention(q, k, v)
    yield "flash_attn_func", False, lambda: flash_attn_func(q, k, v)
    yield from ways_of_cache(q, k, v, lengths)
    yield "flash_attn_func", True, lambda: flash_attn_func(*grads)
    for recorded, tensors in ((False, bhsd), (True, bhsd_grads)):
        run = lambda tensors=tensors: sdpa(*tensors, enable_gqa=heads != kv_heads)
        yield "sdpa on flashcore", recorded, run, flashcore_attn.torch.activated
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            backend = getattr(SDPBackend, name)
            yield f"sdpa {name.split('_')[0].lower()}", recorded, run, lambda backend=backend: sdpa_kernel(backend)
    yield "a lambda", False, lambda: None


def ways_of_cache(q, k, v, lengths):
    """The same of a step over a cache, in which a key is new or not."""
    (batch, rows, heads, head_dim), (_, seq_kv, kv_heads, _) = q.shape, k.shape
    new = [torch.randn(batch, 1, kv_heads, head_dim, dtype=q.dtype, device="cuda") for _ in "kv"]
    tables = {name: torch.randn(seq_kv, head_dim // 2, dtype=q.dtype, device="cuda") for name in ("rotary_cos", "rotary_sin")}
    table = torch.arange(batch * seq_kv // 16, dtype=torch.int32, device="cuda").view(batch, -1)
    pages = [x.view(-1, 16, kv_heads, head_dim) for x in (k, v)]
    sizes = {"batch_size": batch, "max_seqlen_q": rows, "max_seqlen_k": seq_kv, "num_heads_q": heads}
    sizes |= {"num_heads_kv": kv_heads, "headdim": head_dim, "page_size": 16, "cache_seqlens": lengths, "causal": True}
    made = get_scheduler_metadata(**sizes)
    options = {"cache_seqlens": lengths, "causal": True}
    before = {**options, "cache_seqlens": lengths - 1}
    cached = flash_attn_with_kvcache
    yield "kvcache", False, lambda: cached(q, k, v, **options)
    yield "kvcache, paged", False, lambda: cached(q, *pages, page_table=table, **options)
    yield "kvcache, paged, schedule", False, lambda: cached(q, *pages, page_table=table, scheduler_metadata=made, **options)
    yield "kvcache, new key", False, lambda: cached(q, k, v, *new, **before)
    yield "kvcache, new key, rotary", False, lambda: cached(q, k, v, *new, **tables, **before)
    yield "kvcache, paged, new key, rotary", False, lambda: cached(q, *pages, *new, page_table=table, **tables, **before)


def measured(found, rounds, calls):
    """The microseconds a call of each round, for each way."""
    times = {key: [] for key in found}
    for number in range(rounds + 3):
        for (name, recorded), (run, *context) in found.items():
            with torch.inference_mode(not recorded), context[0]() if context else contextlib.nullcontext():
                torch.cuda.synchronize()
                started = time.perf_counter_ns()
                for _ in range(calls):
                    run()
                taken = time.perf_counter_ns() - started
                torch.cuda.synchronize()
            if number >= 3:
                times[name, recorded].append(taken / calls / 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for shape in SHAPES:
        found = {(name, recorded): rest for name, recorded, *rest in ways(shape)}
        for (name, recorded), times in measured(found, options.rounds, options.calls).items():
            times.sort()
            row = {"shape": shape, "way": name, "autograd": recorded, "host_us": round(statistics.median(times), 2)}
            tenth = len(times) // 10
            row["tenths"] = [round(times[tenth], 2), round(times[-1 - tenth], 2)]
            print(json.dumps({**row, **about}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
