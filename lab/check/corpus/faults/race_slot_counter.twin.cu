// Warps 0 to 2 append selected values to a list in shared memory; warp 3 sums the list. A counter
// that has grown does not say that the element is there.
extern "C" __global__ void race_slot_counter(const int* x, int* out) {
    __shared__ int list[96];
    __shared__ int count;
    const int tid = threadIdx.x;
    if (tid == 0) count = 0;
    __syncthreads();
    int sum = 0, from = tid - 96;
    if (tid < 96) {
        if (x[tid] > 0) list[atomicAdd(&count, 1)] = x[tid];
    }
    __syncthreads();
    if (tid >= 96) {
        for (; from < count; from += 32) sum += list[from];
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
        if (tid == 96) *out = sum;
    }
}
