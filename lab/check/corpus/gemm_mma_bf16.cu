// C = A B^T with mma.sync m16n8k16 in bf16: fragments are 32-bit words of global memory.
#include <cuda_bf16.h>
#include <stdint.h>

__device__ void mma_bf16(float* d, const uint32_t* a, const uint32_t* b, const float* c) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}

extern "C" __global__ void gemm_mma_bf16(const __nv_bfloat16* A, const __nv_bfloat16* B,
                                         __nv_bfloat16* C, int N, int K) {
    const int group = (threadIdx.x & 31) >> 2;
    const int in_group = threadIdx.x & 3;
    const int row = blockIdx.x * 16 + group;
    const int col = (threadIdx.x >> 5) * 8;
    float acc[4] = {0, 0, 0, 0};

    for (int k = in_group * 2; k < K; k += 16) {
        uint32_t a[4], b[2];
        a[0] = *(const uint32_t*)&A[row * K + k];
        a[1] = *(const uint32_t*)&A[(row + 8) * K + k];
        a[2] = *(const uint32_t*)&A[row * K + k + 8];
        a[3] = *(const uint32_t*)&A[(row + 8) * K + k + 8];
        b[0] = *(const uint32_t*)&B[(col + group) * K + k];
        b[1] = *(const uint32_t*)&B[(col + group) * K + k + 8];
        mma_bf16(acc, a, b, acc);
    }
    __nv_bfloat162* top = (__nv_bfloat162*)&C[row * N + col + in_group * 2];
    __nv_bfloat162* low = (__nv_bfloat162*)&C[(row + 8) * N + col + in_group * 2];
    *top = __floats2bfloat162_rn(acc[0], acc[1]);
    *low = __floats2bfloat162_rn(acc[2], acc[3]);
}
