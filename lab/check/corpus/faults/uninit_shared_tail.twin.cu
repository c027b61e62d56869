// Sum of a block whose last threads have no element.
extern "C" __global__ void uninit_shared_tail(const float* x, float* out, int n) {
    __shared__ float s[128];
    const int tid = threadIdx.x, i = blockIdx.x * 128 + tid;
    s[tid] = i < n ? x[i] : 0.f;
    __syncthreads();
    for (int d = 64; d > 0; d /= 2) {
        if (tid < d) s[tid] += s[tid + d];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = s[0];
}
