// Column sums over all blocks: each block adds its row of sums to the result by one bulk reduction.
#include <stdint.h>

constexpr int COLUMNS = 128;

extern "C" __global__ void hopper_bulk_reduce(const float* x, float* out, int rows) {
    __shared__ alignas(128) float sums[COLUMNS];
    float sum = 0;
    for (int row = 0; row < rows; row++) sum += x[(blockIdx.x * rows + row) * COLUMNS + threadIdx.x];
    sums[threadIdx.x] = sum;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(out),
                     "r"((uint32_t)__cvta_generic_to_shared(sums)), "r"(COLUMNS * 4)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}
