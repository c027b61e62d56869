// Convolution of rows with a filter in constant memory that the host sets; the halo is staged.
#define RADIUS 3

__constant__ float filter[2 * RADIUS + 1];

extern "C" __global__ void convolution_constant(const float* in, float* out, int n) {
    __shared__ float s[64 + 2 * RADIUS];
    const int first = blockIdx.x * blockDim.x - RADIUS;
    for (int i = threadIdx.x; i < blockDim.x + 2 * RADIUS; i += blockDim.x) {
        const int at = first + i;
        s[i] = at >= 0 && at < n ? in[at] : 0.0f;
    }
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
#pragma unroll
    for (int k = -RADIUS; k <= RADIUS; ++k) sum += filter[RADIUS + k] * s[threadIdx.x + RADIUS + k];
    if (i < n) out[i] = sum;
}
