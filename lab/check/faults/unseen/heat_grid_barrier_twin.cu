// Explicit steps of the 1D heat equation, all in one launch, and the energy at the end. Two rows of
// global memory take turns, and a barrier of all blocks separates the steps. A block is one warp. All
// blocks must be resident. `arrived` begins with 0.
__device__ void grid_barrier(unsigned* arrived, unsigned goal) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) < goal) {
        }
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void heat(float* rows, int n, int steps, unsigned* arrived, float* energy) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = 0.0f;
    for (int step = 0; step < steps; ++step) {
        const float* now = rows + (step % 2) * n;
        float* next = rows + ((step + 1) % 2) * n;
        if (i < n) {
            const float left = now[max(i - 1, 0)];
            const float right = now[min(i + 1, n - 1)];
            value = now[i] + 0.25f * (left - 2.0f * now[i] + right);
            next[i] = value;
        }
        grid_barrier(arrived, (step + 1) * gridDim.x);
    }

    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    if (threadIdx.x == 0) atomicAdd(energy, value);
}
