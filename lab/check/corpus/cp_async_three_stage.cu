// C = A B with a ring of three stages filled by inline cp.async: two tiles are on their way while
// one is multiplied, and a group is committed in every turn, also an empty one.
constexpr int kTile = 16, kStages = 3;

__device__ __forceinline__ void cp_async_4(void* shared, const void* global) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(at), "l"(global) : "memory");
}

extern "C" __global__ void cp_async_three_stage(const float* A, const float* B, float* C, int N,
                                                int K) {
    __shared__ float a[kStages][kTile][kTile], b[kStages][kTile][kTile];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * kTile + ty, col = blockIdx.x * kTile + tx;
    const int tiles = K / kTile;

    auto load = [&](int t) {
        if (t < tiles) {
            cp_async_4(&a[t % kStages][ty][tx], &A[row * K + t * kTile + tx]);
            cp_async_4(&b[t % kStages][ty][tx], &B[(t * kTile + ty) * N + col]);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    };
    for (int t = 0; t < kStages - 1; ++t) load(t);

    float acc = 0.f;
    for (int t = 0; t < tiles; ++t) {
        asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2) : "memory");
        __syncthreads();  // tile t is there, and all have finished with the stage to fill
        load(t + kStages - 1);
        for (int k = 0; k < kTile; ++k) acc += a[t % kStages][ty][k] * b[t % kStages][k][tx];
    }
    C[row * N + col] = acc;
}
