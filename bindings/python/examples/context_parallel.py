#!/usr/bin/env python3
"""Attention over more tokens than one GPU should compute: each device has a part of them.

usage: torchrun --nproc-per-node 2 context_parallel.py [--seq N] [--heads N] [--kv-heads N] [--head-dim N]
           [--method NAME] [--full] [--backward] [--kernel flashcore|torch] [--rounds N]

Methods: ``allgather`` and ``alltoall`` are those of ``torch.distributed.tensor.experimental.context_parallel``, a
ring of calls of ``scaled_dot_product_attention`` whose results are merged. ``keys`` gathers K and V of all tokens, so
that each process computes its own queries with two calls of ``flash_attn_func`` and nothing is merged. ``heads``
exchanges tensors that are split by tokens for tensors that are split by heads, calls ``flash_attn_func`` once, and
exchanges the output back. ``tensor`` has tensors that are split by heads already, as tensor parallel layers have
them. With GPUs each process takes one, else all use the CPU. Every process compares with attention over all tokens on
its own device, and exits with 1 if the result is wrong. The first one prints a JSON row: errors, and milliseconds of
one device and of all, medians and the rounds. ``--kernel torch`` computes a ring, or ``keys``, with PyTorch's own
kernel.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

import flashcore_attn.distributed
import flashcore_attn.torch
import torch
import torch.distributed as dist
from flashcore_attn.flash_attn_interface import flash_attn_func
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard, set_rotate_method
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

# As the kernels' own tests have it, relative to the largest element: a ring rounds each piece's output.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}


def attention(q, k, v, dout, causal):
    """The output of ``[batch, heads, seq, head_dim]``, and gradients if dout is given."""
    gqa = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, **gqa)  # by its module: it is replaced there
    return (out, *(torch.autograd.grad(out, (q, k, v), dout) if dout is not None else ()))


def pieces(mesh, rank):
    """Which of twice as many pieces of the tokens as there are processes one has: as much work under a causal mask."""
    return rank, 2 * mesh.size() - 1 - rank


class Gathered(torch.autograd.Function):
    """K and V of all tokens, ``[1, seq, kv_heads, head_dim]``, from those of a process's two pieces."""

    @staticmethod
    def exchange(mesh, given, taken):
        """Sends a list of tensors to each other process, and receives one."""
        peers = [rank for rank in range(mesh.size()) if rank != mesh.get_local_rank()]
        how = {"group": mesh.get_group()}
        sent = [dist.P2POp(dist.isend, x, group_peer=peer, **how) for peer in peers for x in given(peer)]
        received = [dist.P2POp(dist.irecv, x, group_peer=peer, **how) for peer in peers for x in taken(peer)]
        for work in dist.batch_isend_irecv(sent + received):
            work.wait()

    @staticmethod
    def forward(ctx, mesh, *parts):
        ctx.mesh, rank = mesh, mesh.get_local_rank()
        whole = [x.new_empty(1, mesh.size() * x.shape[1], *x.shape[2:]) for x in parts]
        of = lambda rank: [x.chunk(2 * mesh.size(), 1)[n] for x in whole for n in pieces(mesh, rank)]
        for place, own in zip(of(rank), (piece for x in parts for piece in x.chunk(2, 1))):
            place.copy_(own)
        Gathered.exchange(mesh, lambda peer: of(rank), of)
        return tuple(whole)

    @staticmethod
    def backward(ctx, *gradients):
        mesh, rank = ctx.mesh, ctx.mesh.get_local_rank()
        gradients = [x.contiguous() for x in gradients]
        of = lambda rank: [x.chunk(2 * mesh.size(), 1)[n] for x in gradients for n in pieces(mesh, rank)]
        others = {peer: [torch.empty_like(x) for x in of(rank)] for peer in range(mesh.size()) if peer != rank}
        Gathered.exchange(mesh, of, others.get)
        own = [sum(parts[1:], parts[0].float()).to(parts[0].dtype) for parts in zip(of(rank), *others.values())]
        return None, *(torch.cat(own[n : n + 2], 1) for n in range(0, len(own), 2))


def by_keys(mesh, q, k, v, dout, causal, kernel):
    """The same for a process's pieces of the tokens. Masks are aligned bottom-right: the last query sees the last key."""
    whole_k, whole_v = Gathered.apply(mesh, k.transpose(1, 2), v.transpose(1, 2))
    each = q.shape[2] // 2
    outs = []
    for n, piece in zip(pieces(mesh, mesh.get_local_rank()), q.transpose(1, 2).chunk(2, 1)):
        seen = slice(0, (n + 1) * each if causal else None)
        if kernel == "flashcore":
            outs.append(flash_attn_func(piece, whole_k[:, seen], whole_v[:, seen], causal=causal).transpose(1, 2))
            continue
        tensors = [x.transpose(1, 2) for x in (piece, whole_k[:, seen], whole_v[:, seen])]
        options = {"attn_mask": causal_lower_right(each, tensors[1].shape[2])} if causal else {}
        outs.append(functional.scaled_dot_product_attention(*tensors, enable_gqa=q.shape[1] != k.shape[1], **options))
    out = torch.cat(outs, 2)
    return (out, *(torch.autograd.grad(out, (q, k, v), dout) if dout is not None else ()))


