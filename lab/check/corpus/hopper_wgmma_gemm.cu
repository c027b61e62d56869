// C = A B^T in f16 with wgmma m64n64k16: tensor maps with a swizzle of 128 bytes, a ring of two stages.
#include <cuda.h>
#include <cuda_fp16.h>
#include <stdint.h>

constexpr int M = 64, N = 64, K = 64, STAGES = 2;

__device__ __forceinline__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ uint64_t descriptor(uint32_t at) {
    // A stride of 1024 bytes between groups of 8 rows, and a swizzle of 128 bytes.
    return (uint64_t)(at >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ __forceinline__ void load(uint32_t to, const CUtensorMap* map, int k, int row, uint32_t full) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(k), "r"(row), "r"(full)
        : "memory");
}

__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b, int scale_d) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(scale_d));
}

extern "C" __global__ void __launch_bounds__(128)
    hopper_wgmma_gemm(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint64_t full[STAGES];
    const uint32_t tiles = address(shared);
    const int steps = k / K;
    auto start = [&](int step) {
        const uint32_t bar = address(&full[step % STAGES]), a = tiles + step % STAGES * (M + N) * K * 2;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"((M + N) * K * 2)
                     : "memory");
        load(a, &A, step * K, blockIdx.y * M, bar);
        load(a + M * K * 2, &B, step * K, blockIdx.x * N, bar);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int s = 0; s < STAGES && s < steps; s++) start(s);
    }
    __syncthreads();
    float d[32] = {};
    for (int step = 0; step < steps; step++) {
        uint32_t done = 0;
        while (!done)
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                : "=r"(done)
                : "r"(address(&full[step % STAGES])), "r"(step / STAGES & 1)
                : "memory");
        const uint32_t a = tiles + step % STAGES * (M + N) * K * 2;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < K / 16; i++) wgmma(d, descriptor(a + i * 32), descriptor(a + M * K * 2 + i * 32), 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0 && step + STAGES < steps) start(step + STAGES);
    }
    const int row = blockIdx.y * M + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const int col = blockIdx.x * N + threadIdx.x % 4 * 2;
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++) C[(row + j / 2 * 8) * n + col + i * 8 + j % 2] = d[i * 4 + j];
}
