// y = A * x with the columns split between blocks. Each block writes the partial sums of its columns to
// a workspace, and the block that ends last adds them up in a fixed order. `chunk` columns belong to a
// split; the last splits may have fewer, or none.
extern "C" __global__ void split_k_gemv(const float* a, const float* x, float* y, int rows,
                                        int columns, int chunk, float* workspace,
                                        unsigned* finished) {
    __shared__ bool is_last;
    const int split = blockIdx.x;
    const int begin = split * chunk;
    const int end = min(begin + chunk, columns);

    if (begin < end) {
        for (int row = threadIdx.x; row < rows; row += blockDim.x) {
            float sum = 0.0f;
            for (int c = begin; c < end; ++c) sum += a[row * columns + c] * x[c];
            workspace[split * rows + row] = sum;
        }
    }

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned before = atomicAdd(finished, 1u);
        is_last = before == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;

    __threadfence();
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
        float sum = 0.0f;
        for (int s = 0; s < (int)gridDim.x; ++s) sum += workspace[s * rows + row];
        y[row] = sum;
    }
}
