"""One of two processes of `test_distributed.py`, on CPU tensors and gloo: `distributed_rank.py RANK STORE CASE`.

It prints ``passed``, or how the exchange of data failed.
"""

import argparse
import datetime
import importlib.util
import os
import pathlib
import signal
import sys
import time

import flashcore_attn.distributed
import flashcore_attn.torch
import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._attention as engine
from flashcore_attn import flash_attn_interface as fa
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

TOKENS, HEADS, BATCH = [Shard(1)], [Shard(2)], [Shard(0)]
POSITIONS = [2] * 4  # the dimension of tokens in ``[batch, heads, seq, head_dim]``


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(4)]


def differentiate(function, q, k, v, dout):
    for x in (q, k, v):
        x.requires_grad_()
    out = function(q, k, v)
    return [x.detach() for x in (out, *torch.autograd.grad(out, (q, k, v), dout))]


def equal(found, want):
    for one, other in zip(found, want):
        torch.testing.assert_close(one.full_tensor() if isinstance(one, DTensor) else one, other)


def ring(mesh):
    """Output and gradients of PyTorch's context parallelism are those of one process."""
    for method in ("allgather", "alltoall"):
        for causal in (True, False):
            attention = lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
            want = differentiate(attention, *draw(2, 4, 32, 16))
            engine.set_rotate_method(method)
            engine._cp_options.enable_load_balance = causal
            buffers, calls = draw(2, 4, 32, 16), []
            of = flashcore_attn.torch
            forward, direct = of.forward, of._direct
            of.forward = lambda *args, **options: calls.append(args[0][0].shape) or forward(*args, **options)
            of._direct = lambda *args: (results := direct(*args)) and (calls.append(args[0][0].shape) or results)
            with flashcore_attn.torch.activated(strict=True):
                with context_parallel(mesh, buffers=buffers, buffer_seq_dims=POSITIONS):
                    found = differentiate(attention, *(x.clone() for x in buffers))
                    assert found[0].shape == (2, 4, 16, 16), "each process has half of the tokens"
                    equal(engine.context_parallel_unshard(mesh, found, POSITIONS), want)
            of.forward, of._direct = forward, direct
            assert len(calls) == 2, f"a ring of two calls of FlashCore, not {calls}"


def ring_of_cuda(mesh):
    """The same through the operators that PyTorch calls on CUDA devices, here with CPU tensors."""
    shape = (2, 4, 32, 16)
    want = differentiate(lambda *x: functional.scaled_dot_product_attention(*x, is_causal=True), *draw(*shape))
    with flashcore_attn.torch.activated(strict=True):
        own, library = flashcore_attn.torch._active, torch.library.Library("aten", "IMPL")
        library.impl("_scaled_dot_product_flash_attention", own.cuda, "CPU", with_keyset=True)
        library.impl("_scaled_dot_product_flash_attention_backward", own.cuda_backward, "CPU", with_keyset=True)
        buffers = draw(*shape)
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=POSITIONS):
            parts = [DTensor.from_local(x, mesh, [Shard(2)]) for x in buffers]
            call = torch.ops.aten._scaled_dot_product_flash_attention
            found = differentiate(lambda q, k, v: call(q, k, v, 0.0, True)[0], *parts)
            found = [x.to_local() for x in found]
            equal(engine.context_parallel_unshard(mesh, found, POSITIONS), want)
        library._destroy()


