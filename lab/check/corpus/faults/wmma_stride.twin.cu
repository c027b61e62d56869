// A product from a padded tile: the stride that wmma gets must be that of the tile.
#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda::wmma;

extern "C" __global__ void wmma_stride(const half* a, const half* b, float* c) {
    constexpr int kStride = 24;
    __shared__ __align__(32) half tile[16 * kStride];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i / 16 * kStride + i % 16] = a[i];
    const half zero = __float2half(0.f);
    for (int i = threadIdx.x; i < 128; i += 32) tile[i / 8 * kStride + 16 + i % 8] = zero;
    __syncwarp();
    fragment<matrix_a, 16, 16, 16, half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, half, row_major> fb;
    fragment<accumulator, 16, 16, 16, float> acc;
    fill_fragment(acc, 0.f);
    load_matrix_sync(fa, tile, kStride);
    load_matrix_sync(fb, b, 16);
    mma_sync(acc, fa, fb, acc);
    store_matrix_sync(c, acc, 16, mem_row_major);
}
