// Bitonic sort of 32 floats in each warp, in registers by shuffles.
__device__ __forceinline__ float compare_exchange(float v, int d, bool up) {
    const float other = __shfl_xor_sync(0xffffffff, v, d);
    return up ? fminf(v, other) : fmaxf(v, other);
}

extern "C" __global__ void bitonic_warp(float* data) {
    const int lane = threadIdx.x & 31;
    float v = data[blockIdx.x * blockDim.x + threadIdx.x];
#pragma unroll
    for (int k = 2; k <= 32; k *= 2)
#pragma unroll
        for (int j = k / 2; j > 0; j /= 2)
            v = compare_exchange(v, j, ((lane & k) == 0) == ((lane & j) == 0));
    data[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
