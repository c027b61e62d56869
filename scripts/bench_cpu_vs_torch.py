#!/usr/bin/env python3
"""Attention on the host against PyTorch's CPU SDPA: same shapes, same threads, taking turns in one run.

    cargo build --release -p flashcore-tools
    python scripts/bench_cpu_vs_torch.py --threads 16 --json cpu-vs-torch.json

Needs PyTorch. Both sides get tensors in PyTorch's own memory order ([batch, heads, seq, head_dim],
contiguous). Every round is one warm-up and one timed call of each side, so that both see the same
machine; the ratio is of the medians, and above 1 FlashCore is the faster one.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = [(8, 512, 64), (8, 2048, 64), (16, 4096, 128)]


def torch_seconds(q, k, v, causal):
    """Seconds of one call, after one that warms up."""
    scaled_dot_product_attention(q, k, v, is_causal=causal)
    start = time.perf_counter()
    scaled_dot_product_attention(q, k, v, is_causal=causal)
    return time.perf_counter() - start


def flops(heads, seq_len, head_dim, causal):
    """Of the two products over visible keys, as Problem::flops counts them."""
    pairs = seq_len * (seq_len + 1) // 2 if causal else seq_len * seq_len
    return 4 * head_dim * pairs * heads


def cpu_name():
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--binary", default=os.path.join(target, "release", "flashcore-tools"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", default="f32,bf16,fp16", help="comma-separated")
    parser.add_argument("--config", help="a config of FlashCore's, such as cpu/m128n128")
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    unknown = [dtype for dtype in args.dtypes.split(",") if dtype not in DTYPES]
    if unknown or args.rounds < 1 or args.threads < 1:
        parser.error(f"unknown dtypes {unknown}" if unknown else "--rounds and --threads must be at least 1")
    if not os.path.exists(args.binary):
        parser.error(f"no {args.binary}: build it as above, or name it with --binary")

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    command = [args.binary, "cpu-bench", "--serve", "--rounds", "1", "--threads", str(args.threads)]
    if args.config:
        command += ["--config", args.config]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(case):
        server.stdin.write(case + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            sys.exit(f"{args.binary} stopped (exit {server.wait()})")
        answer = json.loads(answer)
        if "error" in answer:
            sys.exit(answer["error"])
        return answer

    results = []
    header = f"{'case':<28} {'flashcore ms':>12} {'torch ms':>9} {'GFLOP/s':>8} {'torch':>6} {'ratio':>6}"
    print(f"{cpu_name()}, {args.threads} threads, PyTorch {torch.__version__}, {args.rounds} rounds\n{header}", flush=True)
    for dtype in args.dtypes.split(","):
        for heads, seq_len, head_dim in SHAPES:
            q, k, v = (torch.randn(1, heads, seq_len, head_dim).to(DTYPES[dtype]) for _ in range(3))
            for causal in (False, True):
                case = f"h{heads}-s{seq_len}-d{head_dim}-{dtype}-{'causal' if causal else 'full'}"
                ours, theirs = [], []
                for _ in range(args.rounds):
                    answer = ask(case)
                    ours.append(answer["median_ms"])
                    theirs.append(torch_seconds(q, k, v, causal) * 1e3)
                our_ms, torch_ms = statistics.median(ours), statistics.median(theirs)
                work = flops(heads, seq_len, head_dim, causal)
                result = {
                    "case": case,
                    "config": answer["config"],
                    "simd": answer["simd"],
                    "threads": args.threads,
                    "flashcore_ms": our_ms,
                    "torch_ms": torch_ms,
                    "flashcore_gflops": work / our_ms / 1e6,
                    "torch_gflops": work / torch_ms / 1e6,
                    "ratio": torch_ms / our_ms,
                    "flashcore_samples_ms": ours,
                    "torch_samples_ms": theirs,
                }
                results.append(result)
                print(
                    f"{case:<28} {our_ms:12.2f} {torch_ms:9.2f} {result['flashcore_gflops']:8.0f} "
                    f"{result['torch_gflops']:6.0f} {result['ratio']:6.2f}",
                    flush=True,
                )
    server.stdin.close()
    server.wait()
    if args.json:
        with open(args.json, "w") as file:
            record = {"cpu": cpu_name(), "threads": args.threads, "torch": torch.__version__, "results": results}
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
