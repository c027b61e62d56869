"""What the twins of this folder compute, and their faults are meant to: as ../reference.py."""

import numpy as np


def race_stage_reuse(x, rows):
    return x.reshape(rows, -1)[:, ::-1]


def race_ldmatrix(x):
    return x.reshape(32, 16).T


def race_wmma_staging(a, b):
    products = a.reshape(2, 16, 16) @ b.reshape(2, 16, 16)
    return products[0].reshape(-1) + products[1].reshape(-1)[::-1]


def race_flag_polling(x):
    return x[np.arange(32, 96) * 5 % 32] ** 2 + 1


def race_slot_counter(x):
    return x[x > 0].sum()


def race_named_barrier(x):
    return x[np.arange(len(x)) ^ 32] ** 2 + x


def race_tile_war(A, B, N, K):
    return A.reshape(-1, K) @ B.reshape(K, N)


def race_warp_tail(x):
    return x.reshape(-1, 128).sum(1)


def race_plain_count(keys):
    return np.bincount(keys, minlength=256)


def race_loop_flag(solid):
    labels = np.arange(len(solid))
    for i in range(1, len(solid)):
        if solid[i] and solid[i - 1]:
            labels[i] = labels[i - 1]
    # A label moves one cell to the right in a round, and the last round changes nothing.
    return labels, (np.arange(len(solid)) - labels).max() + 1


def race_scan_in_place(x):
    return x.cumsum()


def race_nibbles(codes):
    return (codes[::2] | codes[1::2] << 4)[::-1]


def race_far_table(x):
    v, at = x, np.arange(len(x))
    for i in range(50):
        v = v * 0.99 + 0.01 * x[(at + i) % 96]
    return v * 0.5 ** (at % 8)


def race_permute_in_place(x, permutation):
    return x[permutation][::-1]


def race_two_sums(x):
    return x * (x * 128 > x.sum()).sum()


def race_barrier_token(x):
    return 2 * x[::-1]


def race_lane_exchange(x, rounds):
    v = x.reshape(-1, 32)
    for _ in range(rounds):
        v = v + v[:, ::-1] / 2
    return v


def race_global_in_place(x):
    p = np.pad(x, 1)
    return p[:-2] / 4 + x / 2 + p[2:] / 4


def wait_missing(x):
    return x[::-1]


def wait_one_short(x, rows):
    return x.reshape(rows, -1).sum(0)[::-1]


def fence_last_block(x):
    return x.sum()


def bounds_global_tail(x):
    return -x


def bounds_shared_halo(x):
    return np.convolve(x, np.ones(5, int), mode="same")


def bounds_local_index(classes, each):
    return [np.bincount(row, minlength=9).argmax() for row in classes.reshape(-1, each)]


def misaligned_vector(x, rows):
    return x.reshape(rows, -1).sum(1)


def uninit_shared_tail(x):
    return np.array([x[:128].sum(), x[128:].sum()])


def uninit_shared_halo(x):
    return np.diff(x)


def uninit_global_sum(x, cols):
    return x.reshape(-1, cols).sum(1)


def barrier_in_branch(x):
    return np.append(x[::-1], x[0])


def mask_of_absent_lanes(x, cols):
    return np.append(x.reshape(-1, cols).sum(1), np.arange(4))


def wmma_stride(a, b):
    return a.reshape(16, 16) @ b.reshape(16, 16)


def hopper_no_expect_tx(x):
    return x.reshape(-1, 128)[:, ::-1]


def hopper_wrong_parity(x):
    first, second, third = x.reshape(3, 64)
    return (first * 2 + second) * 2 + third


def hopper_no_proxy_fence(x):
    return x.reshape(-1, 128)[:, ::-1] * 2


def hopper_no_product_wait(A, B):
    return A.reshape(64, 16) @ B.reshape(8, 16).T
