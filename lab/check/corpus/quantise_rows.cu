// Rows to 8-bit integers by their largest magnitude; a block's maximum by atomicMax on bits.
extern "C" __global__ void quantise_rows(const float* x, char4* q, float* scales, int cols4) {
    __shared__ int most_bits;
    const float4* row = (const float4*)x + blockIdx.x * cols4;
    if (threadIdx.x == 0) most_bits = 0;
    __syncthreads();
    float most = 0.f;
    for (int c = threadIdx.x; c < cols4; c += blockDim.x) {
        const float4 v = row[c];
        most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    }
    atomicMax(&most_bits, __float_as_int(most));  // bits of positive floats are ordered
    __syncthreads();
    const float scale = __int_as_float(most_bits) / 127.f;
    const float inverse = scale > 0.f ? 1.f / scale : 0.f;
    for (int c = threadIdx.x; c < cols4; c += blockDim.x) {
        const float4 v = row[c];
        q[blockIdx.x * cols4 + c] =
            make_char4(__float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse),
                       __float2int_rn(v.z * inverse), __float2int_rn(v.w * inverse));
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}
