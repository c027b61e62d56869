#!/usr/bin/env python3
"""Launches Triton kernels of tritonbench, for `scripts/check_triton.py --cases`.

usage: scripts/check_triton.py --cases FOLDER scripts/tritonbench_launches.py

Attention in tiles of 128 by 128 and of 128 by 64, its gradients, and a matrix product in each of its tilings. Needs
Triton 3.6.0, since later ones have no block pointers, and a clone of pytorch-labs/tritonbench at 0efdc53 on PYTHONPATH.
"""

import importlib
import pathlib
import sys
import types

import torch
import tritonbench
from tritonbench.kernels import triton_fused_attention as fused


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype, device="cuda")


tuner = fused._attn_fwd_base_opt
configs = {(one.kwargs["BLOCK_M"], one.kwargs["BLOCK_N"], one.num_warps, one.num_stages): one for one in tuner.configs}
shapes = [(2, 16, 4096), (4, 32, 2048), (1, 16, 16384), (8, 16, 1024), (1, 32, 8192), (2, 8, 8192), (1, 8, 16384)]
shapes = [(*shape, 128) for shape in shapes]
for tile, of in (((128, 128, 8, 3), shapes), ((128, 64, 4, 3), [*shapes[:1], (4, 16, 4096, 64)])):
    tuner.configs = [configs[tile]]
    for batch, heads, length, columns in of:
        for causal in (False, True):
            q, k, v = (zeros(batch, heads, length, columns) for _ in range(3))
            fused.attention_opt(q, k, v, causal, columns**-0.5, "base_opt")
for columns in (64, 128):
    q, k, v, o, do = (zeros(2, 16, 4096, columns) for _ in range(5))
    saved = (q, k, v, o, zeros(2, 16, 4096, dtype=torch.float32))
    held = types.SimpleNamespace(causal=True, HEAD_DIM=columns, sm_scale=columns**-0.5, saved_tensors=saved)
    fused._attention_opt.backward(held, do)

# Without the benchmarks next to it, which need more packages.
for part in ("operators", "operators.gemm"):
    module = sys.modules[f"tritonbench.{part}"] = types.ModuleType(part)
    module.__path__ = [str(pathlib.Path(tritonbench.__path__[0]) / part.replace(".", "/"))]
gemm = importlib.import_module("tritonbench.operators.gemm.triton_matmul")
for config in list(gemm.matmul_kernel.configs):
    gemm.matmul_kernel.configs = [config]
    gemm.matmul(*(zeros(4096, 4096, dtype=torch.float16) for _ in range(2)))
