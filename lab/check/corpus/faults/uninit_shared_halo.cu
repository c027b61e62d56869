// fault: uninitialised-shared
// Differences with the neighbour on the right; the last thread of a block must load one more.
extern "C" __global__ void uninit_shared_halo(const int* x, int* out, int n) {
    __shared__ int s[65];
    const int tid = threadIdx.x, i = blockIdx.x * 64 + tid;
    s[tid] = x[i];
    if (tid == 64 && i + 1 < n) s[64] = x[i + 1];
    __syncthreads();
    if (i + 1 < n) out[i] = s[tid + 1] - s[tid];  // FAULT
}
