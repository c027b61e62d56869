// C = alpha A B + beta C, a thread an element of C.
extern "C" __global__ void gemm_naive(int M, int N, int K, float alpha, const float* A,
                                      const float* B, float beta, float* C) {
    const unsigned row = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || col >= N) return;
    float acc = 0.0;
    for (int k = 0; k < K; ++k) acc += A[row * K + k] * B[k * N + col];
    C[row * N + col] = alpha * acc + beta * C[row * N + col];
}
