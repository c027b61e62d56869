// Rows through a ring of two stages filled by cp.async, each row reversed. A stage may be filled
// again only after all warps have read it.
#include <cuda_pipeline.h>

extern "C" __global__ void race_stage_reuse(const float4* in, float4* out, int rows) {
    __shared__ float4 ring[2][128];
    const int tid = threadIdx.x;
    __pipeline_memcpy_async(&ring[0][tid], &in[tid], 16);
    __pipeline_commit();
    for (int row = 0; row < rows; ++row) {
        const float4* next = &in[(row + 1) * 128 + tid];
        __pipeline_wait_prior(0);
        __syncthreads();
        if (row + 1 < rows)
            __pipeline_memcpy_async(&ring[(row + 1) & 1][tid], next, 16);
        __pipeline_commit();
        const float4 v = ring[row & 1][127 - tid];
        out[row * 128 + tid] = make_float4(v.w, v.z, v.y, v.x);
    }
}
