#!/usr/bin/env python3
"""cuBLAS through PyTorch on the shapes of `cargo run --release -p flashcore-tools -- scores`.

    python scripts/bench_matmul.py --heads 8 --seq 512 --head-dim 64

Times S = Q.K^T of [batch, heads, seq, head_dim] tensors, scores in their dtype, in CUDA graphs of 64 runs: the
median and the tenth percentiles over rounds, after a second of warming up. Needs PyTorch and a GPU.
"""

import argparse
import statistics
import time

import torch

CHAIN = 64
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="fp16")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    shape = (args.batch, args.heads, args.seq, args.head_dim)
    q, k = (torch.randn(shape, device="cuda", dtype=DTYPES[args.dtype]) for _ in range(2))
    scores = torch.empty(*shape[:3], args.seq, device="cuda", dtype=q.dtype)

    def run():
        torch.matmul(q, k.transpose(-1, -2), out=scores)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CHAIN):
            run()
    started = time.perf_counter()
    while time.perf_counter() - started < 1.0:
        graph.replay()
        torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(args.rounds):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / CHAIN)
    tenths = statistics.quantiles(times, n=10)
    median = statistics.median(times)
    tflops = 2 * args.batch * args.heads * args.seq * args.seq * args.head_dim / median / 1e6
    print(f"torch.matmul {shape} {args.dtype} on {torch.cuda.get_device_name()}, PyTorch {torch.__version__}:")
    print(f"  {median:.2f} us ({tenths[0]:.2f} to {tenths[-1]:.2f}), {tflops:.1f} TFLOP/s")


if __name__ == "__main__":
    main()
