// Sum of each row: shuffles within warps, then the first warp sums the warps' results.
constexpr int kWarps = 8;

__inline__ __device__ float warp_sum(float v) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
    return v;
}

__inline__ __device__ float block_sum(float v) {
    __shared__ float sums[kWarps];
    const int lane = threadIdx.x % warpSize;
    const int warp = threadIdx.x / warpSize;
    v = warp_sum(v);
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    v = threadIdx.x < kWarps ? sums[lane] : 0.0f;
    return warp == 0 ? warp_sum(v) : 0.0f;
}

extern "C" __global__ void reduce_warp_shuffle(const float* x, float* out, int cols) {
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += x[blockIdx.x * cols + c];
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
