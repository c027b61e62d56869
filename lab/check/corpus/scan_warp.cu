// Inclusive scan of a block in two levels of shuffles: within warps, then over the warps' totals.
__device__ int inclusive_scan_warp(int v, int lane) {
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const int below = __shfl_up_sync(0xffffffff, v, d);
        if (lane >= d) v += below;
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(256) scan_warp(const int* in, int* out, int n) {
    __shared__ int totals[8];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    int v = inclusive_scan_warp(i < n ? in[i] : 0, lane);
    if (lane == 31) totals[warp] = v;
    __syncthreads();
    if (warp == 0) {
        const int t = inclusive_scan_warp(lane < 8 ? totals[lane] : 0, lane);
        __syncwarp();
        if (lane < 8) totals[lane] = t;
    }
    __syncthreads();
    if (warp > 0) v += totals[warp - 1];
    if (i < n) out[i] = v;
}
