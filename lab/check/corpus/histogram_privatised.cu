// Histogram with a copy of 16-bit counters for each warp, two in a word, merged at the end.
#define BINS 64
#define WARPS 4

extern "C" __global__ void histogram_privatised(const uchar4* data, unsigned* bins, int n4) {
    __shared__ unsigned counts[WARPS][BINS / 2];
    unsigned* mine = counts[threadIdx.x / 32];
    for (int b = threadIdx.x % 32; b < BINS / 2; b += 32) mine[b] = 0;
    __syncwarp();

    for (int i = threadIdx.x; i < n4; i += blockDim.x) {
        const uchar4 v = data[i];
        atomicAdd(&mine[v.x / 4 / 2], 1u << (v.x / 4 % 2 * 16));
        atomicAdd(&mine[v.y / 4 / 2], 1u << (v.y / 4 % 2 * 16));
        atomicAdd(&mine[v.z / 4 / 2], 1u << (v.z / 4 % 2 * 16));
        atomicAdd(&mine[v.w / 4 / 2], 1u << (v.w / 4 % 2 * 16));
    }
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) {
        unsigned sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += counts[w][b / 2] >> (b % 2 * 16) & 0xffff;
        bins[b] = sum;
    }
}
