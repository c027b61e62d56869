// h = x + residual, and the layer norm of h, for rows of 16 floats. Half a warp owns a row, so a warp
// works on two rows at once, and the sums stay in registers.
constexpr int WIDTH = 16;
constexpr float EPSILON = 1.0e-5f;

__device__ float row_sum(float value, unsigned lanes) {
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(lanes, value, distance, WIDTH);
    }
    return value;
}

extern "C" __global__ void layer_norm(const float* x, const float* residual, const float* gamma,
                                      const float* beta, float* h, float* y, int rows) {
    const int column = threadIdx.x % WIDTH;
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = thread / WIDTH;
    const unsigned lanes = 0x0000ffffu << (threadIdx.x & 16);
    if (row >= rows) return;

    const int at = row * WIDTH + column;
    const float value = x[at] + residual[at];
    h[at] = value;

    const float mean = row_sum(value, lanes) / WIDTH;
    const float centered = value - mean;
    const float variance = row_sum(centered * centered, lanes) / WIDTH;
    const float scaled = centered * rsqrtf(variance + EPSILON);
    y[at] = scaled * gamma[column] + beta[column];
}
