// fault: shared-race
// Tree sum whose last steps are in one warp. Lanes of a warp do not run in step: each step needs
// __syncwarp.
extern "C" __global__ void race_warp_tail(const int* x, int* out) {
    __shared__ int s[128];
    const int tid = threadIdx.x;
    s[tid] = x[blockIdx.x * 128 + tid];
    __syncthreads();
    if (tid < 64) s[tid] += s[tid + 64];
    __syncthreads();
    if (tid < 32) {
        s[tid] += s[tid + 32];  // FAULT
        if (tid < 16) s[tid] += s[tid + 16];  // FAULT
        if (tid < 8) s[tid] += s[tid + 8];  // FAULT
        if (tid < 4) s[tid] += s[tid + 4];  // FAULT
        if (tid < 2) s[tid] += s[tid + 2];  // FAULT
        if (tid < 1) s[tid] += s[tid + 1];  // FAULT
    }
    if (tid == 0) out[blockIdx.x] = s[0];
}
