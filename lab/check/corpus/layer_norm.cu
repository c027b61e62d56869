// Layer norm of rows: mean and variance by two sums, then scale and shift; float4 accesses.
template <typename T>
__device__ __forceinline__ T all_sum(T v, T* shared) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    T sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += shared[w];
    __syncthreads();
    return sum;
}

extern "C" __global__ void layer_norm(const float4* x, const float4* gamma, const float4* beta,
                                      float4* y, float* mean_out, float* rstd_out, float eps) {
    __shared__ float shared[4];
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    const float inv = 1.f / (blockDim.x * 4);
    float4 v = x[at];
    const float mean = all_sum(v.x + v.y + v.z + v.w, shared) * inv;
    v.x -= mean;
    v.y -= mean;
    v.z -= mean;
    v.w -= mean;
    const float square = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    const float rstd = rsqrtf(all_sum(square, shared) * inv + eps);

    const float4 g = gamma[threadIdx.x], b = beta[threadIdx.x];
    y[at] = make_float4(v.x * rstd * g.x + b.x, v.y * rstd * g.y + b.y, v.z * rstd * g.z + b.z,
                        v.w * rstd * g.w + b.w);
    if (threadIdx.x == 0) {
        mean_out[blockIdx.x] = mean;
        rstd_out[blockIdx.x] = rstd;
    }
}
