"""What kernels of this folder compute: as reference_arrays.py, for barriers, sorting, images, hashes, sparse and small
matrices, models and what shows the language."""

import numpy as np

from reference_arrays import MASK, F, softmax

# Asynchronous copies and barriers


def cp_async_two_stage(x, rows):
    p = np.pad(x.reshape(rows, -1), ((0, 0), (1, 1)), mode="edge")
    return (p[:, :-2] + p[:, 1:-1] + p[:, 2:]) / 3


def cuda_pipeline_thread(x):
    pairs = x.reshape(-1, 2)
    return np.stack([pairs.sum(1), pairs[:, 0] - pairs[:, 1]], 1)


def cuda_barrier_block(x, steps):
    mine, seen = x.reshape(-1, 64), 0
    for _ in range(steps):
        seen = seen + mine
        mine = mine / 2 + (np.roll(mine, 1, 1) + np.roll(mine, -1, 1)) / 4
    return mine + seen


def cg_memcpy_async(x):
    return x.reshape(-1, 128)[:, ::-1] * np.where(np.arange(128) % 2, -1, 1)


def warp_specialised(x):
    return x.reshape(-1, 96).sum(0)[::-1]


def fence_message(add):
    value = 0
    for a in add:
        value = value * 3 + a
    return value, len(add)


# Groups, compaction, sorting


def cg_tiled_partition(x):
    rows = x.reshape(-1, 8)
    return rows / np.sqrt((rows * rows).sum(1, keepdims=True)), rows.argmax(1)


def cg_coalesced(x):
    return x[x > 0], (x > 0).sum()


def compaction_ballot(x, threshold):
    return x[x > threshold], (x > threshold).sum()


def bitonic_sort(keys, block):
    rows = keys.reshape(-1, block[0])
    return np.sort(rows), rows.argsort()


def bitonic_warp(data):
    return np.sort(data.reshape(-1, 32))


def radix_sort_block(keys):
    return np.sort(keys.reshape(-1, 128))


def merge_sorted(a, b):
    return np.sort(np.concatenate([a, b]))


def topk_warp(x, cols, k):
    order = (-x.reshape(-1, cols)).argsort(1, kind="stable")[:, :k]
    return np.take_along_axis(x.reshape(-1, cols), order, 1), order


def moe_routing(logits, tokens, experts):
    rows = logits.reshape(tokens, experts)
    order = (-rows).argsort(1, kind="stable")[:, :2]
    return order, softmax(np.take_along_axis(rows, order, 1)), np.bincount(order.reshape(-1), minlength=experts)


# Grids and images


def stencil_2d(x, nx, ny, w):
    v = x.reshape(ny, nx)
    out = v.copy()
    out[1:-1, 1:-1] += w * (v[1:-1, :-2] + v[1:-1, 2:] + v[:-2, 1:-1] + v[2:, 1:-1] - 4 * v[1:-1, 1:-1])
    return out


def stencil_3d(u, nx, ny, nz):
    v = u.reshape(nz, ny, nx)
    return sum(np.roll(v, d, axis) for axis in range(3) for d in (1, -1)) - 6 * v


def convolution_constant(x, filter):
    return np.convolve(x, filter[::-1], mode="full")[3:-3]


def resize_bilinear(src, sw, sh, dw, dh):
    def positions(new, old):
        at = (np.arange(new) + 0.5) * old / new - 0.5
        low = np.floor(at).astype(int)
        return np.clip(low, 0, old - 1), np.clip(low + 1, 0, old - 1), at - low

    image = src.reshape(sh, sw, 4)
    (xa, xb, tx), (ya, yb, ty) = positions(dw, sw), positions(dh, sh)
    tx, ty = tx[None, :, None], ty[:, None, None]
    top = image[ya][:, xa] * (1 - tx) + image[ya][:, xb] * tx
    low = image[yb][:, xa] * (1 - tx) + image[yb][:, xb] * tx
    return np.floor(top * (1 - ty) + low * ty + 0.5)


def mandelbrot(width, height, most):
    y, x = np.mgrid[:height, :width].astype(F)
    cr, ci = (x - F(width * 0.75)) * F(0.0625), (y - F(height * 0.5)) * F(0.0625)
    zr, zi, n = np.zeros_like(cr), np.zeros_like(ci), np.zeros(cr.shape, int)
    for _ in range(most):
        r2, i2 = zr * zr, zi * zi
        go = r2 + i2 <= 4
        n += go
        zr, zi = np.where(go, (r2 - i2) + cr, zr), np.where(go, F(2) * (zr * zi) + ci, zi)
    return n


