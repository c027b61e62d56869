#include <cuda_pipeline.h>

// C = A * B in f32, row-major. The sides are multiples of 16. A block computes 16 x 16 elements of C.
// While it multiplies one pair of tiles, the next pair is copied to the other stage.
constexpr int TILE = 16;

extern "C" __global__ void gemm(const float* __restrict__ a, const float* __restrict__ b,
                                float* __restrict__ c, int n, int k) {
    __shared__ float a_tile[2][TILE][TILE];
    __shared__ float b_tile[2][TILE][TILE];
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty;
    const int column = blockIdx.x * TILE + tx;
    const int steps = k / TILE;

    auto fetch = [&](int step) {
        const int stage = step & 1;
        const float* from_a = &a[row * k + step * TILE + tx];
        const float* from_b = &b[(step * TILE + ty) * n + column];
        __pipeline_memcpy_async(&a_tile[stage][ty][tx], from_a, sizeof(float));
        __pipeline_memcpy_async(&b_tile[stage][ty][tx], from_b, sizeof(float));
        __pipeline_commit();
    };

    fetch(0);
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        const int stage = step & 1;
        if (step + 1 < steps) {
            fetch(step + 1);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        for (int i = 0; i < TILE; ++i) {
            sum += a_tile[stage][ty][i] * b_tile[stage][i][tx];
        }
        __syncthreads();
    }
    c[row * n + column] = sum;
}
