"""Attention in Triton: fp16 or bf16, head_dim 16 to 128 (a power of 2), any strides, grouped heads, causal or not."""

import flashcore_attn
import torch
import triton
import triton.language as tl

ROWS, KEYS = 64, 64


@flashcore_attn.declared(
    dtype=["fp16"],
    args=["q", "k", "v", "out", "scale * 1.4426950408889634",
          "q_batch_stride", "q_seq_stride", "q_head_stride", "k_batch_stride", "k_seq_stride", "k_head_stride",
          "v_batch_stride", "v_seq_stride", "v_head_stride", "out_batch_stride", "out_seq_stride", "out_head_stride",
          "heads", "group", "seq_q", "seq_kv"],
    grid=["ceil(seq_q / M)", "batch * heads"],
    requires=["head_dim == 64", "head_dim_v == 64", "causal == 0"],
    parameters={"M": [32, 64, 128], "N": [32, 64], "D": [64], "CAUSAL": [0], "num_warps": [4, 8], "num_stages": [2, 3]},
)
@triton.jit
def attend(Q, K, V, O, scale, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, o_b, o_s, o_h, heads, group, seq_q, seq_kv,
           CAUSAL: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    first, batch, head = tl.program_id(0) * M, tl.program_id(1) // heads, tl.program_id(1) % heads
    rows, columns, keys = first + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    q = tl.load(Q + batch * q_b + head * q_h + rows[:, None] * q_s + columns, mask=rows[:, None] < seq_q, other=0.0)
    k_at = K + batch * k_b + (head // group) * k_h + columns
    v_at = V + batch * v_b + (head // group) * v_h + columns
    top = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, D], tl.float32)
    end = tl.minimum(seq_kv, first + M + seq_kv - seq_q) if CAUSAL else seq_kv
    for begin in range(0, end, N):
        at = begin + keys
        there = at[:, None] < seq_kv
        k = tl.load(k_at + at[:, None] * k_s, mask=there, other=0.0)
        v = tl.load(v_at + at[:, None] * v_s, mask=there, other=0.0)
        visible = at[None, :] < seq_kv
        if CAUSAL:
            visible = visible & (at[None, :] <= rows[:, None] + seq_kv - seq_q)
        scores = tl.where(visible, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        rescale = tl.exp2(top - higher)
        total = total * rescale + tl.sum(weights, 1)
        sums = sums * rescale[:, None] + tl.dot(weights.to(v.dtype), v)
        top = higher
    sums = tl.where(total[:, None] > 0, sums / total[:, None], 0.0)
    o_at = O + batch * o_b + head * o_h + rows[:, None] * o_s + columns
    tl.store(o_at, sums.to(O.dtype.element_ty), mask=rows[:, None] < seq_q)


def attention(q, k, v, out, causal=False, softmax_scale=None):
    """Tensors are [batch, seq, heads, head_dim]; writes out."""
    (batch, seq_q, heads, head_dim), (_, seq_kv, kv_heads, _) = q.shape, k.shape
    if q.dtype not in (torch.float16, torch.bfloat16) or head_dim not in (16, 32, 64, 128) or v.shape[3] != head_dim:
        raise ValueError("it serves fp16 and bf16 with a head_dim of 16, 32, 64 or 128")
    strides = [stride for x in (q, k, v, out) for stride in x.stride()[:3]]
    scale = (softmax_scale or head_dim**-0.5) * 1.4426950408889634  # log2(e): the kernel computes 2^x
    attend[(triton.cdiv(seq_q, ROWS), batch * heads)](
        q, k, v, out, scale, *strides, heads, heads // kv_heads, seq_q, seq_kv,
        CAUSAL=causal, D=head_dim, M=ROWS, N=KEYS, num_warps=4)
