// fault: product-in-flight
// Sums of a warpgroup's product are stored before the product has been waited for.
#include <cuda_fp16.h>
#include <stdint.h>

// Rows of 16 bytes, eight of them a matrix: 128 bytes to the next matrix along k, 256 to the next eight rows.
__device__ __forceinline__ uint64_t descriptor(const void* p) {
    const uint64_t at = __cvta_generic_to_shared(p);
    return (at >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
}

extern "C" __global__ void hopper_no_product_wait(const half* A, const half* B, float* C) {
    __shared__ alignas(128) half a[64 * 16];
    __shared__ alignas(128) half b[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) a[i / 128 * 128 + i / 8 % 2 * 64 + i / 16 % 8 * 8 + i % 8] = A[i];
    b[threadIdx.x / 8 % 2 * 64 + threadIdx.x / 16 * 8 + threadIdx.x % 8] = B[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4] = {};
    // The sums are zeros before the fence.
    asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(descriptor(a)), "l"(descriptor(b)));  // FAULT
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++) C[(row + i / 2 * 8) * 8 + col + i % 2] = d[i];  // FAULT
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
