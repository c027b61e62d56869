// Filter with warp-aggregated atomics: the threads that are here form a group, its leader reserves
// places for all of them.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

__device__ int reserve(int* counter) {
    cg::coalesced_group active = cg::coalesced_threads();
    int first = 0;
    if (active.thread_rank() == 0) first = atomicAdd(counter, active.size());
    return active.shfl(first, 0) + active.thread_rank();
}

extern "C" __global__ void cg_coalesced(const int* in, int* out, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int v = in[i];
    if (v > 0) out[reserve(count)] = v;
}
