// Counts values from 0 to 1 in 64 bins.
extern "C" __global__ void histogram(const float* x, unsigned* counts, int n) {
    __shared__ unsigned bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[(int)(x[i] * 64.0f)], 1u);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
}
