// A step of the power iteration: y = A * x, and the squared norm of y. The matrix is in ELLPACK format:
// each row has `width` entries, stored one entry of all rows after the other. Rows with fewer entries
// are padded with the value 0 and the column -1.
constexpr int WARPS = 2;

__device__ float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

extern "C" __global__ void power_step(const float* values, const int* columns, const float* x, float* y,
                                      float* norm, int rows, int width) {
    __shared__ float squares[WARPS];
    const int t = threadIdx.x;
    const int row = blockIdx.x * blockDim.x + t;

    float sum = 0.0f;
    if (row < rows) {
        for (int entry = 0; entry < width; ++entry) {
            const int at = entry * rows + row;
            const int column = columns[at];
            if (column >= 0) sum = fmaf(values[at], x[column], sum);
        }
        y[row] = sum;
    }

    const float square = warp_sum(sum * sum);
    if (t % 32 == 0) squares[t / 32] = square;
    __syncthreads();
    if (t == 0) atomicAdd(norm, squares[0] + squares[1]);
}
