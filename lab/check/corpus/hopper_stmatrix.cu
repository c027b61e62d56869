// A product of mma.sync whose fragments stmatrix puts into shared memory, from where a bulk copy stores them.
#include <cuda_fp16.h>
#include <stdint.h>

extern "C" __global__ void hopper_stmatrix(const half* A, const half* B, half* C) {
    __shared__ alignas(128) half tile[2][16][8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const half* a = A + warp * 256;
    uint32_t d[2] = {0, 0};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(d[0]), "+r"(d[1])
        : "r"(*(const uint32_t*)&a[g * 16 + t * 2]), "r"(*(const uint32_t*)&a[(g + 8) * 16 + t * 2]),
          "r"(*(const uint32_t*)&a[g * 16 + t * 2 + 8]), "r"(*(const uint32_t*)&a[(g + 8) * 16 + t * 2 + 8]),
          "r"(*(const uint32_t*)&B[g * 16 + t * 2]), "r"(*(const uint32_t*)&B[g * 16 + t * 2 + 8]));
    const uint32_t row = (uint32_t)__cvta_generic_to_shared(&tile[warp][lane % 16][0]);
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(d[0]), "r"(d[1]) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(C),
                     "r"((uint32_t)__cvta_generic_to_shared(tile)), "r"((uint32_t)sizeof(tile))
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
}
