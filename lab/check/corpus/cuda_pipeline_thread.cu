// cuda::pipeline of thread scope: each thread stages its own elements two batches ahead.
#include <cuda/pipeline>

constexpr int kStages = 2;

extern "C" __global__ void cuda_pipeline_thread(const int2* in, int2* out, int batches) {
    __shared__ int2 buffer[kStages][64];
    auto pipe = cuda::make_pipeline();
    const int tid = threadIdx.x;
    const int2* from = in + blockIdx.x * 64 * batches;
    int2* to = out + blockIdx.x * 64 * batches;

    for (int compute = 0, fetch = 0; compute < batches; ++compute) {
        for (; fetch < batches && fetch < compute + kStages; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(&buffer[fetch % kStages][tid], &from[fetch * 64 + tid],
                               cuda::aligned_size_t<8>(8), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        const int2 v = buffer[compute % kStages][tid];
        to[compute * 64 + tid] = make_int2(v.x + v.y, v.x - v.y);
        pipe.consumer_release();
    }
}
