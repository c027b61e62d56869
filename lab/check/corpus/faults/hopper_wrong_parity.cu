// fault: wrong-phase
// Two copies one after the other into the same buffer: the second is waited for by the parity of the first.
#include <stdint.h>

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

extern "C" __global__ void hopper_wrong_parity(const float* x, float* out) {
    __shared__ alignas(128) float s[64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    float sum = 0;
    for (int round = 0; round < 3; round++) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(address(&full)) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             address(s)),
                         "l"(x + round * 64), "r"(256), "r"(address(&full))
                         : "memory");
        }
        uint32_t done = 0;
        while (!done)
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                : "=r"(done)
                : "r"(address(&full)), "r"(0)  // FAULT
                : "memory");
        sum = sum * 2 + s[threadIdx.x];  // FAULT
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}
