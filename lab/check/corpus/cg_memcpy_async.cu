// cg::memcpy_async of a block's tile, waited for by the group.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>

namespace cg = cooperative_groups;

extern "C" __global__ void cg_memcpy_async(const float* in, float* out) {
    __shared__ alignas(16) float tile[128];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, in + blockIdx.x * 128, sizeof(float) * 128);
    cg::wait(block);
    const int i = block.thread_rank();
    out[blockIdx.x * 128 + i] = tile[127 - i] * (i % 2 ? -1.f : 1.f);
}
