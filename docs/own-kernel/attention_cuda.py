"""Attention in CUDA C++, compiled by PyTorch when it is first used: head_dim up to 128, fp16, any lengths.

A warp computes one row. Each lane keeps a part of Q's row and of the output in registers; the scores of a key are summed
over the warp, and the softmax is online. It is short, not fast.
"""

import torch
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_fp16.h>
#include <torch/extension.h>

constexpr int WARPS = 4;

template <int PER_LANE>
__global__ void attend(const half* q, const half* k, const half* v, half* out, int heads, int group, int seq_q,
                       int seq_kv, bool causal, float scale) {
    const int lane = threadIdx.x % 32, row = blockIdx.x * WARPS + threadIdx.x / 32;
    const int head = blockIdx.y, batch = blockIdx.z, kv_heads = heads / group;
    if (row >= seq_q) return;
    constexpr int D = 32 * PER_LANE;
    const size_t at = ((size_t(batch) * seq_q + row) * heads + head) * D;
    float query[PER_LANE], sums[PER_LANE] = {}, top = -1e30f, total = 0.f;
    for (int i = 0; i < PER_LANE; ++i) query[i] = __half2float(q[at + lane + 32 * i]) * scale * 1.44269504f;
    const int visible = causal ? min(seq_kv, max(0, row + seq_kv - seq_q + 1)) : seq_kv;
    for (int key = 0; key < visible; ++key) {
        const size_t of_key = ((size_t(batch) * seq_kv + key) * kv_heads + head / group) * D;
        float score = 0.f;
        for (int i = 0; i < PER_LANE; ++i) score += query[i] * __half2float(k[of_key + lane + 32 * i]);
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
        const float higher = fmaxf(top, score), rescale = exp2f(top - higher), weight = exp2f(score - higher);
        top = higher;
        total = total * rescale + weight;
        for (int i = 0; i < PER_LANE; ++i)
            sums[i] = sums[i] * rescale + weight * __half2float(v[of_key + lane + 32 * i]);
    }
    for (int i = 0; i < PER_LANE; ++i) out[at + lane + 32 * i] = __float2half(total > 0.f ? sums[i] / total : 0.f);
}

void attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor out, bool causal, double scale) {
    const int seq_q = q.size(1), seq_kv = k.size(1), heads = q.size(2), group = heads / k.size(2);
    const dim3 grid((seq_q + WARPS - 1) / WARPS, heads, q.size(0));
    const auto half_of = [](torch::Tensor& x) { return reinterpret_cast<half*>(x.data_ptr()); };
    auto kernel = q.size(3) == 32 ? attend<1> : q.size(3) == 64 ? attend<2> : attend<4>;
    // PyTorch's current stream: the work is timed and checked in that one.
    kernel<<<grid, 32 * WARPS, 0, at::cuda::getCurrentCUDAStream()>>>(
        half_of(q), half_of(k), half_of(v), half_of(out), heads, group, seq_q, seq_kv, causal, scale);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
DECLARATION = "void attention(torch::Tensor, torch::Tensor, torch::Tensor, torch::Tensor, bool, double);"
compiled = load_inline("own_attention", DECLARATION, CUDA, functions=["attention"], extra_cuda_cflags=["-O3"])


def attention(q, k, v, out, causal=False, softmax_scale=None):
    """Tensors are [batch, seq, heads, head_dim]; writes out."""
    if q.dtype != torch.float16 or q.shape[3] not in (32, 64, 128) or v.shape[3] != q.shape[3]:
        raise ValueError("it serves fp16 with a head_dim of 32, 64 or 128")
    if not all(x.is_contiguous() for x in (q, k, v, out)):
        raise ValueError("it serves dense [batch, seq, heads, head_dim]")
    compiled.attention(q, k, v, out, causal, softmax_scale or q.shape[3] ** -0.5)
