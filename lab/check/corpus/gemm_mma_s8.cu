// C = A B^T of 8-bit integers with mma.sync m16n8k32; rows are requantised with saturation.
extern "C" __global__ void gemm_mma_s8(const int* A, const int* B, signed char* C, int N, int words,
                                       const float* row_scale) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int* a_top = A + g * words;
    const int* a_low = A + (g + 8) * words;
    const int* b = B + (warp * 8 + g) * words;
    int acc[4] = {0, 0, 0, 0};
    for (int w = t; w < words; w += 8) {
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
            : "r"(a_top[w]), "r"(a_low[w]), "r"(a_top[w + 4]), "r"(a_low[w + 4]), "r"(b[w]),
              "r"(b[w + 4]));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? g : g + 8;
        const int col = warp * 8 + t * 2 + (i & 1);
        const int q = __float2int_rn(acc[i] * row_scale[row]);
        C[row * N + col] = (signed char)min(127, max(-128, q));
    }
}
