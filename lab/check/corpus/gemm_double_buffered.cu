// C = A B with two tiles in shared memory: the next one is loaded into registers while this one is
// multiplied, and one barrier per tile is enough.
constexpr int kTile = 16;

extern "C" __global__ void gemm_double_buffered(const float* __restrict__ A,
                                                const float* __restrict__ B,
                                                float* __restrict__ C, int N, int K) {
    __shared__ float a[2][kTile][kTile + 1];
    __shared__ float b[2][kTile][kTile];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const float* from_a = A + (blockIdx.y * kTile + ty) * K + tx;
    const float* from_b = B + ty * N + blockIdx.x * kTile + tx;

    a[0][ty][tx] = from_a[0];
    b[0][ty][tx] = from_b[0];
    __syncthreads();

    float acc = 0.0f;
    const int tiles = K / kTile;
    for (int t = 0; t < tiles; ++t) {
        const int now = t & 1;
        float next_a, next_b;
        if (t + 1 < tiles) {
            next_a = from_a[(t + 1) * kTile];
            next_b = from_b[(t + 1) * kTile * N];
        }
#pragma unroll
        for (int k = 0; k < kTile; ++k) acc = fmaf(a[now][ty][k], b[now][k][tx], acc);
        if (t + 1 < tiles) {
            a[now ^ 1][ty][tx] = next_a;
            b[now ^ 1][ty][tx] = next_b;
        }
        __syncthreads();
    }
    C[(blockIdx.y * kTile + ty) * N + blockIdx.x * kTile + tx] = acc;
}
