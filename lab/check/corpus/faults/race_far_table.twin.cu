// Warp 0 makes a small table of powers; after a long loop of arithmetic all warps use it.
extern "C" __global__ void race_far_table(const float* x, float* out) {
    __shared__ float powers[8];
    const int tid = threadIdx.x;
    if (tid < 8) {
        float p = 1.f;
        for (int i = 0; i < tid; ++i) p *= 0.5f;
        powers[tid] = p;
    }
    __syncthreads();
    float v = x[tid];
    for (int i = 0; i < 50; ++i) v = v * 0.99f + 0.01f * x[(tid + i) % 96];
    out[tid] = v * powers[tid % 8];
}
