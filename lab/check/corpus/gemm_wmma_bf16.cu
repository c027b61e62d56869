// C = A B in bf16 by wmma: tiles of A and B go through shared memory with padded rows.
#include <cuda_bf16.h>
#include <mma.h>

using namespace nvcuda::wmma;

constexpr int kPad = 8;
constexpr int kLd = 16 + kPad;

extern "C" __global__ void gemm_wmma_bf16(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C,
                                          int N, int K) {
    __shared__ __align__(32) __nv_bfloat16 sa[32 * kLd];
    __shared__ __align__(32) __nv_bfloat16 sb[16 * (32 + kPad)];
    const int warp = threadIdx.x / 32;
    const int wm = warp / 2 * 16, wn = warp % 2 * 16;
    const int row0 = blockIdx.y * 32, col0 = blockIdx.x * 32;

    fragment<accumulator, 16, 16, 16, float> acc;
    fill_fragment(acc, 0.f);
    for (int k0 = 0; k0 < K; k0 += 16) {
        for (int i = threadIdx.x; i < 32 * 16; i += blockDim.x) {
            sa[i / 16 * kLd + i % 16] = A[(row0 + i / 16) * K + k0 + i % 16];
            sb[i / 32 * (32 + kPad) + i % 32] = B[(k0 + i / 32) * N + col0 + i % 32];
        }
        __syncthreads();
        fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> a;
        fragment<matrix_b, 16, 16, 16, __nv_bfloat16, row_major> b;
        load_matrix_sync(a, sa + wm * kLd, kLd);
        load_matrix_sync(b, sb + wn, 32 + kPad);
        mma_sync(acc, a, b, acc);
        __syncthreads();
    }
    store_matrix_sync(C + (row0 + wm) * N + col0 + wn, acc, N, mem_row_major);
}
