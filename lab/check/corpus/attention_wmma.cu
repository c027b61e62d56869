// Attention of 16 query rows by a warp with wmma: scores in shared memory, two lanes a row for
// the softmax, P in f16, O rescaled in shared memory.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;
constexpr int D = 32;

extern "C" __global__ void attention_wmma(const half* Q, const half* K, const half* V, float* O,
                                          int seq, float scale) {
    __shared__ __align__(32) float s[16][16];
    __shared__ __align__(32) half p[16][16];
    __shared__ __align__(32) float o[16][D];
    const int lane = threadIdx.x, row = lane / 2, side = lane % 2;
    Q += blockIdx.x * 16 * D;
    for (int c = 0; c < D / 2; ++c) o[row][side * D / 2 + c] = 0.f;
    float m = -1e30f, l = 0.f;

    for (int first = 0; first < seq; first += 16) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
        wmma::fill_fragment(acc, 0.f);
        for (int d = 0; d < D; d += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> q;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> k;
            wmma::load_matrix_sync(q, Q + d, D);
            wmma::load_matrix_sync(k, K + first * D + d, D);
            wmma::mma_sync(acc, q, k, acc);
        }
        wmma::store_matrix_sync(&s[0][0], acc, 16, wmma::mem_row_major);
        __syncwarp();

        float most = m;
        for (int c = 0; c < 8; ++c) most = fmaxf(most, s[row][side * 8 + c] * scale);
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
        const float shrink = __expf(m - most);
        float sum = 0.f;
        for (int c = 0; c < 8; ++c) {
            const float e = __expf(s[row][side * 8 + c] * scale - most);
            p[row][side * 8 + c] = __float2half(e);
            sum += e;
        }
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        l = l * shrink + sum;
        m = most;
        for (int c = 0; c < D / 2; ++c) o[row][side * D / 2 + c] *= shrink;
        __syncwarp();

        for (int d = 0; d < D; d += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fp;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> v;
            wmma::load_matrix_sync(fp, &p[0][0], 16);
            wmma::load_matrix_sync(v, V + first * D + d, D);
            wmma::load_matrix_sync(acc, &o[0][d], D, wmma::mem_row_major);
            wmma::mma_sync(acc, fp, v, acc);
            wmma::store_matrix_sync(&o[0][d], acc, D, wmma::mem_row_major);
        }
        __syncwarp();
    }
    for (int c = 0; c < D / 2; ++c)
        O[(blockIdx.x * 16 + row) * D + side * D / 2 + c] = o[row][side * D / 2 + c] / l;
}
