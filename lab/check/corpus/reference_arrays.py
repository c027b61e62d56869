"""What kernels of this folder compute, in float64: a function of a kernel's name takes the inputs by their names and
returns the checked outputs in their order. Reductions, scans, products, norms, histograms, attention."""

import numpy as np

F = np.float32  # where the result of a comparison, or of a rounding, depends on float32
MASK = 0xFFFFFFFF


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def matmul(A, B, m, k, n):
    return A.reshape(m, k) @ B.reshape(k, n)


def matmul_t(A, B, m, k, n):
    return A.reshape(m, k) @ B.reshape(n, k).T


def attention(Q, K, V, scale, dim):
    return softmax(Q.reshape(-1, dim) @ K.reshape(-1, dim).T * scale) @ V.reshape(-1, dim)


# Reductions


def reduce_shared_tree(x, block):
    return np.array([part.sum() for part in np.split(x, range(2 * block[0], len(x), 2 * block[0]))])


def reduce_warp_shuffle(x, cols):
    return x.reshape(-1, cols).sum(1)


def reduce_last_block(x):
    return x.sum()


def reduce_atomic(a, b):
    return a @ b


def reduce_cg(x, block):
    rows = x.reshape(-1, block[0])
    return rows.sum(1), rows.max(1)


def reduce_f64_kahan(x):
    return x.sum()


def reduce_redux(x):
    w = x.reshape(-1, 32)
    last = np.bitwise_xor.reduce(w, axis=1) | (w > 0xFFFFF000).any(1)
    return np.stack([w.min(1), w.max(1), (w & 0xFFFF).sum(1), last], 1)


def argmax_packed(x):
    bits = x.astype(F).view(np.uint32).astype(np.int64)
    keys = np.where(bits >> 31, ~bits & MASK, bits | 0x80000000)
    at = int(np.argmax(keys))
    return np.array([int(keys[at]) << 32 | (MASK - at)], dtype=np.uint64)


# Scans


def scan_hillis_steele(x, block):
    return x.reshape(-1, block[0]).cumsum(1)


def scan_blelloch(x, n):
    rows = x.reshape(-1, n)
    return rows.cumsum(1) - rows, rows.sum(1)


def scan_warp(x, block):
    return np.concatenate([part.cumsum() for part in np.split(x, range(block[0], len(x), block[0]))])


def scan_lookback(x):
    return x.cumsum()


def scan_segmented(x, heads):
    out = x.copy()
    for i in range(1, len(x)):
        if i % 32 and not heads[i]:
            out[i] += out[i - 1]
    return out


# Transposes


def transpose_padded(x, width, height):
    return x.reshape(height, width).T


def transpose_swizzled(x, n):
    return x.reshape(n, n).T


def transpose_shuffle(x):
    return x.reshape(-1, 8, 8).transpose(0, 2, 1)


# Products


def gemm_naive(A, B, C, M, N, K, alpha, beta):
    return alpha * matmul(A, B, M, K, N) + beta * C.reshape(M, N)


def gemm_tiled(A, B, M, N, K):
    return matmul(A, B, M, K, N)


def gemm_register_blocked(A, B, N, K):
    return matmul(A, B, -1, K, N)


gemm_double_buffered = gemm_float4 = gemm_wmma_bf16 = gemm_mma_tf32 = gemm_mma_f64 = gemm_register_blocked
cp_async_three_stage = gemm_register_blocked


def gemm_wmma_f16(A, B, M, N, K):
    return matmul_t(A, B, M, K, N) / 2


def gemm_wmma_tf32(A, B, C, N, K):
    return C.reshape(-1, N) + matmul(A, B, -1, K, N)


def gemm_wmma_s8(A, B, N, K, scale):
    a = A.reshape(-1, K // 16, 16, 16).transpose(0, 2, 1, 3)
    b = B.reshape(-1, K // 16, 16, 16).transpose(0, 2, 1, 3)
    return matmul_t(a, b, -1, K, N) * scale


def gemm_mma_f16(A, B, K):
    return matmul(A, B, -1, K, 16)


def gemm_mma_bf16(A, B, N, K):
    return matmul_t(A, B, -1, K, N)


cp_async_four_stage = gemm_mma_bf16


def gemm_mma_s8(A, B, N, words, row_scale):
    return np.clip(np.rint(matmul_t(A, B, -1, words * 4, N) * row_scale[:, None]), -128, 127)


def gemm_mma_e4m3(A, B, N, K, scale_a, scale_b):
    return matmul_t(A, B, -1, K, N) * scale_a * scale_b


def gemv_dp4a(W, x, rows):
    return W.reshape(rows, -1) @ x


# Normalisation and loss


def softmax_two_pass(x, cols):
    return softmax(x.reshape(-1, cols))


softmax_online = softmax_two_pass


def softmax_registers(scores, lengths, scale):
    s = scores.reshape(-1, 128) * scale
    return softmax(np.where(np.arange(128) < lengths[:, None], s, -np.inf))


def layer_norm(x, gamma, beta, eps):
    rows = x.reshape(-1, len(gamma))
    mean, rstd = rows.mean(1), 1 / np.sqrt(rows.var(1) + eps)
    return (rows - mean[:, None]) * rstd[:, None] * gamma + beta, mean, rstd


def layer_norm_welford(x, cols):
    rows = x.reshape(-1, cols)
    return np.stack([rows.mean(1), rows.var(1)], 1)


def rms_norm(residual, x, weight, cols, eps):
    v = (residual + x).reshape(-1, cols)
    return v / np.sqrt((v * v).mean(1, keepdims=True) + eps) * weight, v


def cross_entropy(x, labels, classes):
    rows = np.log(softmax(x.reshape(-1, classes)))
    return np.where(labels < 0, 0, -rows[np.arange(len(labels)), labels])


# Histograms


def histogram_shared(data):
    return np.bincount(data, minlength=256)


def histogram_global(x, lo, width, num_bins):
    bins = np.floor((x.astype(F) - F(lo)) / F(width)).astype(np.int64)
    return np.bincount(np.clip(bins, 0, num_bins - 1), minlength=num_bins)


def histogram_privatised(data):
    return np.bincount(data // 4, minlength=64)


# Attention


def attention_scalar(Q, K, V, seq, scale):
    q, k, v = (t.reshape(-1, seq, 16) for t in (Q, K, V))
    s = np.where(np.tri(seq, dtype=bool), q @ k.transpose(0, 2, 1) * scale, -np.inf)
    return softmax(s) @ v


def attention_flash_tiled(Q, K, V, scale):
    return attention(Q, K, V, scale, 32)


attention_wmma = attention_flash_tiled


def attention_mma(Q, K, V, scale):
    return attention(Q, K, V, scale, 16)


def attention_paged_decode(q, k_cache, v_cache, block_table, lengths, max_pages, heads, scale):
    out = np.empty((len(lengths), heads, 32))
    for s, length in enumerate(lengths):
        tokens = np.arange(length)
        slots = block_table[s * max_pages + tokens // 8] * 8 + tokens % 8
        for h in range(heads):
            k, v = (c.reshape(-1, heads, 32)[slots, h] for c in (k_cache, v_cache))
            out[s, h] = attention(q.reshape(-1, heads, 32)[s, h], k, v, scale, 32)
    return out
