// RMS norm of rows in half precision with half2 loads, the sum of squares in f32, residual added.
#include <cuda_fp16.h>

extern "C" __global__ void rms_norm(half* __restrict__ out, half* __restrict__ residual,
                                    const half* __restrict__ x, const half* __restrict__ weight,
                                    int cols, float eps) {
    __shared__ float sums[32];
    const int pairs = cols / 2;
    const half2* x2 = reinterpret_cast<const half2*>(x + blockIdx.x * cols);
    half2* r2 = reinterpret_cast<half2*>(residual + blockIdx.x * cols);
    float sum = 0.f;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        const half2 v = __hadd2(x2[i], r2[i]);
        r2[i] = v;
        const float2 f = __half22float2(v);
        sum += f.x * f.x + f.y * f.y;
    }
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, d);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.f;
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, d);
    const half scale = __float2half(1.f / sqrtf(sum / cols + eps));

    half2* o2 = reinterpret_cast<half2*>(out + blockIdx.x * cols);
    const half2* w2 = reinterpret_cast<const half2*>(weight);
    for (int i = threadIdx.x; i < pairs; i += blockDim.x)
        o2[i] = __hmul2(__hmul2(r2[i], __half2half2(scale)), w2[i]);
}
