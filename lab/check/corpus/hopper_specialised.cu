// A warpgroup that copies and one that computes: full and empty mbarriers, elect.sync, setmaxnreg.
#include <stdint.h>

constexpr int TILE = 128, STAGES = 3;

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void wait(uint64_t* bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(address(bar)), "r"(parity)
            : "memory");
}

__device__ __forceinline__ bool elected() {
    uint32_t is_elected;
    asm volatile(
        "{\n.reg .pred p;\n.reg .b32 r;\nelect.sync r|p, %1;\nselp.b32 %0, 1, 0, p;\n}"
        : "=r"(is_elected)
        : "r"(0xffffffff));
    return is_elected;
}

extern "C" __global__ void __launch_bounds__(256, 2) hopper_specialised(const float* x, float* out, int tiles) {
    __shared__ alignas(128) float ring[STAGES][TILE];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&empty[s])), "r"(TILE));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 160 && elected()) {
            for (int tile = 0; tile < tiles; tile++) {
                const int stage = tile % STAGES;
                if (tile >= STAGES) wait(&empty[stage], (tile / STAGES - 1) & 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[stage])),
                             "r"(TILE * 4)
                             : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                                 address(ring[stage])),
                             "l"(x + tile * TILE), "r"(TILE * 4), "r"(address(&full[stage]))
                             : "memory");
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
        float sum = 0, most = 0;
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            wait(&full[stage], tile / STAGES & 1);
            const float it = ring[stage][TILE - 1 - threadIdx.x];
            sum += it;
            most = fmaxf(most, fabsf(it));
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&empty[stage])) : "memory");
        }
        out[threadIdx.x] = sum / most;
    }
}
