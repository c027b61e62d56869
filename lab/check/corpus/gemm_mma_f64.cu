// C = A B in doubles by the tensor cores of sm_80 (wmma 8x8x4).
#include <mma.h>

using namespace nvcuda;

extern "C" __global__ void gemm_mma_f64(const double* A, const double* B, double* C, int N, int K) {
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> c;
    wmma::fill_fragment(c, 0.0);
    for (int k = 0; k < K; k += 4) {
        wmma::load_matrix_sync(a, A + blockIdx.y * 8 * K + k, K);
        wmma::load_matrix_sync(b, B + k * N + blockIdx.x * 8, N);
        wmma::mma_sync(c, a, b, c);
    }
    wmma::store_matrix_sync(C + blockIdx.y * 8 * N + blockIdx.x * 8, c, N, wmma::mem_row_major);
}
