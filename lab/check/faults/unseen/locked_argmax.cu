// The largest of n floats and its index. Each block reduces its part, then its first thread updates the
// result of the grid. The result has two words, so a lock protects it.
constexpr int THREADS = 128;

extern "C" __global__ void argmax(const float* x, int n, float* best, int* best_index, int* lock) {
    __shared__ float values[THREADS];
    __shared__ int indices[THREADS];
    const int t = threadIdx.x;
    float value = -1.0e30f;
    int index = -1;
    for (int i = blockIdx.x * THREADS + t; i < n; i += gridDim.x * THREADS) {
        if (x[i] > value) {
            value = x[i];
            index = i;
        }
    }
    values[t] = value;
    indices[t] = index;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (t < half && values[t + half] > values[t]) {
            values[t] = values[t + half];
            indices[t] = indices[t + half];
        }
        __syncthreads();
    }

    if (t == 0) {
        const float top = values[0];
        if (top > *best) {
            while (atomicCAS(lock, 0, 1) != 0) {
            }
            __threadfence();
            *best = top;
            *best_index = indices[0];
            __threadfence();
            atomicExch(lock, 0);
        }
    }
}
