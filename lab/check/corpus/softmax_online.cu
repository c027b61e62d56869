// Softmax in one pass over the row (online): maximum and sum are kept together and merged by
// shuffles, a warp a row.
struct MaxSum {
    float m;
    float d;
};

__device__ __forceinline__ MaxSum merge(MaxSum a, MaxSum b) {
    const bool a_is_more = a.m > b.m;
    const MaxSum more = a_is_more ? a : b;
    const MaxSum less = a_is_more ? b : a;
    return {more.m, more.d + less.d * __expf(less.m - more.m)};
}

extern "C" __global__ void softmax_online(const float* __restrict__ x, float* __restrict__ y,
                                          int rows, int cols) {
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += row * cols;
    y += row * cols;

    MaxSum part{-1e30f, 0.0f};
    for (int c = lane; c < cols; c += 32) part = merge(part, MaxSum{x[c], 1.0f});
    for (int d = 16; d > 0; d >>= 1) {
        MaxSum other;
        other.m = __shfl_xor_sync(0xffffffff, part.m, d);
        other.d = __shfl_xor_sync(0xffffffff, part.d, d);
        part = merge(part, other);
    }
    const float inverse = __fdividef(1.0f, part.d);
    for (int c = lane; c < cols; c += 32) y[c] = __expf(x[c] - part.m) * inverse;
}
