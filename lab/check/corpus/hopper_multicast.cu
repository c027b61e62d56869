// Clusters of two blocks that share what one of them loads: a multicast of a box, then each its own sums.
#include <cuda.h>
#include <stdint.h>

constexpr int ROWS = 16, COLUMNS = 64;

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

extern "C" __global__ void __cluster_dims__(2, 1, 1)
    hopper_multicast(const __grid_constant__ CUtensorMap x, const float* weights, float* out) {
    __shared__ alignas(128) float box[ROWS][COLUMNS];
    __shared__ uint64_t full;
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full)), "n"(sizeof(box))
                     : "memory");
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0 && rank == 0) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(address(box)),
            "l"(&x), "r"(0), "r"(blockIdx.x / 2 * ROWS), "r"(address(&full)), "h"((uint16_t)3)
            : "memory");
    }
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
            "selp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(address(&full))
            : "memory");
    float sum = 0;
    for (int row = 0; row < ROWS; row++) sum += box[row][threadIdx.x] * weights[rank * ROWS + row];
    out[blockIdx.x * COLUMNS + threadIdx.x] = sum;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
