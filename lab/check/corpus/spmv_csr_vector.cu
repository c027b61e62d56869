// Sparse matrix times vector (CSR), 8 lanes a row.
template <int kLanes>
__global__ void spmv_csr_vector(int rows, const int* row_start, const int* columns,
                                const float* values, const float* x, float* y) {
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = thread / kLanes, lane = thread % kLanes;
    float sum = 0.f;
    if (row < rows) {
        const int end = row_start[row + 1];
        for (int e = row_start[row] + lane; e < end; e += kLanes)
            sum += values[e] * __ldg(x + columns[e]);
    }
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffff, sum, d, kLanes);
    if (row < rows && lane == 0) y[row] = sum;
}

template __global__ void spmv_csr_vector<8>(int, const int*, const int*, const float*, const float*,
                                            float*);
