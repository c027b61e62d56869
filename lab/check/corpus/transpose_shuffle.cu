// Transpose of 8x8 blocks in registers: each of eight lanes holds a row, and
// three rounds of shuffles exchange halves, quarters and single elements.
__device__ __forceinline__ void exchange(float (&r)[8], int lane, int d) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (i & d) continue;
        const bool upper = lane & d;
        const float sent = upper ? r[i] : r[i + d];
        const float got = __shfl_xor_sync(0xffffffffu, sent, d);
        if (upper) r[i] = got;
        else r[i + d] = got;
    }
}

extern "C" __global__ void transpose_shuffle(const float4* in, float4* out) {
    const int lane = threadIdx.x & 7;
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    const float4 lo = in[row * 2], hi = in[row * 2 + 1];
    float r[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    exchange(r, lane, 4);
    exchange(r, lane, 2);
    exchange(r, lane, 1);
    out[row * 2] = make_float4(r[0], r[1], r[2], r[3]);
    out[row * 2 + 1] = make_float4(r[4], r[5], r[6], r[7]);
}
