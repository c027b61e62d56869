// Packs 4-bit codes: two threads share a byte.
extern "C" __global__ void race_nibbles(const unsigned char* codes, unsigned char* packed) {
    __shared__ unsigned char bytes[64];
    const int tid = threadIdx.x;  // 128
    if (tid < 64) bytes[tid] = 0;
    __syncthreads();
    const int high = __shfl_down_sync(0xffffffff, (int)codes[tid], 1);
    if (tid % 2 == 0) bytes[tid / 2] = (codes[tid] & 15) | (high & 15) << 4;
    __syncthreads();
    if (tid < 64) packed[tid] = bytes[63 - tid];
}
