// Threads write shared memory that a bulk copy stores: the copy is of another proxy, so a barrier is not enough.
#include <stdint.h>

extern "C" __global__ void hopper_no_proxy_fence(const float* x, float* out) {
    __shared__ alignas(128) float s[128];
    s[127 - threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x] * 2;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + blockIdx.x * 128),
                     "r"((uint32_t)__cvta_generic_to_shared(s)), "r"(512)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
}
