#!/usr/bin/env python3
"""Attention over more tokens than one GPU should compute: each device has a part of them.

usage: torchrun --nproc-per-node 2 context_parallel.py [--seq N] [--heads N] [--head-dim N] [--method NAME] [--full]
                                                       [--backward] [--kernel flashcore|torch] [--rounds N]

Methods: ``allgather`` and ``alltoall`` are those of ``torch.distributed.tensor.experimental.context_parallel``, a ring of
calls of ``scaled_dot_product_attention`` whose results are merged. ``heads`` exchanges tensors that are split by tokens
for tensors that are split by heads, calls ``flash_attn_func`` once, and exchanges the output back. With GPUs each
process takes one, else all use the CPU. Every process compares with attention over all tokens on its own device, and
exits with 1 if the result is wrong. The first one prints a JSON row: errors, and milliseconds of one device and of all.
``--kernel torch`` runs the ring on PyTorch's own kernel.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

import flashcore.distributed
import flashcore.torch
import torch
import torch.distributed as dist
from flashcore.flash_attn_interface import flash_attn_func
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard, set_rotate_method
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# As the kernels' own tests have it, relative to the largest element: a ring rounds each piece's output.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


def attention(q, k, v, dout, causal):
    """The output of ``[batch, heads, seq, head_dim]``, and gradients if dout is given."""
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)  # by its module: it is replaced there
    return (out, *(torch.autograd.grad(out, (q, k, v), dout) if dout is not None else ()))


def by_heads(mesh, q, k, v, dout, causal):
    """The same for the part of the tokens that this process has, split by heads in between."""
    tokens, heads = [Shard(1)], [Shard(2)]
    exchanged = lambda x: DTensor.from_local(x.transpose(1, 2), mesh, tokens, run_check=False).redistribute(mesh, heads)
    out = flash_attn_func(exchanged(q), exchanged(k), exchanged(v), causal=causal)
    out = out.redistribute(mesh, tokens).to_local().transpose(1, 2)
    return (out, *(torch.autograd.grad(out, (q, k, v), dout) if dout is not None else ()))


def seconds(function, rounds, device):
    """The median of rounds, after two that are not counted; the slowest process decides."""
    times = []
    for _ in range(rounds + 2):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    slowest = torch.tensor(statistics.median(times[2:]), device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def measure(options, mesh, device):
    """Compares and times all devices and one; a row."""
    causal, rank = not options.full, mesh.get_local_rank()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(0)
    shape = (1, options.heads, options.seq, options.head_dim)
    whole = [torch.randn(shape, device=device, dtype=dtype, generator=generator) for _ in range(4)]

    def given(tensors):
        q, k, v, dout = (x.clone() for x in tensors)
        return *(x.requires_grad_(options.backward) for x in (q, k, v)), dout if options.backward else None, causal

    with contextlib.ExitStack() as stack:
        if options.kernel == "flashcore":
            stack.enter_context(flashcore.torch.activated(strict=True))
            stack.enter_context(sdpa_kernel(SDPBackend.FLASH_ATTENTION))  # what FlashCore replaces
        alone = given(whole)
        want = [x.detach() for x in attention(*alone)]
        time_of_one = seconds(lambda: attention(*alone), options.rounds, device)
        of_rank = lambda x: x.chunk(mesh.size(), 2)[rank]
        if options.method == "heads":
            part, want = given(map(of_rank, whole)), map(of_rank, want)
            found = [x.detach() for x in by_heads(mesh, *part)]
            time_of_all = seconds(lambda: by_heads(mesh, *part), options.rounds, device)
        else:
            set_rotate_method(options.method)
            _cp_options.enable_load_balance = causal  # a process has two pieces, one from the front and one from the end
            with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 4, no_restore_buffers=set(whole)):
                part = given(whole)
                found = [x.detach() for x in attention(*part)]
                time_of_all = seconds(lambda: attention(*part), options.rounds, device)
                found = context_parallel_unshard(mesh, found, [2] * len(found))
    errors = [((x - y).abs().max() / y.abs().max()).item() for x, y in zip(found, want)]
    return {
        **vars(options),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "devices": mesh.size(),
        "ms_of_one": time_of_one * 1e3,
        "ms": time_of_all * 1e3,
        "speedup": time_of_one / time_of_all,
        "errors": errors,
        "ok": max(errors) < TOLERANCE[dtype],
    }


def start():
    """The processes that torchrun started, as a mesh, and the device of this one."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    flashcore.distributed.register()
    return init_device_mesh(device.type, (dist.get_world_size(),)), device


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--method", choices=["allgather", "alltoall", "heads"], default="allgather")
    parser.add_argument("--full", action="store_true", help="without a causal mask")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--kernel", choices=["flashcore", "torch"], default="flashcore")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    mesh, device = start()
    row = measure(options, mesh, device)
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    return int(not row["ok"])


if __name__ == "__main__":
    sys.exit(main())
