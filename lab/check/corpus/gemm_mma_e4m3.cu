// C = A B^T of 8-bit floats (e4m3) with mma.sync m16n8k32, as Ada has it; scales per tensor.
#include <cuda_fp8.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t word(const __nv_fp8_e4m3* p) {
    return *reinterpret_cast<const uint32_t*>(p);
}

extern "C" __global__ void gemm_mma_e4m3(const __nv_fp8_e4m3* A, const __nv_fp8_e4m3* B, float* C,
                                         int N, int K, float scale_a, float scale_b) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const __nv_fp8_e4m3* a = A + (blockIdx.y * 16 + g) * K + t * 4;
    const __nv_fp8_e4m3* b = B + (blockIdx.x * 8 + g) * K + t * 4;
    float c[4] = {};
    for (int k = 0; k < K; k += 32) {
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(word(a + k)), "r"(word(a + 8 * K + k)), "r"(word(a + k + 16)),
              "r"(word(a + 8 * K + k + 16)), "r"(word(b + k)), "r"(word(b + k + 16)));
    }
    const float scale = scale_a * scale_b;
    const int row = blockIdx.y * 16 + g, col = blockIdx.x * 8 + t * 2;
    C[row * N + col] = c[0] * scale;
    C[row * N + col + 1] = c[1] * scale;
    C[(row + 8) * N + col] = c[2] * scale;
    C[(row + 8) * N + col + 1] = c[3] * scale;
}
