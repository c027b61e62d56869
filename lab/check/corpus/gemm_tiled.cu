// C = A B with 16x16 tiles in shared memory; ragged edges are filled with zeros.
#define TS 16

extern "C" __global__ void gemm_tiled(const float* A, const float* B, float* C, int M, int N,
                                      int K) {
    __shared__ float As[TS][TS];
    __shared__ float Bs[TS][TS];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TS + ty;
    const int col = blockIdx.x * TS + tx;
    float sum = 0.f;

    for (int t = 0; t < (K + TS - 1) / TS; ++t) {
        As[ty][tx] = (row < M && t * TS + tx < K) ? A[row * K + t * TS + tx] : 0.f;
        Bs[ty][tx] = (t * TS + ty < K && col < N) ? B[(t * TS + ty) * N + col] : 0.f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TS; ++k) sum += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    if (row < M && col < N) C[row * N + col] = sum;
}
