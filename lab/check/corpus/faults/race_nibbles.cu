// fault: shared-race
// Packs 4-bit codes: two threads share a byte.
extern "C" __global__ void race_nibbles(const unsigned char* codes, unsigned char* packed) {
    __shared__ unsigned char bytes[64];
    const int tid = threadIdx.x;  // 128
    if (tid < 64) bytes[tid] = 0;
    __syncthreads();
    bytes[tid / 2] |= (codes[tid] & 15) << (tid % 2 * 4);  // FAULT
    __syncthreads();
    if (tid < 64) packed[tid] = bytes[63 - tid];
}
