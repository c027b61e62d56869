// Radix sort of a block's bytes, one bit in each pass: zeros to the front in order, then the ones.
extern "C" __global__ void radix_sort_block(const unsigned char* in, unsigned char* out) {
    __shared__ unsigned char keys[2][128];
    __shared__ int zeros[4];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    keys[0][tid] = in[blockIdx.x * 128 + tid];
    for (int bit = 0; bit < 8; ++bit) {
        __syncthreads();
        const unsigned char key = keys[bit & 1][tid];
        const bool zero = !(key >> bit & 1);
        const unsigned votes = __ballot_sync(0xffffffff, zero);
        if (lane == 0) zeros[warp] = __popc(votes);
        __syncthreads();
        int before = 0, total = 0;
        for (int w = 0; w < 4; ++w) {
            if (w < warp) before += zeros[w];
            total += zeros[w];
        }
        before += __popc(votes & ~(~0u << lane));
        const int place = zero ? before : total + tid - before;
        keys[~bit & 1][place] = key;
    }
    __syncthreads();
    out[blockIdx.x * 128 + tid] = keys[0][tid];
}
