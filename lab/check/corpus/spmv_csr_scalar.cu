// Sparse matrix times vector (CSR), a thread a row, in doubles.
extern "C" __global__ void spmv_csr_scalar(int rows, const int* __restrict__ row_start,
                                           const int* __restrict__ columns,
                                           const double* __restrict__ values,
                                           const double* __restrict__ x, double* __restrict__ y) {
    for (int r = blockIdx.x * blockDim.x + threadIdx.x; r < rows; r += blockDim.x * gridDim.x) {
        double dot = 0;
        for (int e = row_start[r]; e < row_start[r + 1]; ++e) dot += values[e] * x[columns[e]];
        y[r] = dot;
    }
}