def split(mesh):
    """FlashAttention's functions and SDPA on tensors that are split by heads, batches or tokens."""
    causal = lambda q, k, v: fa.flash_attn_func(q, k, v, causal=True)
    sdpa = lambda q, k, v: functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    for function, kv_heads in ((causal, 4), (causal, 2), (causal, 1), (causal, 3), (sdpa, 4)):
        tensors = [
            x[:, :, :heads] for x, heads in zip(draw(2, 24, 12, 16), (12 if kv_heads == 3 else 4, *[kv_heads] * 2, 12))
        ]
        tensors[3] = draw(*tensors[0].shape, seed=1)[0]
        if function is sdpa:
            tensors[3] = tensors[3].transpose(1, 2).contiguous()
        want = differentiate(function, *(x.clone() for x in tensors))
        for placed in (HEADS, BATCH, TOKENS, [Replicate()]):
            of_kv = [Replicate()] if placed == HEADS and kv_heads == 1 else placed
            of_dout = {str(HEADS): [Shard(1)], str(TOKENS): [Shard(2)]} if function is sdpa else {}
            placements = (placed, of_kv, of_kv, of_dout.get(str(placed), placed))
            found = differentiate(function, *(distribute_tensor(x, mesh, p) for x, p in zip(tensors, placements)))
            equal(found, want)
            whole_groups = kv_heads in (1, 2, 4)
            if placed == BATCH or (placed == HEADS and whole_groups):
                assert found[0].placements[0].is_shard(), "nothing is gathered"
            if placed == HEADS and not whole_groups:  # 12 heads on 3: a half of each would pair wrong heads
                assert not found[0].placements[0].is_shard(2)


def packed_and_cached(mesh):
    lengths = torch.tensor([0, 10, 24], dtype=torch.int32)
    q, k, v, dout = (x[0] for x in draw(1, 24, 4, 16))
    every = lambda x: distribute_tensor(x, mesh, [Replicate()])
    by_heads = lambda x, dim: distribute_tensor(x, mesh, [Shard(dim)])
    packed = lambda q, k, v, at: fa.flash_attn_varlen_func(q, k, v, at, at, 14, 14, causal=True)
    want = differentiate(lambda *x: packed(*x, lengths), *(x.clone() for x in (q, k, v, dout)))
    found = differentiate(lambda *x: packed(*x, every(lengths)), *(by_heads(x, 1) for x in (q, k, v, dout)))
    equal(found, want)
    assert found[0].placements == (Shard(1),)

    q, k, v, _ = draw(2, 24, 4, 16)
    used, q = torch.tensor([5, 24], dtype=torch.int32), q[:, :2]
    cached = lambda q, k, v, used: fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True)
    found = cached(*(by_heads(x, 2) for x in (q, k, v)), every(used))
    equal([found], [cached(q, k, v, used)])
    assert found.placements == (Shard(2),)


def example(mesh):
    """Each method of the example gives the output and gradients of one process, or says that it does not."""
    path = pathlib.Path(__file__).parent.parent / "examples" / "context_parallel.py"
    of_file = importlib.util.spec_from_file_location("example", path)
    script = importlib.util.module_from_spec(of_file)
    of_file.loader.exec_module(script)
    sizes = {"seq": 32, "heads": 4, "head_dim": 16, "rounds": 1, "backward": True}
    run = lambda **rest: script.measure(argparse.Namespace(**sizes, **rest), mesh, torch.device("cpu"))["ok"]
    for kernel, methods in {"flashcore": ("allgather", "keys", "heads", "tensor"), "torch": ("keys",)}.items():
        for method in methods:
            for kv_heads, full in ((4, False), (2, True)):
                options = {"kernel": kernel, "method": method, "kv_heads": kv_heads, "full": full}
                assert run(**options), options
    exchange = script.Gathered.exchange
    script.Gathered.exchange = lambda mesh, given, taken: [x.zero_() for x in taken(1 - mesh.get_local_rank())]
    assert not run(kernel="flashcore", method="keys", kv_heads=4, full=False), "nothing was exchanged"
    script.Gathered.exchange = exchange


def lost(mesh, how):
    """The other process is lost between two calls of attention: an error, and no hang."""
    buffers = draw(2, 4, 32, 16)
    with flashcore_attn.torch.activated(strict=True):
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=POSITIONS):
            functional.scaled_dot_product_attention(*buffers[:3], is_causal=True)
            dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), mesh.get_group())
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                time.sleep(3600)
            try:
                functional.scaled_dot_product_attention(*buffers[:3], is_causal=True).sum().item()
            except RuntimeError as error:
                print("failed:", error, flush=True)
                os._exit(0)  # nothing is left to close


def main():
    rank, store, case = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    flashcore_attn.distributed.register()
    if case in ("killed", "stopped"):
        lost(mesh, case)
        return
    for check in (ring, ring_of_cuda, split, packed_and_cached, example):
        check(mesh)
    dist.barrier()
    print("passed", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
