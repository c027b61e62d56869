// Bitonic sort of a block's keys with their values in shared memory.
extern "C" __global__ void bitonic_sort(const unsigned* keys, unsigned* sorted, unsigned* index) {
    extern __shared__ unsigned char raw[];
    unsigned* key = reinterpret_cast<unsigned*>(raw);
    unsigned* value = key + blockDim.x;
    const unsigned tid = threadIdx.x, n = blockDim.x;
    key[tid] = keys[blockIdx.x * n + tid];
    value[tid] = tid;
    __syncthreads();

    for (unsigned k = 2; k <= n; k <<= 1) {
        for (unsigned j = k >> 1; j > 0; j >>= 1) {
            const unsigned other = tid ^ j;
            if (other > tid) {
                const bool up = (tid & k) == 0;
                if ((key[tid] > key[other]) == up) {
                    const unsigned a = key[tid], b = value[tid];
                    key[tid] = key[other];
                    value[tid] = value[other];
                    key[other] = a;
                    value[other] = b;
                }
            }
            __syncthreads();
        }
    }
    sorted[blockIdx.x * n + tid] = key[tid];
    index[blockIdx.x * n + tid] = value[tid];
}
