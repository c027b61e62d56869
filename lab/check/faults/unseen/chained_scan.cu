// Inclusive prefix sum of n integers in one pass. Each block scans 128 of them with shuffles, waits for
// the sum of all blocks before it, and hands the sum that includes its own part to the next block.
constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;

__device__ int warp_scan(int value, int lane) {
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, value, distance);
        if (lane >= distance) value += other;
    }
    return value;
}

extern "C" __global__ void chained_scan(const int* x, int* sums, int n, int* prefixes,
                                        unsigned* ready) {
    __shared__ int warp_sums[WARPS];
    __shared__ int before_block;
    const int t = threadIdx.x;
    const int lane = t % 32;
    const int warp = t / 32;
    const int block = blockIdx.x;
    const int i = block * THREADS + t;

    int sum = warp_scan(i < n ? x[i] : 0, lane);
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum += warp_sums[w];

    if (t == THREADS - 1) {
        int before = 0;
        if (block > 0) {
            while (atomicAdd(&ready[block - 1], 0u) == 0u) {
            }
            __threadfence();
            before = prefixes[block - 1];
        }
        prefixes[block] = before + sum;
        atomicExch(&ready[block], 1u);
        before_block = before;
    }
    __syncthreads();
    if (i < n) sums[i] = before_block + sum;
}
