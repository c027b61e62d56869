// Masked softmax in half precision with the row in registers: 4 elements a lane, as 8-byte vectors.
#include <cuda_fp16.h>

struct alignas(8) Half4 {
    half2 lo, hi;
};

extern "C" __global__ void softmax_registers(const Half4* scores, const int* lengths, Half4* out,
                                             float scale) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    const int lane = threadIdx.x;
    const Half4 raw = scores[row * 32 + lane];
    const float2 a = __half22float2(raw.lo), b = __half22float2(raw.hi);
    float v[4] = {a.x, a.y, b.x, b.y};

    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = lane * 4 + i < lengths[row] ? v[i] * scale : -INFINITY;
        most = fmaxf(most, v[i]);
    }
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, d));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = exp2f((v[i] - most) * 1.4426950408889634f);
        sum += v[i];
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
    const float r = __frcp_rn(sum);
    out[row * 32 + lane] = {__floats2half2_rn(v[0] * r, v[1] * r),
                            __floats2half2_rn(v[2] * r, v[3] * r)};
}
