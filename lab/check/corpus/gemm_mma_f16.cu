// C = A B with ldmatrix and mma.sync m16n8k16 in f16: two warps, each 16 rows and 16 columns.
#include <cuda_fp16.h>

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const half* row) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&r)[2], const half* row) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void gemm_mma_f16(const half* A, const half* B, float* C, int K) {
    __shared__ __align__(16) half sa[32][24];  // 16 columns; 8 more keep rows in different banks
    __shared__ __align__(16) half sb[16][24];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float acc[2][4] = {};

    for (int k0 = 0; k0 < K; k0 += 16) {
        const int r = threadIdx.x / 2, c = threadIdx.x % 2 * 8;
        *(uint4*)&sa[r][c] = *(const uint4*)&A[r * K + k0 + c];
        if (threadIdx.x < 32) *(uint4*)&sb[r][c] = *(const uint4*)&B[(k0 + r) * 16 + c];
        __syncthreads();
        unsigned a[4], b[2];
        ldmatrix_x4(a, &sa[warp * 16 + lane % 16][lane / 16 * 8]);
        for (int n = 0; n < 2; ++n) {
            ldmatrix_x2_trans(b, &sb[lane % 16][n * 8]);
            mma_m16n8k16(acc[n], a, b);
        }
        __syncthreads();
    }
    for (int n = 0; n < 2; ++n) {
        const int row = warp * 16 + lane / 4, col = n * 8 + lane % 4 * 2;
        *(float2*)&C[row * 16 + col] = make_float2(acc[n][0], acc[n][1]);
        *(float2*)&C[(row + 8) * 16 + col] = make_float2(acc[n][2], acc[n][3]);
    }
}
