#!/usr/bin/env python3
"""Calls FlashCore very often and in disorder on a GPU, and looks whether memory grows or an answer changes.

usage: soak.py [--calls N] [--threads N]   (one JSON row a line; exit code 1 if one is not ok)

- `calls`: N calls of four kinds in turn. Memory of the device, of PyTorch's allocator and of the process after a tenth
  of them and at the end.
- `freed in flight`: inputs are freed as soon as the call returns, and their memory is filled with NaN by the next
  allocation in the same stream, while a long kernel before them still runs.
- `threads and streams`: each thread has a stream and problems of its own, and compares each answer bit by bit with the
  first one.
- `fork`: a child that was forked after the first call is refused with a sentence that says what to do.
"""

import argparse
import json
import os
import sys
import threading
import time

import flashcore_attn
import torch
from flashcore_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

ok = True


def row(what, good, **found):
    global ok
    ok &= bool(good)
    print(json.dumps({"soak": what, "ok": bool(good), **found, "device": torch.cuda.get_device_name()}), flush=True)


def draw(*shape, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)


def memory():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {"device": total - free, "allocated": torch.cuda.memory_allocated(), "resident": resident}


def many_calls(count):
    q, k, v = draw(1, 64, 8, 64), draw(1, 64, 2, 64), draw(1, 64, 2, 64)
    starts = torch.tensor([0, 20, 64], dtype=torch.int32, device="cuda")
    used = torch.tensor([50], dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    kinds = [
        lambda: flash_attn_func(q, k, v, causal=True),
        lambda: flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 44, 44, causal=True),
        lambda: flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=used),
        lambda: flashcore_attn.attention(q, k, v, out=out),
    ]
    began, seen = time.perf_counter(), []
    with torch.inference_mode():
        for number in range(count):
            kinds[number % len(kinds)]()
            if number % 1000 == 0:
                torch.cuda.synchronize()
            if number in (count // 10, count - 1):
                seen.append(memory())
    first, last = seen
    grew = {name: last[name] - first[name] for name in last}
    seconds = round(time.perf_counter() - began, 1)
    row("calls", max(grew["device"], grew["allocated"]) <= 0 and grew["resident"] < 8 << 20, calls=count, grew=grew, seconds=seconds)


def freed_in_flight(count):
    wrong, busy = 0, draw(8192, 8192)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        want = flash_attn_func(draw(2, 512, 8, 128), draw(2, 512, 8, 128, seed=1), draw(2, 512, 8, 128, seed=2))
        for _ in range(count):
            busy @ busy
            q, k, v = (draw(2, 512, 8, 128, seed=seed) for seed in range(3))
            out = flash_attn_func(q, k, v)
            del q, k, v
            spoilt = [torch.full((2, 512, 8, 128), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
            wrong += not torch.equal(out, want)
            del spoilt
    row("freed in flight", wrong == 0, calls=count, wrong=wrong)


def threads_and_streams(threads, count):
    wrong = [0] * threads

    def work(number):
        torch.cuda.set_device(0)
        with torch.cuda.stream(torch.cuda.Stream()), torch.inference_mode():
            problems = []
            for shape in range(4):
                seq, dim = 33 + 64 * shape + number, 64 * (1 + shape % 2)
                q, k, v = (draw(1, seq, 4, dim, seed=number + 9 * x) for x in range(3))
                problems.append((q, k, v, flash_attn_func(q, k, v, causal=True)))
            for call in range(count):
                q, k, v, want = problems[call % len(problems)]
                wrong[number] += not torch.equal(flash_attn_func(q, k, v, causal=True), want)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    row("threads and streams", sum(wrong) == 0, threads=threads, calls=threads * count, wrong=sum(wrong))


def forked():
    q = draw(1, 64, 8, 64)
    flash_attn_func(q, q, q)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            flash_attn_func(q, q, q)
            says = "it computed"
        except RuntimeError as error:
            says = str(error)
        os.write(writer, says.encode())
        os._exit(0)
    os.waitpid(child, 0)
    says = os.read(reader, 4096).decode()
    row("fork", "forked" in says and "spawn" in says, says=says)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    forked()
    freed_in_flight(200)
    threads_and_streams(options.threads, 500)
    many_calls(options.calls)
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
