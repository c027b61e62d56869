// fault: shared-race
// Tiled product: a tile may be loaded only after all threads have used the one before it.
#define T 16

extern "C" __global__ void race_tile_war(const float* A, const float* B, float* C, int N, int K) {
    __shared__ float a[T][T], b[T][T];
    const int tx = threadIdx.x, ty = threadIdx.y;
    float acc = 0.f;
    for (int k0 = 0; k0 < K; k0 += T) {
        a[ty][tx] = A[ty * K + k0 + tx];  // FAULT
        b[ty][tx] = B[(k0 + ty) * N + blockIdx.x * T + tx];  // FAULT
        __syncthreads();
        for (int k = 0; k < T; ++k) acc += a[ty][k] * b[k][tx];  // FAULT
    }
    C[ty * N + blockIdx.x * T + tx] = acc;
}
