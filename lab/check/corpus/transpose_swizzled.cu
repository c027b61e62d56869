// Transpose of 64-bit elements through an unpadded tile whose columns are swizzled by the row.
extern "C" __global__ void transpose_swizzled(const double* __restrict__ in,
                                              double* __restrict__ out, int n) {
    __shared__ double tile[16][16];
    const int tx = threadIdx.x, ty = threadIdx.y;
    tile[ty][tx ^ ty] = in[(blockIdx.y * 16 + ty) * n + blockIdx.x * 16 + tx];
    __syncthreads();
    out[(blockIdx.x * 16 + ty) * n + blockIdx.y * 16 + tx] = tile[tx][ty ^ tx];
}
