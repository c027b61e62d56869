// cuda::barrier of a block: threads arrive, do other work, and wait; then they read what the others
// wrote. Phases alternate between two buffers.
#include <cuda/barrier>

using Barrier = cuda::barrier<cuda::thread_scope_block>;

extern "C" __global__ void cuda_barrier_block(const float* x, float* out, int steps) {
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ Barrier bar;
    __shared__ float cell[2][64];
    const int tid = threadIdx.x;
    if (tid == 0) init(&bar, blockDim.x);
    __syncthreads();

    float mine = x[blockIdx.x * 64 + tid], seen = 0.f;
    for (int s = 0; s < steps; ++s) {
        cell[s & 1][tid] = mine;
        Barrier::arrival_token token = bar.arrive();
        seen += mine;  // needs no other thread
        bar.wait(cuda::std::move(token));
        mine = 0.5f * mine + 0.25f * (cell[s & 1][(tid + 1) % 64] + cell[s & 1][(tid + 63) % 64]);
    }
    out[blockIdx.x * 64 + tid] = mine + seen;
}
