// Flash-style attention in f32: K and V tiles in shared memory, scores of a tile in shared memory,
// 4 threads a row share head_dim.
constexpr int kRows = 16, kCols = 16, kDim = 32, kPart = kDim / 4;

extern "C" __global__ void __launch_bounds__(64)
attention_flash_tiled(const float* __restrict__ Q, const float* __restrict__ K,
                      const float* __restrict__ V, float* __restrict__ O, int seq, float scale) {
    __shared__ float q[kRows][kDim + 1], k[kCols][kDim + 1], v[kCols][kDim], p[kRows][kCols];
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
    for (int i = threadIdx.x; i < kRows * kDim; i += 64)
        q[i / kDim][i % kDim] = Q[(blockIdx.x * kRows) * kDim + i] * scale;

    float m = -1e30f, l = 0.f, acc[kPart] = {};
    for (int first = 0; first < seq; first += kCols) {
        __syncthreads();
        for (int i = threadIdx.x; i < kCols * kDim; i += 64) {
            const bool inside = first + i / kDim < seq;
            k[i / kDim][i % kDim] = inside ? K[first * kDim + i] : 0.f;
            v[i / kDim][i % kDim] = inside ? V[first * kDim + i] : 0.f;
        }
        __syncthreads();
        float tile_max = -1e30f;
        for (int c = part; c < kCols; c += 4) {
            float s = 0.f;
            for (int d = 0; d < kDim; ++d) s += q[row][d] * k[c][d];
            if (first + c >= seq) s = -1e30f;
            p[row][c] = s;
            tile_max = fmaxf(tile_max, s);
        }
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, 1));
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffff, tile_max, 2));
        const float new_m = fmaxf(m, tile_max);
        const float shrink = __expf(m - new_m);
        m = new_m;
        __syncwarp();  // the four threads of a row are in one warp
        float sum = 0.f;
        for (int i = 0; i < kPart; ++i) acc[i] *= shrink;
        for (int c = 0; c < kCols; ++c) {
            const float e = __expf(p[row][c] - m);
            sum += e;
            for (int i = 0; i < kPart; ++i) acc[i] += e * v[c][part * kPart + i];
        }
        l = l * shrink + sum;
    }
    for (int i = 0; i < kPart; ++i)
        O[(blockIdx.x * kRows + row) * kDim + part * kPart + i] = acc[i] / l;
}
