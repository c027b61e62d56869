// A transpose by tensor maps: a box is loaded, transposed in shared memory, and stored as a box of the result.
#include <cuda.h>
#include <stdint.h>

constexpr int TILE = 32;

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

extern "C" __global__ void hopper_tma_transpose(const __grid_constant__ CUtensorMap from,
                                                const __grid_constant__ CUtensorMap to) {
    __shared__ alignas(128) float in[TILE][TILE];
    __shared__ alignas(128) float out[TILE][TILE];
    __shared__ uint64_t full;
    const int row = blockIdx.y * TILE, col = blockIdx.x * TILE;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&from) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full)), "n"(sizeof(in))
                     : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3}], [%4];" ::"r"(address(in)),
            "l"(&from), "r"(col), "r"(row), "r"(address(&full))
            : "memory");
    }
    __syncthreads();
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], 0, 0x989680;\n"
            "selp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(address(&full))
            : "memory");
    }
    for (int y = threadIdx.y; y < TILE; y += blockDim.y) out[threadIdx.x][y] = in[y][threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
                     "r"(row), "r"(col), "r"(address(out))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
