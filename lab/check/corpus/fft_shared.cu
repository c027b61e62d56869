// FFT of 128 complex numbers in a block: bit reversal, then seven radix-2 stages in shared memory.
constexpr int kLog = 7, kN = 1 << kLog;

__device__ __forceinline__ float2 operator*(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

extern "C" __global__ void __launch_bounds__(kN / 2) fft_shared(const float2* in, float2* out) {
    __shared__ float2 s[kN];
    for (int i = threadIdx.x; i < kN; i += kN / 2)
        s[__brev(i) >> (32 - kLog)] = in[blockIdx.x * kN + i];
    __syncthreads();
    for (int half = 1; half < kN; half *= 2) {
        const int k = threadIdx.x & (half - 1);
        const int at = ((threadIdx.x - k) << 1) + k;
        float2 w;
        sincospif(-(float)k / half, &w.y, &w.x);
        const float2 a = s[at], b = s[at + half] * w;
        s[at] = make_float2(a.x + b.x, a.y + b.y);
        s[at + half] = make_float2(a.x - b.x, a.y - b.y);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < kN; i += kN / 2) out[blockIdx.x * kN + i] = s[i];
}
