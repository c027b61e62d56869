// C = A B with 16-byte loads and stores: A is kept transposed in shared memory.
extern "C" __global__ void __launch_bounds__(64)
gemm_float4(const float* A, const float* B, float* C, int N, int K) {
    constexpr int BM = 32, BN = 32, BK = 8;
    __shared__ __align__(16) float As[BK][BM];
    __shared__ __align__(16) float Bs[BK][BN];
    const int t = threadIdx.x;
    const int row = (t / 8) * 4, col = (t % 8) * 4;

    float4 acc[4] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        const int ar = t / 2, ac = (t % 2) * 4;
        const float4 a =
            *reinterpret_cast<const float4*>(&A[(blockIdx.y * BM + ar) * K + k0 + ac]);
        As[ac + 0][ar] = a.x;
        As[ac + 1][ar] = a.y;
        As[ac + 2][ar] = a.z;
        As[ac + 3][ar] = a.w;
        const int br = t / 8, bc = (t % 8) * 4;
        *reinterpret_cast<float4*>(&Bs[br][bc]) =
            *reinterpret_cast<const float4*>(&B[(k0 + br) * N + blockIdx.x * BN + bc]);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            const float4 m = *reinterpret_cast<const float4*>(&As[k][row]);
            const float4 n = *reinterpret_cast<const float4*>(&Bs[k][col]);
            const float ms[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                acc[i].x += ms[i] * n.x;
                acc[i].y += ms[i] * n.y;
                acc[i].z += ms[i] * n.z;
                acc[i].w += ms[i] * n.w;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        *reinterpret_cast<float4*>(
            &C[(blockIdx.y * BM + row + i) * N + blockIdx.x * BN + col]) = acc[i];
}
