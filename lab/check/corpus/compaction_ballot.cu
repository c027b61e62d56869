// Stream compaction in order within a block: ballot and popc give the place in a warp, a scan of
// the warps' counts the place in the block, one atomic the block's place.
extern "C" __global__ void compaction_ballot(const float* in, float* out, int* total, int n,
                                             float threshold) {
    __shared__ int warp_count[4];
    __shared__ int block_base;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float v = i < n ? in[i] : 0.f;
    const bool keep = i < n && v > threshold;

    const unsigned ballot = __ballot_sync(0xffffffff, keep);
    if (lane == 0) warp_count[warp] = __popc(ballot);
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int w = 0; w < 4; ++w) {
            const int count = warp_count[w];
            warp_count[w] = sum;
            sum += count;
        }
        block_base = atomicAdd(total, sum);
    }
    __syncthreads();
    if (keep) {
        const int below = __popc(ballot & ((1u << lane) - 1));
        out[block_base + warp_count[warp] + below] = v;
    }
}
