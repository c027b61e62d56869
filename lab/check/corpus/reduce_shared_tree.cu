// Sum of each block's elements: a tree in dynamic shared memory, halved with a barrier each time.
extern "C" __global__ void reduce_shared_tree(const float* __restrict__ x, float* __restrict__ out,
                                              int n) {
    extern __shared__ float partial[];
    const int tid = threadIdx.x;
    const int i = blockIdx.x * blockDim.x * 2 + tid;

    float sum = i < n ? x[i] : 0.f;
    if (i + blockDim.x < n) sum += x[i + blockDim.x];
    partial[tid] = sum;
    __syncthreads();

    for (unsigned stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (tid < stride) partial[tid] += partial[tid + stride];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = partial[0];
}
