// fault: missing-wait
// A bulk copy whose bytes the mbarrier must be told of: else its phase ends with the arrival alone.
#include <stdint.h>

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

extern "C" __global__ void hopper_no_expect_tx(const float* x, float* out) {
    __shared__ alignas(128) float s[128];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         address(s)),
                     "l"(x + blockIdx.x * 128), "r"(512), "r"(address(&full))
                     : "memory");
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&full)) : "memory");
    }
    __syncthreads();
    wait(&full, 0);
    out[blockIdx.x * 128 + threadIdx.x] = s[127 - threadIdx.x];  // FAULT
}
