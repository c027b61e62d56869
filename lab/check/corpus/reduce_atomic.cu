// Dot product: grid-stride loop, a butterfly in each warp, one atomic addition per warp.
extern "C" __global__ void reduce_atomic(const float* a, const float* b, float* result, size_t n) {
    float dot = 0.0f;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        dot = fmaf(a[i], b[i], dot);

    for (int mask = 16; mask > 0; mask /= 2) dot += __shfl_xor_sync(~0u, dot, mask);
    if ((threadIdx.x & 31) == 0) atomicAdd(result, dot);
}
