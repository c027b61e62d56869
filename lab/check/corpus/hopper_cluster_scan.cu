// Sums by clusters of four blocks: each block sends its sum to the block that comes after it, and to the first.
#include <stdint.h>

constexpr int BLOCKS = 4;

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ uint32_t rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ uint32_t in_block(uint32_t at, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

__device__ __forceinline__ void all_blocks() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) hopper_cluster_scan(const float* x, float* sums, float* total) {
    __shared__ float sum_of[BLOCKS];
    __shared__ float part[4];
    float sum = x[blockIdx.x * 128 + threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    all_blocks();
    if (threadIdx.x < BLOCKS) {
        const float mine = part[0] + part[1] + part[2] + part[3];
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(in_block(address(&sum_of[rank()]), threadIdx.x)), "f"(mine)
                     : "memory");
    }
    all_blocks();
    if (threadIdx.x == 0) {
        float before = 0;
        for (int i = 0; i < (int)rank(); i++) before += sum_of[i];
        sums[blockIdx.x] = before;
        if (rank() == 0) total[blockIdx.x / BLOCKS] = sum_of[0] + sum_of[1] + sum_of[2] + sum_of[3];
    }
}
