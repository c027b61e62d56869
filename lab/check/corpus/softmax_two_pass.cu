// Softmax of rows, a block a row: the maximum, then the sum of exponentials, then the quotients.
#include <math_constants.h>

__device__ float block_reduce(float v, bool maximum, float* shared) {
    const int tid = threadIdx.x;
    shared[tid] = v;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) {
            const float other = shared[tid + s];
            shared[tid] = maximum ? fmaxf(shared[tid], other) : shared[tid] + other;
        }
        __syncthreads();
    }
    const float result = shared[0];
    __syncthreads();  // the next reduction writes
    return result;
}

extern "C" __global__ void softmax_two_pass(const float* x, float* y, int cols) {
    __shared__ float shared[128];
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;

    float most = -CUDART_INF_F;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) most = fmaxf(most, in[c]);
    most = block_reduce(most, true, shared);

    float sum = 0.f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += expf(in[c] - most);
    sum = block_reduce(sum, false, shared);

    for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c] = expf(in[c] - most) / sum;
}
