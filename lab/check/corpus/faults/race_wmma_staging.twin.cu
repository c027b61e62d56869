// Each of two warps stores a 16x16 product in shared memory; then all threads add pairs of rows of
// both tiles.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda::wmma;

extern "C" __global__ void race_wmma_staging(const half* a, const half* b, float* out) {
    __shared__ __align__(32) float staged[2][256];
    const int warp = threadIdx.x / 32;
    fragment<matrix_a, 16, 16, 16, half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, half, row_major> fb;
    fragment<accumulator, 16, 16, 16, float> c;
    fill_fragment(c, 0.f);
    load_matrix_sync(fa, a + warp * 256, 16);
    load_matrix_sync(fb, b + warp * 256, 16);
    mma_sync(c, fa, fb, c);
    store_matrix_sync(staged[warp], c, 16, mem_row_major);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 64) {
        out[i] = staged[0][i] + staged[1][255 - i];
    }
}
