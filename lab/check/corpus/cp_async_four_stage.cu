// f16 GEMM with four stages: 16-byte cp.async.cg, ldmatrix, mma.sync. Edges of K are zero-filled by
// the source size of cp.async. One warp, a tile of 16x8.
#include <cuda_fp16.h>

constexpr int kStages = 4, kDepth = 16;

struct Stage {
    alignas(16) half a[16][kDepth];
    alignas(16) half b[8][kDepth];
};

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool inside) {
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes));
}

extern "C" __global__ void cp_async_four_stage(const half* A, const half* B, float* C, int N,
                                               int K) {
    __shared__ Stage ring[kStages];
    const int lane = threadIdx.x, r = lane / 2, c = lane % 2 * 8;
    const int tiles = (K + kDepth - 1) / kDepth;
    A += blockIdx.y * 16 * K;
    B += blockIdx.x * 8 * K;

    auto fetch = [&](int t) {
        Stage& stage = ring[t % kStages];
        const bool inside = t * kDepth + c < K;
        const int k = inside ? t * kDepth + c : 0;
        cp_async_16(&stage.a[r][c], &A[r * K + k], inside);
        if (r < 8) cp_async_16(&stage.b[r][c], &B[r * K + k], inside);
    };
    for (int t = 0; t < kStages - 1; ++t) {
        if (t < tiles) fetch(t);
        asm volatile("cp.async.commit_group;");
    }

    float d[4] = {};
    for (int t = 0; t < tiles; ++t) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
        __syncwarp();
        if (t + kStages - 1 < tiles) fetch(t + kStages - 1);
        asm volatile("cp.async.commit_group;");
        const Stage& s = ring[t % kStages];
        unsigned a[4], b[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(shared_address(&s.a[lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(b[0]), "=r"(b[1])
                     : "r"(shared_address(&s.b[lane % 8][lane / 8 % 2 * 8])));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    float* out = C + (blockIdx.y * 16 + lane / 4) * N + blockIdx.x * 8 + lane % 4 * 2;
    *(float2*)out = make_float2(d[0], d[1]);
    *(float2*)(out + 8 * N) = make_float2(d[2], d[3]);
}
