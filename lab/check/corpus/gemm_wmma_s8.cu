// C = A B of 8-bit integers by wmma, scaled. A and B are stored as tiles of 16x16, so that each
// tile is aligned as wmma wants it.
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void gemm_wmma_s8(const signed char* A, const signed char* B, float* C, int N,
                                        int K, float scale) {
    __shared__ __align__(32) int staged[16 * 16];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> acc;
    wmma::fill_fragment(acc, 0);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a, A + blockIdx.y * 16 * K + k * 16, 16);
        wmma::load_matrix_sync(b, B + blockIdx.x * 16 * K + k * 16, 16);
        wmma::mma_sync(acc, a, b, acc);
    }
    wmma::store_matrix_sync(staged, acc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32)
        C[(blockIdx.y * 16 + i / 16) * N + blockIdx.x * 16 + i % 16] = staged[i] * scale;
}
