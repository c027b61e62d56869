// Vectors of four over a length that is no multiple of four: the last elements go alone.
extern "C" __global__ void bounds_global_tail(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n / 4) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(y)[i] = make_float4(-v.x, -v.y, -v.z, -v.w);
    }
    if (i < n % 4) y[n / 4 * 4 + i] = -x[n / 4 * 4 + i];
}
