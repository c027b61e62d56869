// Sums over tiles that bulk copies bring through a ring of two stages: one thread copies, each stage has an mbarrier.
#include <stdint.h>

constexpr int TILE = 256, STAGES = 2;

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void copy(float* to, const float* from, uint64_t* full) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(full)), "r"(TILE * 4)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(to)),
                 "l"(from), "r"(TILE * 4), "r"(address(full))
                 : "memory");
}

__device__ __forceinline__ void wait(uint64_t* bar, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred p;\nLAB_WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(address(bar)),
        "r"(parity)
        : "memory");
}

extern "C" __global__ void hopper_bulk_ring(const float* x, float* out, int tiles) {
    __shared__ alignas(128) float ring[STAGES][TILE];
    __shared__ uint64_t full[STAGES];
    const float* mine = x + (size_t)blockIdx.x * tiles * TILE;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int s = 0; s < STAGES && s < tiles; s++) copy(ring[s], mine + s * TILE, &full[s]);
    }
    __syncthreads();
    float sum = 0;
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES;
        wait(&full[stage], tile / STAGES & 1);
        sum += ring[stage][threadIdx.x] * (tile + 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0 && tile + STAGES < tiles) copy(ring[stage], mine + (tile + STAGES) * TILE, &full[stage]);
    }
    out[blockIdx.x * TILE + threadIdx.x] = sum;
}