def game_of_life(x, words, rows):
    cells = (x.reshape(rows, words, 1) >> np.arange(32) & 1).reshape(rows, words * 32)
    near = sum(np.roll(cells, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) - cells
    alive = (near == 3) | ((near == 2) & (cells == 1))
    return (alive.reshape(rows, words, 32).astype(np.int64) << np.arange(32)).sum(2)


# Random numbers and hashes


def philox(seed, n):
    c = np.zeros((4, n), np.uint64)
    c[0] = np.arange(n)
    key = [seed & MASK, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        k = [np.uint64(word & MASK) for word in key]
        low, high = np.uint64(MASK), np.uint64(32)
        c = np.stack([(b >> high) ^ c[1] ^ k[0], b & low, (a >> high) ^ c[3] ^ k[1], a & low])
        key = [key[0] + 0x9E3779B9, key[1] + 0xBB67AE85]
    u, v = (c[0] >> np.uint64(8)) * 2.0**-24 + 2.0**-25, (c[1] >> np.uint64(8)) * 2.0**-24
    radius = np.sqrt(-2 * np.log(u))
    return c.T.astype(np.int64), np.stack([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)], 1)


def monte_carlo_pi(grid, block, rounds):
    def next_word(s):
        s = s ^ s << np.uint64(13)
        s = s ^ s >> np.uint64(7)
        return s ^ s << np.uint64(17)

    s = np.arange(1, grid[0] * block[0] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    hits = 0
    for _ in range(rounds):
        s = next_word(s)
        x, s = s >> np.uint64(33), next_word(s)
        y = s >> np.uint64(33)
        hits += int((x * x + y * y < np.uint64(1 << 62)).sum())
    return np.array([hits], dtype=np.uint64)


def hash_murmur(text, start, n):
    def rotated(v, by):
        return (v << by | v >> (32 - by)) & MASK

    out = []
    for i in range(n):
        s = bytes(text[start[i] : start[i + 1]].astype(np.uint8))
        h = 0x9747B28C
        for at in range(0, len(s), 4):
            k = rotated(int.from_bytes(s[at : at + 4], "little") * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
            h ^= k
            if at + 4 <= len(s):
                h = (rotated(h, 13) * 5 + 0xE6546B64) & MASK
        h ^= len(s)
        h = (h ^ h >> 16) * 0x85EBCA6B & MASK
        h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
        h ^= h >> 16
        mixed = (len(s) >> 8 & 255) | (len(s) & 255) << 8 | (h >> 8 & 255) << 16 | (h & 255) << 24
        out.append([h, int(f"{h:032b}"[::-1], 2) ^ mixed])
    return np.array(out)


# Sparse, small and f64


def spmv_csr_scalar(row_start, columns, values, x):
    products = np.concatenate([[0], np.cumsum(values * x[columns])])
    return products[row_start[1:]] - products[row_start[:-1]]


spmv_csr_vector = spmv_csr_scalar


def batched_inverse(matrices):
    return np.linalg.inv(matrices.reshape(-1, 4, 4))


def batched_cholesky(a, count):
    full = np.zeros((count, 6, 6))
    lower = np.tril_indices(6)
    full[:, lower[0], lower[1]] = full[:, lower[1], lower[0]] = a.reshape(count, 21)
    factors = np.linalg.cholesky(full)
    return factors[:, lower[0], lower[1]], np.linalg.slogdet(full)[1]


def nbody_f64(body, soft):
    b = body.reshape(-1, 4)
    d = b[None, :, :3] - b[:, None, :3]
    return (b[None, :, 3:] * d / ((d * d).sum(2, keepdims=True) + soft) ** 1.5).sum(1)


def noinline_device(polynomials):
    c, b, a = polynomials.reshape(-1, 3).T
    disc = b * b - 4 * a * c
    root = np.sqrt(np.maximum(disc, 0))
    roots = np.sort(np.stack([-b - root, -b + root]) / (2 * a), axis=0)
    at_high = c + roots[1] * (b + roots[1] * a)
    return np.where(disc < 0, a + b + c, roots[0] + at_high), np.where(disc < 0, 0, 2)


# Models


def half2_axpy(a, x, y):
    return np.clip(a * x + y, 0, 6)


def rotary_embedding(q, positions, heads, dim, log2_base):
    pairs = q.reshape(len(positions), heads, 2, dim // 2)
    angle = positions[:, None, None] * 2.0 ** (-2 * np.arange(dim // 2) / dim * log2_base)
    a, b, c, s = pairs[:, :, 0], pairs[:, :, 1], np.cos(angle), np.sin(angle)
    return np.stack([a * c - b * s, b * c + a * s], 2)


def kv_cache_append(key, value, key_cache, value_cache, slots, vectors):
    caches = [c.reshape(-1, vectors * 8).copy() for c in (key_cache, value_cache)]
    for cache, new in zip(caches, (key, value)):
        cache[slots[slots >= 0]] = new.reshape(-1, vectors * 8)[slots >= 0]
    return tuple(caches)


def dequantise_int4(packed, scales, zeros):
    nibbles = packed[:, None] >> np.arange(0, 32, 4) & 15
    return (nibbles.reshape(-1, 32) - zeros[:, None]) * scales[:, None]


def quantise_rows(x, cols4):
    rows = x.reshape(-1, cols4 * 4)
    scale = np.abs(rows).max(1) / 127
    return np.rint(rows / scale[:, None]), scale


def adam_step(w, m, v, grad, lr, beta1, beta2, eps, decay, step):
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad**2
    move = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return w - lr * (move + decay * w), m, v


def embedding_bag(grad, index, bag_of, table, pairs):
    out = table.reshape(-1, pairs * 2).copy()
    np.add.at(out, index, grad.reshape(-1, pairs * 2)[bag_of])
    return out


def activations(x):
    erf = np.vectorize(__import__("math").erf)
    fast = np.sin(x) / (np.cos(x) + 2) + 2.0**x + np.log(3 + x * x)
    gelu = x / 2 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    return np.stack([gelu, x / (1 + np.exp(-x)), np.tanh(x), erf(x) + np.cbrt(x), np.log1p(np.exp(x)), fast, x])


# The language


def struct_params(x):
    return np.broadcast_to(x.reshape(5, 1, 7) * 3, (5, 6, 7))


def printf_debug(x, block):
    lines = [
        f"block {i // block[0]} thread {i % block[0]}: x[{i}] = {v:.3f} ({'high' if v > 0 else 'low'})"
        for i, v in enumerate(x)
        if abs(v) > 2.25
    ]
    return np.clip(x, -2.25, 2.25), lines


def assert_bounds(table, index, cols):
    return table.reshape(-1, cols)[index]


def device_variables(x):
    weights = np.array([0.5, 1, 1.5, 2, -0.5, -1, -1.5, -2, 8, 7, 6, 5, 4, 3, 2, 1])
    return weights[x & 15], len(x), np.array([x.min(), x.max()])


def queue_lockfree(items, tail):
    return 0, items[: tail[0]].sum()


def spin_lock(keys, values):
    return np.bincount(keys, values, minlength=5), np.bincount(keys, minlength=5)


def bfs_frontier(row_start, edges, level, root):
    level = level.copy()
    level[root], frontier, depth = 0, [root], 0
    while frontier:
        depth += 1
        near = {to for node in frontier for to in edges[row_start[node] : row_start[node + 1]] if level[to] < 0}
        level[list(near)], frontier = depth, list(near)
    return level


def fft_shared(x):
    y = np.fft.fft(x.reshape(-1, 128, 2) @ np.array([1, 1j]))
    return np.stack([y.real, y.imag], -1)


def edit_distance(a, b, length):
    out = []
    for s, t in zip(a.reshape(-1, length), b.reshape(-1, length)):
        row = list(range(length + 1))
        for i in range(length):
            last, row = row, [i + 1]
            for j in range(length):
                row.append(min(last[j] + (s[i] != t[j]), last[j + 1] + 1, row[j] + 1))
        out.append(row[-1])
    return np.array(out)


# Hopper


def hopper_bulk_ring(x, tiles):
    rows = x.reshape(-1, tiles, 256)
    return (rows * np.arange(1, tiles + 1)[:, None]).sum(1)


def hopper_tma_transpose(x):
    return x.reshape(52, 80).T


def hopper_wgmma_gemm(A, B, k):
    return A.reshape(-1, k) @ B.reshape(-1, k).T


def hopper_cluster_scan(x):
    sums = x.reshape(-1, 4, 128).sum(2)
    return sums.cumsum(1) - sums, sums.sum(1)


def hopper_specialised(x, tiles):
    rows = x.reshape(tiles, 128)[:, ::-1]
    return rows.sum(0) / np.abs(rows).max(0)


def hopper_bulk_reduce(x):
    return x.reshape(-1, 128).sum(0)


def hopper_stmatrix(A, B):
    return A.reshape(32, 16) @ B.reshape(8, 16).T


def hopper_multicast(x, weights):
    return np.einsum("brc,wr->bwc", x.reshape(2, 16, 64), weights.reshape(2, 16))
