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
        s[tid] += s[tid + 32];
        for (int d = 16; d > 0; d /= 2) {
            __syncwarp();
            if (tid < d) s[tid] += s[tid + d];
        }
    }
    if (tid == 0) out[blockIdx.x] = s[0];
}
