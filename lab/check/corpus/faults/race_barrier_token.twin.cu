// cuda::barrier: to arrive is not to wait.
#include <cuda/barrier>

extern "C" __global__ void race_barrier_token(const float* x, float* out) {
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    __shared__ float s[64];
    const int tid = threadIdx.x;
    if (tid == 0) init(&ready, 64);
    __syncthreads();
    s[tid] = x[tid] * 2.f;
    auto token = ready.arrive();
    ready.wait(cuda::std::move(token));
    out[tid] = s[63 - tid];
}
