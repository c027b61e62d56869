#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Sorts runs of 64 keys in ascending order with a bitonic network. One warp owns one run: each lane
// compares one pair in every round. Four warps of a block work independently of each other.
constexpr int RUN = 64;
constexpr int WARPS = 4;

extern "C" __global__ void sort_runs(float* keys, int runs) {
    __shared__ float data[WARPS][RUN];
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const int lane = warp.thread_rank();
    const int slot = threadIdx.x / 32;
    const int run = blockIdx.x * WARPS + slot;
    if (run >= runs) return;

    float* mine = data[slot];
    float* source = keys + run * RUN;
    mine[lane] = source[lane];
    mine[lane + 32] = source[lane + 32];
    warp.sync();

    for (int size = 2; size <= RUN; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            const int low = 2 * lane - (lane & (stride - 1));
            const int high = low + stride;
            const bool ascending = (low & size) == 0;
            const float x = mine[low];
            const float y = mine[high];
            if ((x > y) == ascending) {
                mine[low] = y;
                mine[high] = x;
            }
            warp.sync();
        }
    }

    source[lane] = mine[lane];
    source[lane + 32] = mine[lane + 32];
}
