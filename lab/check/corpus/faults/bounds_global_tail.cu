// fault: out-of-bounds-global
// Vectors of four over a length that is no multiple of four: the last elements go alone.
extern "C" __global__ void bounds_global_tail(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (n + 3) / 4) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];  // FAULT
        reinterpret_cast<float4*>(y)[i] = make_float4(-v.x, -v.y, -v.z, -v.w);  // FAULT
    }
}
