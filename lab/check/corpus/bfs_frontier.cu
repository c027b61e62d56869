// Breadth-first search in one block: levels by atomicCAS, frontiers in shared memory.
#define MOST 128

extern "C" __global__ void bfs_frontier(const int* row_start, const int* edges, int* level,
                                        int root) {
    __shared__ int frontier[2][MOST];
    __shared__ int size[2];
    if (threadIdx.x == 0) {
        frontier[0][0] = root;
        size[0] = 1;
        size[1] = 0;
        level[root] = 0;
    }
    __syncthreads();
    for (int depth = 1, now = 0; size[now] > 0; ++depth, now ^= 1) {
        for (int f = threadIdx.x; f < size[now]; f += blockDim.x) {
            const int node = frontier[now][f];
            for (int e = row_start[node]; e < row_start[node + 1]; ++e) {
                const int to = edges[e];
                if (atomicCAS(&level[to], -1, depth) == -1)
                    frontier[now ^ 1][atomicAdd(&size[now ^ 1], 1)] = to;
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) size[now] = 0;
        __syncthreads();
    }
}
