#!/usr/bin/env python3
"""Launches Triton kernels of Liger Kernel and Flash Linear Attention, for `scripts/check_triton.py --cases`.

usage: scripts/check_triton.py --cases FOLDER scripts/triton_launches.py

Of three sizes what is bound by memory, ten matrix products, attention, and linear attention in chunks. Needs the
packages liger-kernel 0.8.5, fla-core and flash-linear-attention 0.6.0, and einops, without their dependencies.
"""

import importlib

import torch
from fla.ops.attn.parallel import parallel_attn_fwd
from fla.ops.common.chunk_h import chunk_fwd_h
from fla.ops.common.chunk_o import chunk_fwd_o
from liger_kernel.ops.dyt import liger_dyt_fwd
from liger_kernel.ops.geglu import geglu_forward
from liger_kernel.ops.kl_div import kldiv_forward_triton
from liger_kernel.ops.layer_norm import layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_forward
from liger_kernel.ops.softmax import _softmax_forward
from liger_kernel.ops.swiglu import swiglu_forward


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float16, device="cuda")


for rows, columns in ((8192, 4096), (4096, 2048), (16384, 1024)):
    x, weight = zeros(rows, columns), zeros(columns)
    rms_norm_forward(x, weight, 1e-6, 0.0, "llama", None)
    layer_norm_forward(x, weight, zeros(columns), 1e-6)
    swiglu_forward(x, zeros(rows, columns))
    geglu_forward(x, zeros(rows, columns))
    _softmax_forward(x)
    liger_dyt_fwd(x, zeros(1), weight, zeros(columns))
    kldiv_forward_triton(x, zeros(rows, columns), False, "batchmean", 1e-10)

# `fla.ops.utils` has a function of the module's name.
products = importlib.import_module("fla.ops.utils.matmul")
tuner = products.matmul_kernel.fn
for number, config in enumerate(list(tuner.configs)[:6]):
    tuner.configs = [config]
    for size, depth in ((4096, 4096), (2048, 8192)):
        if number < 4 or size == 2048:
            products.matmul(zeros(size, depth), zeros(depth, size))

for batch, length, heads, columns in ((4, 4096, 16, 64), (4, 4096, 16, 128), (2, 2048, 16, 64)):
    q, k, v = (zeros(batch, length, heads, columns) for _ in range(3))
    parallel_attn_fwd(q, k, v, None, None, columns**-0.5)

lengths = {"cu_seqlens": None, "chunk_size": 64}
for batch, length, heads, columns in ((8, 4096, 16, 128), (4, 4096, 16, 64)):
    q, k, v = (zeros(batch, length, heads, columns) for _ in range(3))
    h, _ = chunk_fwd_h(k=k, v=v, g=None, gk=None, gv=None, h0=None, output_final_state=False, **lengths)
    chunk_fwd_o(q=q, k=k, v=v, h=h, g=None, scale=columns**-0.5, **lengths)
