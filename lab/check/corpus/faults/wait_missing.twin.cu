// A tile by cp.async: a barrier alone does not wait for the copies.
#include <cuda_pipeline.h>

extern "C" __global__ void wait_missing(const int4* in, int* out) {
    __shared__ __align__(16) int tile[256];
    const int tid = threadIdx.x;
    __pipeline_memcpy_async(&tile[tid * 4], &in[tid], 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int i = tid; i < 256; i += 64) out[i] = tile[255 - i];
}
