// fault: missing-wait
// Two groups of copies are on their way; the last turn must wait for all of them.
#include <cuda_pipeline.h>

extern "C" __global__ void wait_one_short(const float* in, float* out, int rows) {
    __shared__ float stage[2][96];
    const int tid = threadIdx.x;
    float sum = 0.f;
    __pipeline_memcpy_async(&stage[0][tid], &in[tid], 4);
    __pipeline_commit();
    for (int row = 0; row < rows; ++row) {
        if (row + 1 < rows) {
            const float* next = &in[(row + 1) * 96 + tid];
            __pipeline_memcpy_async(&stage[(row + 1) & 1][tid], next, 4);  // FAULT
            __pipeline_commit();
        }
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += stage[row & 1][95 - tid];  // FAULT
        __syncthreads();
    }
    out[tid] = sum;
}
