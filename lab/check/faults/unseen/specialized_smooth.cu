// Smooths rows of 96 floats with the weights 1/4, 1/2, 1/4. Warp 0 copies rows to two stages of shared
// memory. Warps 1 to 3 compute. Named barriers hand the stages over: a FULL one says that a row is
// there, an EMPTY one that its stage may be filled again.
constexpr int WIDTH = 96;
constexpr int STAGES = 2;
constexpr int FULL = 1;
constexpr int EMPTY = FULL + STAGES;

__device__ __forceinline__ void wait_at(int barrier) {
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_at(int barrier) {
    __threadfence_block();
    asm volatile("bar.arrive %0, 128;" ::"r"(barrier) : "memory");
}

extern "C" __global__ void smooth_rows(const float* x, float* y, int rows) {
    __shared__ float stages[STAGES][WIDTH];
    x += blockIdx.x * rows * WIDTH;
    y += blockIdx.x * rows * WIDTH;

    if (threadIdx.x < 32) {
        for (int row = 0; row < rows; ++row) {
            const int stage = row % STAGES;
            if (row >= STAGES) wait_at(EMPTY + stage);
            for (int c = threadIdx.x; c < WIDTH; c += 32) {
                stages[stage][c] = x[row * WIDTH + c];
            }
            arrive_at(FULL + stage);
        }
    } else {
        const int c = threadIdx.x - 32;
        const int left = max(c - 1, 0);
        const int right = min(c + 1, WIDTH - 1);
        for (int row = 0; row < rows; ++row) {
            const int stage = row % STAGES;
            wait_at(FULL + stage);
            if (row + STAGES < rows) arrive_at(EMPTY + stage);
            const float sides = stages[stage][left] + stages[stage][right];
            const float middle = stages[stage][c];
            y[row * WIDTH + c] = 0.25f * sides + 0.5f * middle;
        }
    }
}
