// Counts values in 32 bins by their low five bits. The blocks are persistent: each one takes tiles of
// 256 values from a queue in global memory until the queue is empty, then adds its bins to the total.
constexpr unsigned TILE = 256;
constexpr unsigned BINS = 32;

extern "C" __global__ void histogram(const unsigned* values, unsigned n, unsigned* queue,
                                     unsigned* counts) {
    __shared__ unsigned bins[BINS];
    __shared__ unsigned tile;
    const unsigned t = threadIdx.x;
    if (t < BINS) bins[t] = 0;

    while (true) {
        if (t == 0) {
            tile = atomicAdd(queue, 1u);
        }
        __syncthreads();
        const unsigned begin = tile * TILE;
        __syncthreads();
        if (begin >= n) break;

        const unsigned end = min(begin + TILE, n);
        for (unsigned i = begin + t; i < end; i += blockDim.x) {
            const unsigned bin = values[i] % BINS;
            atomicAdd(&bins[bin], 1u);
        }
    }

    __syncthreads();
    if (t < BINS && bins[t] != 0) atomicAdd(&counts[t], bins[t]);
}
