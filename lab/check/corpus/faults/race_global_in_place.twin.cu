// Smoothing of an array by several blocks: the halo of a block is what its neighbour overwrites.
extern "C" __global__ void race_global_in_place(float* x, float* y, int n) {
    __shared__ float s[66];
    const int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x + 1;
    s[t] = x[i];
    if (t == 1) s[0] = i > 0 ? x[i - 1] : 0.f;
    if (t == 64) s[65] = i + 1 < n ? x[i + 1] : 0.f;
    __syncthreads();
    const float v = 0.25f * s[t - 1] + 0.5f * s[t] + 0.25f * s[t + 1];
    y[i] = v;
}
