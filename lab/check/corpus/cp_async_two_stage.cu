// Moving average over columns: __pipeline_memcpy_async fills one of two stages while the other one
// is used. Rows stream through.
#include <cuda_pipeline.h>

#define COLS 128

extern "C" __global__ void cp_async_two_stage(const float* in, float* out, int rows) {
    __shared__ __align__(16) float stage[2][COLS];
    const int tid = threadIdx.x;  // 32 threads, 16 bytes each
    auto fetch = [&](int row) {
        __pipeline_memcpy_async(&stage[row & 1][tid * 4], &in[row * COLS + tid * 4], 16);
        __pipeline_commit();
    };

    fetch(0);
    for (int row = 0; row < rows; ++row) {
        if (row + 1 < rows) {
            fetch(row + 1);
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        for (int c = tid; c < COLS; c += 32) {
            const float left = stage[row & 1][c == 0 ? 0 : c - 1];
            const float right = stage[row & 1][c == COLS - 1 ? c : c + 1];
            out[row * COLS + c] = (left + stage[row & 1][c] + right) / 3.f;
        }
        __syncthreads();
    }
}
