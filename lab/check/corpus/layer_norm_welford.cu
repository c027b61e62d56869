// Mean and variance of rows by Welford's update; states of lanes and warps are merged.
struct Welford {
    float mean, m2;
    int n;
};

__device__ Welford combine(Welford a, Welford b) {
    const int n = a.n + b.n;
    if (n == 0) return a;
    const float delta = b.mean - a.mean;
    const float share = (float)b.n / n;
    return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.n * share, n};
}

extern "C" __global__ void layer_norm_welford(const float* x, float2* stats, int cols) {
    __shared__ Welford parts[4];
    Welford w{0.f, 0.f, 0};
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        const float v = x[blockIdx.x * cols + c];
        ++w.n;
        const float delta = v - w.mean;
        w.mean += delta / w.n;
        w.m2 += delta * (v - w.mean);
    }
    for (int d = 1; d < 32; d *= 2) {
        Welford other;
        other.mean = __shfl_down_sync(0xffffffff, w.mean, d);
        other.m2 = __shfl_down_sync(0xffffffff, w.m2, d);
        other.n = __shfl_down_sync(0xffffffff, w.n, d);
        // Lanes whose partner is out of range got their own state: their result is not used.
        w = combine(w, other);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = w;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x / 32; ++i) w = combine(w, parts[i]);
        stats[blockIdx.x] = make_float2(w.mean, w.m2 / w.n);
    }
}
