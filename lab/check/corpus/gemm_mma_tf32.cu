// C = A B with mma.sync m16n8k8 in tf32, operands rounded by cvt.rna; B is read by columns.
__device__ __forceinline__ unsigned tf32(float x) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

extern "C" __global__ void gemm_mma_tf32(const float* A, const float* B, float* C, int N, int K) {
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    const float* a = A + (blockIdx.y * 16 + g) * K + t;
    const float* b = B + t * N + blockIdx.x * 8 + g;
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (int k = 0; k < K; k += 8) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
            : "r"(tf32(a[k])), "r"(tf32(a[8 * K + k])), "r"(tf32(a[k + 4])),
              "r"(tf32(a[8 * K + k + 4])), "r"(tf32(b[k * N])), "r"(tf32(b[(k + 4) * N])));
    }
    float* c = C + (blockIdx.y * 16 + g) * N + blockIdx.x * 8 + t * 2;
    c[0] = d0;
    c[1] = d1;
    c[8 * N] = d2;
    c[8 * N + 1] = d3;
}
