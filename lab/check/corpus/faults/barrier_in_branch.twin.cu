// Reverses a ragged row through shared memory: threads without an element must reach the barrier.
extern "C" __global__ void barrier_in_branch(const float* x, float* out, int n) {
    __shared__ float s[128];
    const int tid = threadIdx.x;
    if (tid < n) s[tid] = x[tid];
    __syncthreads();
    if (tid < n) out[tid] = s[n - 1 - tid];
    __syncthreads();
    if (tid == 0) out[n] = s[0];
}
