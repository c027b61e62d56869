// Maximum and sum of each block by cooperative groups: cg::reduce in tiles, then over the tiles.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

extern "C" __global__ void reduce_cg(const int* __restrict__ x, int* __restrict__ sums,
                                     int* __restrict__ maxima) {
    __shared__ int tile_sum[4];
    __shared__ int tile_max[4];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> tile = cg::tiled_partition<32>(block);

    const int value = x[block.group_index().x * block.size() + block.thread_rank()];
    const int sum = cg::reduce(tile, value, cg::plus<int>());
    const int most = cg::reduce(tile, value, cg::greater<int>());
    if (tile.thread_rank() == 0) {
        tile_sum[tile.meta_group_rank()] = sum;
        tile_max[tile.meta_group_rank()] = most;
    }
    block.sync();

    if (block.thread_rank() == 0) {
        int s = 0, m = tile_max[0];
        for (int t = 0; t < tile.meta_group_size(); ++t) {
            s += tile_sum[t];
            m = max(m, tile_max[t]);
        }
        sums[blockIdx.x] = s;
        maxima[blockIdx.x] = m;
    }
}
