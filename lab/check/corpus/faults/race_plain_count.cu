// fault: shared-race
// Counts of keys; almost all keys differ, so that two threads rarely meet at a counter.
extern "C" __global__ void race_plain_count(const int* keys, int* counts) {
    __shared__ int bins[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
    __syncthreads();
    bins[keys[threadIdx.x]] += 1;  // FAULT
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) counts[b] = bins[b];
}
