#!/usr/bin/env python3
"""Times two builds of the Python package in turns, and says how far they are apart. Needs PyTorch and, but for the set `cpu`, a GPU.

usage: paired_builds.py OLD NEW OUT.json [--set forward|backward|decode|host|cpu] [--dtype bf16|fp16|f32] [--rounds N] [--only WORD]

OLD and NEW are folders on which the package can be imported (an unpacked wheel each). Each build runs in a process of
its own, which captures calls of about 10 ms in a CUDA graph; the processes are told in turns to replay it, in an order
that is drawn anew each round, so that both see the same clocks. Of the set `host` what counts is the host's time of a call,
in a queue of calls that is begun while the device is idle. A row has the ratio NEW / OLD of every round, its
median and the interval of the median (99 %, bootstrap with a fixed seed); the last row has the geometric mean.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys

import grid

# What a build's process runs: it reads a shape a line, prepares it, and replays it once for each `time`.
BUILD = r"""
import json, sys, time, torch
import flashcore_attn, flashcore_attn._operators, flashcore_attn.flash_attn_interface as flash
def prepared(spec):
    b, hq, hk, sq, sk, d = spec["sizes"]
    options = dict(device="cpu" if spec["set"] == "cpu" else "cuda", dtype=getattr(torch, spec["dtype"]))
    torch.manual_seed(1)
    q = torch.randn(b, sq, hq, d, **options)
    k, v = (torch.randn(b, sk, hk, d, **options) for _ in range(2))
    if spec["set"] == "backward":
        out, lse = flash.flash_attn_func(q, k, v, causal=spec["causal"], return_attn_probs=True)[:2]
        dout = torch.randn_like(out)
        return lambda: flashcore_attn._operators.backward(dout, q, k, v, out, lse, causal=spec["causal"])
    out = torch.empty_like(q)
    if spec["set"] == "host":
        grads = [x.clone().requires_grad_() for x in (q, k, v)]
        lengths = torch.full((b,), sk, dtype=torch.int32, device="cuda")
        return {
            "attention(out=)": lambda: flashcore_attn.attention(q, k, v, out=out),
            "attention()": lambda: flashcore_attn.attention(q, k, v),
            "flash_attn_func": lambda: flash.flash_attn_func(q, k, v),
            "flash_attn_func, autograd": lambda: flash.flash_attn_func(*grads),
            "kvcache": lambda: flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True),
        }[spec["way"]]
    return lambda: flashcore_attn.attention(q, k, v, causal=spec["causal"], out=out)
def milliseconds(work):
    if on_host:
        with torch.inference_mode(infers):
            wait(); began = time.perf_counter(); work()
            taken = time.perf_counter() - began
            wait()
        return 1e3 * taken
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(); work(); end.record(); end.synchronize()
    return start.elapsed_time(end)
def repeated():
    for _ in range(calls): call()
for line in sys.stdin:
    if line == "time\n":
        print(1e3 * milliseconds(replay) / calls, flush=True)
        continue
    replay = call = None
    spec = json.loads(line)
    on_host, call, calls = spec["set"] in ("cpu", "host"), prepared(spec), 3
    wait = torch.cuda.synchronize if spec["set"] == "host" else lambda: None
    infers = spec["set"] == "host" and not spec["way"].endswith("autograd")
    repeated(); milliseconds(repeated)
    # So few of the host's that none waits for a place in the device's queue.
    calls = 100 if spec["set"] == "host" else max(1, min(500, round(30 / milliseconds(repeated))))
    replay = repeated
    if not on_host:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): repeated()
        replay = graph.replay
    milliseconds(replay)
    print(calls, flush=True)
"""


def shapes(kind):
    """Name, [batch, heads, K/V heads, rows, keys, head_dim], causal. Of the host's calls, names end with the way to call."""
    if kind == "host":
        for way in ("attention(out=)", "attention()", "flash_attn_func", "flash_attn_func, autograd", "kvcache"):
            yield f"small {way}", [1, 8, 8, 512, 512, 64], False
            yield f"decode {way}", [1, 32, 8, 1, 4096, 128], False
        return
    if kind == "cpu":
        yield "small", [1, 8, 8, 512, 512, 64], False
        yield "d128-s2048-causal", [1, 8, 8, 2048, 2048, 128], True
        yield "decode-k4096", [4, 32, 8, 1, 4096, 128], False
        return
    if kind == "decode":
        for batch, keys in ((1, 4096), (1, 32768), (8, 4096), (64, 4096)):
            yield f"b{batch}-k{keys}", [batch, 32, 8, 1, keys, 128], False
        return
    if kind == "forward":
        yield "small", [1, 8, 8, 512, 512, 64], False
    for name in grid.NAMES:
        batch, heads, seq, head_dim, causal = grid.sizes(name)
        if kind == "forward" or seq in (512, 2048, 8192, 16384):
            yield name, [batch, heads, heads, seq, seq, head_dim], causal
    yield "llama8b-prefill-8k", [1, 32, 8, 8192, 8192, 128], True


class Build:
    def __init__(self, folder):
        command = [sys.executable, "-c", BUILD]
        environment = {**os.environ, "PYTHONPATH": folder}
        self.child = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment)

    def ask(self, line):
        print(line, file=self.child.stdin, flush=True)
        answer = self.child.stdout.readline()
        if not answer:
            raise SystemExit(f"a build's process ended with {self.child.wait()}")
        return float(answer)


def interval(values, generator, of=statistics.median):
    """The 99 % interval of a statistic, by resampling."""
    drawn = sorted(of(generator.choices(values, k=len(values))) for _ in range(2000))
    return [drawn[10], drawn[-11]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("old", "new", "out"):
        parser.add_argument(name)
    parser.add_argument("--set", default="forward", choices=("forward", "backward", "decode", "host", "cpu"))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16", "f32"))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    builds = [Build(options.old), Build(options.new)]
    dtype = {"bf16": "bfloat16", "fp16": "float16", "f32": "float32"}[options.dtype]
    generator, rows = random.Random(7), []
    for name, sizes, causal in shapes(options.set):
        if options.only not in name:
            continue
        spec = {"sizes": sizes, "causal": causal, "set": options.set, "dtype": dtype}
        spec |= {"way": name.split(" ", 1)[1]} if options.set == "host" else {}
        for build in builds:
            build.ask(json.dumps(spec))
        times = [[], []]
        for _ in range(options.rounds):
            for at in generator.sample((0, 1), 2):
                times[at].append(builds[at].ask("time"))
        ratios = [new / old for old, new in zip(*times)]
        row = {"shape": name, "old_us": statistics.median(times[0]), "new_us": statistics.median(times[1])}
        row |= {"ratio": statistics.median(ratios), "interval": interval(ratios, generator), "ratios": ratios}
        rows.append(row)
        print(f"{name:22} {row['old_us']:9.1f} {row['new_us']:9.1f} us  {row['ratio']:.4f}", *row["interval"], flush=True)
    medians = [row["ratio"] for row in rows]
    resampled = lambda _: statistics.geometric_mean([statistics.median(generator.choices(row["ratios"], k=options.rounds)) for row in rows])
    mean = {"shape": "geometric mean", "ratio": statistics.geometric_mean(medians), "interval": interval([0], generator, resampled)}
    print(mean)
    settings = {"set": options.set, "dtype": options.dtype, "rounds": options.rounds}
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({**settings, "rows": [*rows, mean]}, file)


if __name__ == "__main__":
    main()
