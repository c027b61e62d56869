#!/usr/bin/env python3
"""Launches more of Triton's kernels of others, for `scripts/check_triton.py --cases`.

usage: scripts/check_triton.py --cases FOLDER scripts/more_triton_launches.py [PART ...]

PART: attention, attention_int8, layers, recurrences.

Attention and its gradients, gradients of layers, losses, norms, and recurrences. Needs the packages liger-kernel 0.8.5,
fla-core and flash-linear-attention 0.6.0, sageattention 1.0.6, and einops, without their dependencies.
"""

import importlib
import sys

import torch
from fla.ops.attn.decoding import attn_decoding_one_step
from fla.ops.common.fused_recurrent import fused_recurrent_fwd
from fla.ops.delta_rule.fused_recurrent import fused_recurrent_delta_rule_fwd
from fla.ops.hgrn.fused_recurrent import fused_recurrent_hgrn_fwd
from fla.ops.utils.cumsum import chunk_global_cumsum, chunk_local_cumsum
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
from liger_kernel.ops.geglu import geglu_backward
from liger_kernel.ops.group_norm import group_norm_forward
from liger_kernel.ops.jsd import jsd_forward
from liger_kernel.ops.rope import rope_forward
from liger_kernel.ops.softmax import _softmax_backward
from liger_kernel.ops.swiglu import swiglu_backward
from liger_kernel.ops.tvd import tv_distance_forward_triton
from sageattention import attn_qk_int8_per_block, attn_qk_int8_per_block_causal
from sageattention.quant_per_block import per_block_int8


def zeros(*shape, dtype=torch.float16):
    return torch.zeros(*shape, dtype=dtype, device="cuda")


# As on a Hopper, whatever this machine has.
parallel = importlib.import_module("fla.ops.attn.parallel")
parallel.check_shared_mem = lambda *of: True


def attention():
    for dtype in (torch.float16, torch.bfloat16):
        for batch, length, heads, columns in ((2, 4096, 16, 128), (2, 8192, 16, 64), (4, 2048, 32, 128)):
            q, k, v, do = (zeros(batch, length, heads, columns, dtype=dtype) for _ in range(4))
            o, lse = parallel.parallel_attn_fwd(q, k, v, None, None, columns**-0.5)
            if dtype == torch.float16 and length < 8192:
                parallel.parallel_attn_bwd(q, k, v, o, None, lse, do, scale=columns**-0.5)


def attention_int8():
    for length, columns in ((4096, 64), (4096, 128), (16384, 128)):
        q, k, v = (zeros(2, 16, length, columns) for _ in range(3))
        held = per_block_int8(q, k)
        whole = [zeros(2, 16, length, columns, dtype=torch.int8) for _ in range(2)]
        scales = [held[1], held[3]]
        attn_qk_int8_per_block.forward(*whole, v, *scales)
        attn_qk_int8_per_block_causal.forward(*whole, v, *scales)


def layers():
    for rows, columns in ((8192, 8192), (16384, 2048)):
        x, weight = zeros(rows, columns), zeros(columns)
        fused_add_rms_norm_forward(x, zeros(rows, columns), weight, 1e-6, 0.0, "llama")
        swiglu_backward(x, zeros(rows, columns), zeros(rows, columns))
        geglu_backward(x, zeros(rows, columns), zeros(rows, columns))
        _softmax_backward(x, zeros(rows, columns), columns, 8, False)
        tv_distance_forward_triton(x, zeros(rows, columns), None, "batchmean", -100, False)
        jsd_forward(x, zeros(rows, columns), None, 0.5, -100, False)
    group_norm_forward(zeros(16, 512, 4096), 512, 32, zeros(512), zeros(512), 1e-5)
    angles = zeros(1, 8192, 128)
    rope_forward(zeros(2, 32, 8192, 128), zeros(2, 8, 8192, 128), angles, angles)


def recurrences():
    for batch, length, heads, columns in ((1, 1024, 8, 64), (2, 2048, 16, 128)):
        q, k, v = (zeros(batch, length, heads, columns) for _ in range(3))
        gates = zeros(batch, length, heads, columns, dtype=torch.float32)
        fused_recurrent_fwd(q, k, v, scale=1.0)
        fused_recurrent_fwd(q, k, v, gk=gates, scale=1.0)
        fused_recurrent_delta_rule_fwd(q, k, v, zeros(batch, length, heads), 1.0, None, False)
        fused_recurrent_hgrn_fwd(zeros(batch, length, heads * columns), zeros(batch, length, heads * columns))
        chunk_local_cumsum(gates, 64)
        chunk_global_cumsum(gates)
        chunk_global_cumsum(gates[..., 0].contiguous())
    for batch, length in ((4, 4096), (16, 1024)):
        starts = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device="cuda")
        k, v = (zeros(1, batch * length, 8, 128) for _ in range(2))
        attn_decoding_one_step(zeros(1, batch, 32, 128), k, v, cu_seqlens=starts)


for name in sys.argv[1:] or ("attention", "attention_int8", "layers", "recurrences"):
    globals()[name]()
