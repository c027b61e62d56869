// Histogram of floats by global atomics; lanes with the same bin are counted by __match_any_sync,
// and the lowest of them adds.
extern "C" __global__ void histogram_global(const float* x, int* bins, int n, float lo, float width,
                                            int num_bins) {
    for (int base = blockIdx.x * blockDim.x; base < n; base += gridDim.x * blockDim.x) {
        const int i = base + threadIdx.x;
        const bool inside = i < n;
        const unsigned active = __ballot_sync(0xffffffff, inside);
        if (!inside) continue;
        int bin = (int)floorf((x[i] - lo) / width);
        bin = min(max(bin, 0), num_bins - 1);
        const unsigned same = __match_any_sync(active, bin);
        if (__ffs(same) - 1 == threadIdx.x % 32) atomicAdd(bins + bin, __popc(same));
    }
}
