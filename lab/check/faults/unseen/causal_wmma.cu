#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

// Causal attention with tensor cores, head_dim 16. One warp computes 16 queries: the scores of all keys
// up to the last query of its tile, their softmax, and the weighted sum of V.
constexpr int TILE = 16;
constexpr int DIM = 16;
constexpr int MAX_KEYS = 64;
constexpr float SOFTMAX_SCALE = 0.25f;

extern "C" __global__ void causal_attention(const __half* q, const __half* k, const __half* v,
                                            float* o) {
    __shared__ __align__(32) float scores[TILE][MAX_KEYS];
    __shared__ __align__(32) __half weights[TILE][MAX_KEYS];
    const int lane = threadIdx.x;
    const int first = blockIdx.x * TILE;
    const int tiles = blockIdx.x + 1;

    wmma::fragment<wmma::matrix_a, TILE, TILE, TILE, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::col_major> keys;
    wmma::fragment<wmma::accumulator, TILE, TILE, TILE, float> sums;
    wmma::load_matrix_sync(left, q + first * DIM, DIM);
    for (int tile = 0; tile < tiles; ++tile) {
        wmma::load_matrix_sync(keys, k + tile * TILE * DIM, DIM);
        wmma::fill_fragment(sums, 0.0f);
        wmma::mma_sync(sums, left, keys, sums);
        wmma::store_matrix_sync(&scores[0][tile * TILE], sums, MAX_KEYS, wmma::mem_row_major);
    }
    __syncwarp();

    if (lane < TILE) {
        const int visible = first + lane + 1;
        float row_max = scores[lane][0];
        for (int j = 1; j < visible; ++j) row_max = fmaxf(row_max, scores[lane][j]);
        float row_sum = 0.0f;
        for (int j = 0; j < visible; ++j) {
            row_sum += __expf((scores[lane][j] - row_max) * SOFTMAX_SCALE);
        }
        for (int j = 0; j < visible; ++j) {
            const float weight = __expf((scores[lane][j] - row_max) * SOFTMAX_SCALE) / row_sum;
            weights[lane][j] = __float2half(weight);
        }
    }
    __syncwarp();

    wmma::fragment<wmma::matrix_b, TILE, TILE, TILE, __half, wmma::row_major> values;
    wmma::fill_fragment(sums, 0.0f);
    for (int tile = 0; tile < tiles; ++tile) {
        wmma::load_matrix_sync(left, &weights[0][tile * TILE], MAX_KEYS);
        wmma::load_matrix_sync(values, v + tile * TILE * DIM, DIM);
        wmma::mma_sync(sums, left, values, sums);
    }
    wmma::store_matrix_sync(o + first * DIM, sums, DIM, wmma::mem_row_major);
}
