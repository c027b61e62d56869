// Attention of 16 query rows by a warp with mma.sync in bf16: P stays in registers, since an
// accumulator has the layout of the next product's A.
#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned pack(bf16 lo, bf16 hi) {
    return (unsigned)__bfloat16_as_ushort(hi) << 16 | __bfloat16_as_ushort(lo);
}

__device__ __forceinline__ unsigned pack(float lo, float hi) {
    return pack(__float2bfloat16(lo), __float2bfloat16(hi));
}

__device__ __forceinline__ unsigned word(const bf16* p) { return *(const unsigned*)p; }

extern "C" __global__ void attention_mma(const bf16* Q, const bf16* K, const bf16* V, float* O,
                                         int seq, float scale) {
    constexpr int D = 16;
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    Q += blockIdx.x * 16 * D;
    const unsigned q[4] = {word(Q + g * D + t * 2), word(Q + (g + 8) * D + t * 2),
                           word(Q + g * D + t * 2 + 8), word(Q + (g + 8) * D + t * 2 + 8)};
    float o[2][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {};

    for (int first = 0; first < seq; first += 16) {
        float s[2][4] = {};
        for (int n = 0; n < 2; ++n) {
            const bf16* k = K + (first + n * 8 + g) * D + t * 2;
            mma(s[n], q, word(k), word(k + 8));
        }
        for (int r = 0; r < 2; ++r) {
            float most = m[r];
            for (int n = 0; n < 2; ++n)
                most = fmaxf(most, fmaxf(s[n][r * 2], s[n][r * 2 + 1]) * scale);
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
            const float shrink = __expf(m[r] - most);
            m[r] = most;
            l[r] *= shrink;
            for (int n = 0; n < 2; ++n)
                for (int i = r * 2; i < r * 2 + 2; ++i) {
                    s[n][i] = __expf(s[n][i] * scale - most);
                    l[r] += s[n][i];
                    o[n][i] *= shrink;
                }
        }
        const unsigned p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]),
                               pack(s[1][0], s[1][1]), pack(s[1][2], s[1][3])};
        for (int n = 0; n < 2; ++n) {
            const bf16* v = V + (first + t * 2) * D + n * 8 + g;
            mma(o[n], p, pack(v[0], v[D]), pack(v[8 * D], v[9 * D]));
        }
    }
    for (int r = 0; r < 2; ++r) {
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 1);
        l[r] += __shfl_xor_sync(0xffffffff, l[r], 2);
        for (int n = 0; n < 2; ++n)
            for (int i = 0; i < 2; ++i)
                O[(blockIdx.x * 16 + g + r * 8) * D + n * 8 + t * 2 + i] = o[n][r * 2 + i] / l[r];
    }
}
