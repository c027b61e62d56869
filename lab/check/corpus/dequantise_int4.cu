// 4-bit weights to f16: eight in a word, a scale and a zero point for each group of 32.
#include <cuda_fp16.h>

extern "C" __global__ void dequantise_int4(const unsigned* __restrict__ packed,
                                           const half* __restrict__ scales,
                                           const unsigned char* __restrict__ zeros,
                                           half2* __restrict__ out, int words) {
    const int w = blockIdx.x * blockDim.x + threadIdx.x;
    if (w >= words) return;
    const unsigned word = packed[w];
    const int group = w / 4;
    const half2 scale = __half2half2(scales[group]);
    const half zero = __ushort2half_rn(zeros[group]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // 0x6400 is 1024 in f16, so that its low bits are the integer above 1024.
        const unsigned two = (word >> (8 * i) & 0xf) | (word >> (8 * i + 4) & 0xf) << 16;
        const unsigned magic = two | 0x64006400u;
        const half2 q = __hsub2(*reinterpret_cast<const half2*>(&magic),
                                __half2half2(__hadd(zero, __float2half(1024.f))));
        out[w * 4 + i] = __hmul2(q, scale);
    }
}