def by_heads(mesh, q, k, v, dout, causal, placed):
    """The same for a process's part of the tokens, split by heads in between, or of the heads."""
    heads = [Shard(2)]
    split = lambda x: DTensor.from_local(x.transpose(1, 2), mesh, placed, run_check=False).redistribute(mesh, heads)
    out = flash_attn_func(split(q), split(k), split(v), causal=causal)
    out = out.redistribute(mesh, placed).to_local().transpose(1, 2)
    return (out, *(torch.autograd.grad(out, (q, k, v), dout) if dout is not None else ()))


def milliseconds(function, rounds, device):
    """Those of each round, after two that are not counted; the slowest process decides."""
    times = []
    for _ in range(rounds + 2):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    slowest = torch.tensor(times[2:], device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def measure(options, mesh, device):
    """Compares and times all devices and one; a row."""
    causal, rank = not options.full, mesh.get_local_rank()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(0)
    heads = (options.heads, options.kv_heads, options.kv_heads, options.heads)
    shapes = [(1, count, options.seq, options.head_dim) for count in heads]
    whole = [torch.randn(shape, device=device, dtype=dtype, generator=generator) for shape in shapes]

    def given(tensors):
        q, k, v, dout = (x.clone() for x in tensors)
        return *(x.requires_grad_(options.backward) for x in (q, k, v)), dout if options.backward else None, causal

    with contextlib.ExitStack() as stack:
        if options.kernel == "flashcore":
            stack.enter_context(flashcore_attn.torch.activated(strict=True))
            stack.enter_context(sdpa_kernel(SDPBackend.FLASH_ATTENTION))  # what FlashCore replaces
        alone = given(whole)
        want = [x.detach() for x in attention(*alone)]
        of_one = milliseconds(lambda: attention(*alone), options.rounds, device)
        if options.method in ("heads", "tensor"):
            placed = [Shard(1 if options.method == "heads" else 2)]  # of [batch, seq, heads, head_dim]
            of_rank = lambda x: x.chunk(mesh.size(), 2 if options.method == "heads" else 1)[rank]
            part, want = given(map(of_rank, whole)), map(of_rank, want)
            found = [x.detach() for x in by_heads(mesh, *part, placed)]
            of_all = milliseconds(lambda: by_heads(mesh, *part, placed), options.rounds, device)
        elif options.method == "keys":
            # As layers make them: in memory [batch, seq, heads, head_dim].
            take = lambda x: torch.cat([x.chunk(2 * mesh.size(), 2)[n] for n in pieces(mesh, rank)], 2)
            in_memory = [take(x).transpose(1, 2).contiguous().transpose(1, 2) for x in whole]
            part, want = given(in_memory), map(take, want)
            found = [x.detach() for x in by_keys(mesh, *part, options.kernel)]
            of_all = milliseconds(lambda: by_keys(mesh, *part, options.kernel), options.rounds, device)
        else:
            set_rotate_method(options.method)
            _cp_options.enable_load_balance = causal  # a process has two pieces, one from the front and one from the end
            with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 4, no_restore_buffers=set(whole)):
                part = given(whole)
                found = [x.detach() for x in attention(*part)]
                of_all = milliseconds(lambda: attention(*part), options.rounds, device)
                found = context_parallel_unshard(mesh, found, [2] * len(found))
    errors = [((x - y).abs().max() / y.abs().max()).item() for x, y in zip(found, want)]
    return {
        **vars(options),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "devices": mesh.size(),
        "ms_of_one": statistics.median(of_one),
        "ms": statistics.median(of_all),
        "speedup": statistics.median(of_one) / statistics.median(of_all),
        "rounds_ms_of_one": of_one,
        "rounds_ms": of_all,
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
    flashcore_attn.distributed.register()
    return init_device_mesh(device.type, (dist.get_world_size(),)), device


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, help="as many as heads unless given")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--method", choices=["allgather", "alltoall", "keys", "heads", "tensor"], default="allgather")
    parser.add_argument("--full", action="store_true", help="without a causal mask")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--kernel", choices=["flashcore", "torch"], default="flashcore")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.kv_heads = options.kv_heads or options.heads
    if options.kernel == "torch" and options.method in ("heads", "tensor"):
        parser.error(f"--kernel torch has no method {options.method}: give allgather, alltoall or keys")
    mesh, device = start()
    if options.method == "keys" and options.seq % (2 * mesh.size()) != 0:
        parser.error(f"--seq {options.seq}: method keys needs a multiple of twice the {mesh.size()} processes")
    row = measure(options, mesh, device)
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()
    return int(not row["ok"])


if __name__ == "__main__":
    sys.exit(main())
