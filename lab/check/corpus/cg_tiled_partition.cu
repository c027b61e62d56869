// Rows of 8 columns, a tile of 8 threads a row: normalised to unit length; the tile's leader also
// writes its largest index by shuffles.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

template <int kTile>
__device__ float tile_sum(cg::thread_block_tile<kTile> g, float v) {
    for (int i = g.size() / 2; i > 0; i /= 2) v += g.shfl_xor(v, i);
    return v;
}

extern "C" __global__ void cg_tiled_partition(const float* x, float* y, int* largest) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    const int row = blockIdx.x * tile.meta_group_size() + tile.meta_group_rank();
    const float v = x[row * 8 + tile.thread_rank()];
    y[row * 8 + tile.thread_rank()] = v * rsqrtf(tile_sum<8>(tile, v * v));

    float best = v;
    int at = tile.thread_rank();
    for (int d = 4; d > 0; d >>= 1) {
        const float other = tile.shfl_down(best, d);
        const int other_at = tile.shfl_down(at, d);
        if (other > best) {
            best = other;
            at = other_at;
        }
    }
    if (tile.thread_rank() == 0) largest[row] = at;
}
