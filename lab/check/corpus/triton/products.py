"""Products of matrices."""

import numpy as np
import triton
import triton.language as tl
from cases import case, cdiv, f64, uniform, whole
from flashcore_attn import Uninit

M, N, K = 96, 80, 112


def tiles(config):
    return cdiv(M, config["BM"]) * cdiv(N, config["BN"])


@triton.jit
def matmul(
    a, b, c, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Blocks of GROUP rows of tiles are near each other, so that L2 has what they share."""
    tile, rows, columns = tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN)
    group = tile // (GROUP * columns)
    high = min(rows - group * GROUP, GROUP)
    row, column = group * GROUP + tile % (GROUP * columns) % high, tile % (GROUP * columns) // high
    at_m, at_n, at_k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    from_a = a + (at_m % m)[:, None] * stride_am + at_k[None, :] * stride_ak
    from_b = b + at_k[:, None] * stride_bk + (at_n % n)[None, :] * stride_bn
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, tl.cdiv(k, BK)):
        left = tl.load(from_a, at_k[None, :] < k - step * BK, 0.0)
        right = tl.load(from_b, at_k[:, None] < k - step * BK, 0.0)
        total = tl.dot(left, right, total)
        from_a += BK * stride_ak
        from_b += BK * stride_bk
    to = c + at_m[:, None] * stride_cm + at_n[None, :] * stride_cn
    tl.store(to, total.to(c.dtype.element_ty), (at_m < m)[:, None] & (at_n < n)[None, :])


a, b = uniform(1, M, K, dtype=np.float16), uniform(2, K, N, dtype=np.float16)
SIZES = [M, N, K, K, 1, N, 1, N, 1]
case(
    matmul, tiles, [a, b, Uninit((M, N), "float16"), *SIZES], {2: f64(a) @ f64(b)},
    [
        {"BM": 32, "BN": 32, "BK": 32, "GROUP": 2},
        {"BM": 64, "BN": 64, "BK": 64, "GROUP": 8, "num_stages": 4},
        {"BM": 64, "BN": 32, "BK": 16, "GROUP": 1, "num_warps": 8, "num_stages": 2},
    ], rtol=2e-3, atol=2e-3,
)  # fmt: skip


@triton.jit
def matmul_transposed(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """B is stored by columns; products of f32 in TF32."""
    at_m, at_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, k, BK):
        at_k = first + tl.arange(0, BK)
        left = tl.load(a + at_m[:, None] * k + at_k[None, :], (at_m < m)[:, None] & (at_k < k)[None, :], 0.0)
        right = tl.load(b + at_n[None, :] * k + at_k[:, None], (at_n < n)[None, :] & (at_k < k)[:, None], 0.0)
        total += tl.dot(left, right)
    tl.store(c + at_m[:, None] * n + at_n[None, :], total, (at_m < m)[:, None] & (at_n < n)[None, :])


a, b = uniform(3, M, K), uniform(4, N, K)
case(
    matmul_transposed, lambda c: (cdiv(M, c["BM"]), cdiv(N, c["BN"])), [a, b, Uninit((M, N)), M, N, K],
    {2: f64(a) @ f64(b).T}, [{"BM": 32, "BN": 32, "BK": 32}, {"BM": 64, "BN": 32, "BK": 32, "num_warps": 8}],
    rtol=5e-3, atol=2e-2,
)  # fmt: skip


@triton.jit
def matmul_split_k(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr):
    """Parts of K are summed by atomic operations."""
    at_m, at_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(tl.program_id(2) * BK, k, BK * SPLITS):
        at_k = first + tl.arange(0, BK)
        left = tl.load(a + at_m[:, None] * k + at_k[None, :], (at_m < m)[:, None] & (at_k < k)[None, :], 0.0)
        right = tl.load(b + at_k[:, None] * n + at_n[None, :], (at_k < k)[:, None] & (at_n < n)[None, :], 0.0)
        total = tl.dot(left, right, total)
    tl.atomic_add(c + at_m[:, None] * n + at_n[None, :], total, (at_m < m)[:, None] & (at_n < n)[None, :])


a, b = uniform(5, M, K, dtype=np.float16), uniform(6, K, N, dtype=np.float16)
case(
    matmul_split_k, lambda c: (cdiv(M, c["BM"]), cdiv(N, c["BN"]), c["SPLITS"]),
    [a, b, np.zeros((M, N), np.float32), M, N, K], {2: f64(a) @ f64(b)},
    [
        {"BM": 32, "BN": 64, "BK": 32, "SPLITS": 2},
        {"BM": 64, "BN": 32, "BK": 16, "SPLITS": 4, "num_warps": 8, "num_stages": 4},
    ], rtol=1e-4, atol=1e-4,
)  # fmt: skip


@triton.jit
def matmul_int8(a, b, scale_a, scale_b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    at_m, at_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.int32)
    for first in range(0, k, BK):
        at_k = first + tl.arange(0, BK)
        left = tl.load(a + at_m[:, None] * k + at_k[None, :], (at_m < m)[:, None] & (at_k < k)[None, :], 0)
        right = tl.load(b + at_k[:, None] * n + at_n[None, :], (at_k < k)[:, None] & (at_n < n)[None, :], 0)
        total = tl.dot(left, right, total)
    scales = tl.load(scale_a + at_m, at_m < m, 0.0)[:, None] * tl.load(scale_b + at_n, at_n < n, 0.0)[None, :]
    tl.store(c + at_m[:, None] * n + at_n[None, :], total * scales, (at_m < m)[:, None] & (at_n < n)[None, :])


a, b = whole(7, -128, 128, M, K, dtype=np.int8), whole(8, -128, 128, K, N, dtype=np.int8)
scale_a, scale_b = uniform(9, M), uniform(10, N)
case(
    matmul_int8, lambda c: (cdiv(M, c["BM"]), cdiv(N, c["BN"])), [a, b, scale_a, scale_b, Uninit((M, N)), M, N, K],
    {4: (f64(a) @ f64(b)) * f64(scale_a)[:, None] * f64(scale_b)},
    [{"BM": 32, "BN": 32, "BK": 64}, {"BM": 64, "BN": 64, "BK": 32, "num_warps": 8}],
)  # fmt: skip


@triton.jit
def matmul_int4(x, packed, scales, out, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A byte of `packed` has the weights of two rows of K, biased by 8; each column has a scale."""
    at_m, at_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, k, BK):
        at_k = first + tl.arange(0, BK)
        left = tl.load(x + at_m[:, None] * k + at_k[None, :], (at_m < m)[:, None] & (at_k < k)[None, :], 0.0)
        inside = (at_k < k)[:, None] & (at_n < n)[None, :]
        pair = tl.load(packed + (at_k // 2)[:, None] * n + at_n[None, :], inside, 0x88)
        weight = ((pair >> (at_k % 2 * 4)[:, None]) & 15).to(tl.float16) - 8
        total = tl.dot(left, weight, total)
    total *= tl.load(scales + at_n, at_n < n, 0.0)[None, :]
    tl.store(out + at_m[:, None] * n + at_n[None, :], total.to(tl.float16), (at_m < m)[:, None] & (at_n < n)[None, :])


x, packed, scales = uniform(11, M, K, dtype=np.float16), whole(12, 0, 256, K // 2, N, dtype=np.uint8), uniform(13, N)
weights = np.stack([packed & 15, packed >> 4], 1).reshape(K, N).astype(np.float64) - 8
case(
    matmul_int4, lambda c: (cdiv(M, c["BM"]), cdiv(N, c["BN"])),
    [x, packed, scales, Uninit((M, N), "float16"), M, N, K], {3: f64(x) @ weights * f64(scales)},
    [{"BM": 32, "BN": 32, "BK": 32}, {"BM": 32, "BN": 64, "BK": 16, "num_warps": 8}], rtol=2e-3, atol=5e-2,
)  # fmt: skip


@triton.jit
def matmul_persistent(
    a, b, bias, c, m, n, k, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Each program computes several tiles, adds the bias and cuts what is negative."""
    columns = tl.cdiv(n, BN)
    for tile in range(tl.program_id(0), tl.cdiv(m, BM) * columns, PROGRAMS):
        at_m, at_n = tile // columns * BM + tl.arange(0, BM), tile % columns * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for first in range(0, k, BK):
            at_k = first + tl.arange(0, BK)
            left = tl.load(a + at_m[:, None] * k + at_k[None, :], (at_m < m)[:, None] & (at_k < k)[None, :], 0.0)
            right = tl.load(b + at_k[:, None] * n + at_n[None, :], (at_k < k)[:, None] & (at_n < n)[None, :], 0.0)
            total = tl.dot(left, right, total)
        total = tl.maximum(total + tl.load(bias + at_n, at_n < n, 0.0)[None, :], 0.0)
        tl.store(c + at_m[:, None] * n + at_n[None, :], total.to(tl.float16), (at_m < m)[:, None] & (at_n < n)[None, :])


bias = uniform(14, N)
a, b = uniform(5, M, K, dtype=np.float16), uniform(6, K, N, dtype=np.float16)
case(
    matmul_persistent, 3, [a, b, bias, Uninit((M, N), "float16"), M, N, K],
    {3: np.maximum(f64(a) @ f64(b) + f64(bias), 0)},
    [
        {"PROGRAMS": 3, "BM": 32, "BN": 32, "BK": 32},
        {"PROGRAMS": 3, "BM": 64, "BN": 32, "BK": 16, "num_warps": 2, "num_stages": 4},
    ], rtol=2e-3, atol=2e-3,
)  # fmt: skip


@triton.jit
def grouped_matmul(x, weights, begins, out, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Rows from `begins[e]` to `begins[e + 1]` are multiplied by the weights of expert e."""
    expert, at_n = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)
    end = tl.load(begins + expert + 1)
    for first_row in range(tl.load(begins + expert), end, BM):
        at_m = first_row + tl.arange(0, BM)
        total = tl.zeros((BM, BN), tl.float32)
        for first in range(0, k, BK):
            at_k = first + tl.arange(0, BK)
            left = tl.load(x + at_m[:, None] * k + at_k[None, :], (at_m < end)[:, None] & (at_k < k)[None, :], 0.0)
            of_expert = weights + expert * k * n + at_k[:, None] * n + at_n[None, :]
            right = tl.load(of_expert, (at_k < k)[:, None] & (at_n < n)[None, :], 0.0)
            total = tl.dot(left, right, total)
        tl.store(out + at_m[:, None] * n + at_n[None, :], total, (at_m < end)[:, None] & (at_n < n)[None, :])


begins = np.array([0, 40, 40, 77], np.int32)
x, weights = uniform(15, 77, 64, dtype=np.float16), uniform(16, 3, 64, 48, dtype=np.float16)
each = [f64(x)[begins[e] : begins[e + 1]] @ f64(weights)[e] for e in range(3)]
case(
    grouped_matmul, lambda c: (3, cdiv(48, c["BN"])), [x, weights, begins, Uninit((77, 48)), 48, 64],
    {3: np.concatenate(each)}, [{"BM": 32, "BN": 16, "BK": 32}, {"BM": 16, "BN": 64, "BK": 64, "num_warps": 2}],
    rtol=1e-4, atol=1e-4,
)  # fmt: skip
