// fault: missing-fence
// The last block adds the partial sums of all blocks: its ticket orders nothing without fences.
__device__ unsigned tickets;

extern "C" __global__ void fence_last_block(const int* x, int* partial, int* total) {
    __shared__ bool last;
    int sum = x[blockIdx.x * 32 + threadIdx.x];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;  // FAULT
        last = atomicAdd(&tickets, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        int all = threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0;  // FAULT
        for (int d = 16; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffff, all, d);
        if (threadIdx.x == 0) *total = all;
    }
}
