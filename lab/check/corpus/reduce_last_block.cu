// Sum of all elements in one launch: each block writes its partial sum, and the block that finishes
// last adds them (the fence orders the partial sum before the ticket).
__device__ unsigned int finished = 0;

extern "C" __global__ void reduce_last_block(const float* x, volatile float* partial, float* total,
                                             unsigned int n) {
    __shared__ float buffer[128];
    __shared__ bool is_last;
    const unsigned tid = threadIdx.x;

    float sum = 0.0f;
    for (unsigned i = blockIdx.x * blockDim.x + tid; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    buffer[tid] = sum;
    __syncthreads();
    for (int s = blockDim.x >> 1; s > 0; s >>= 1) {
        if (tid < s) buffer[tid] += buffer[tid + s];
        __syncthreads();
    }

    if (tid == 0) {
        partial[blockIdx.x] = buffer[0];
        __threadfence();
        const unsigned ticket = atomicInc(&finished, gridDim.x);
        is_last = ticket == gridDim.x - 1;
    }
    __syncthreads();

    if (is_last && tid == 0) {
        __threadfence();
        float all = 0.0f;
        for (int b = 0; b < gridDim.x; ++b) all += partial[b];
        *total = all;
        finished = 0;  // ready for the next launch
    }
}
