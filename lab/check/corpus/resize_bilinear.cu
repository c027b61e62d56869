// Bilinear resize of an RGBA image of bytes.
__device__ __forceinline__ float4 to_float(uchar4 c) { return make_float4(c.x, c.y, c.z, c.w); }

__device__ __forceinline__ float4 lerp(float4 a, float4 b, float t) {
    return make_float4(a.x + t * (b.x - a.x), a.y + t * (b.y - a.y), a.z + t * (b.z - a.z),
                       a.w + t * (b.w - a.w));
}

extern "C" __global__ void resize_bilinear(const uchar4* src, int sw, int sh, uchar4* dst, int dw,
                                           int dh) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= dw || y >= dh) return;
    const float fx = (x + 0.5f) * ((float)sw / dw) - 0.5f;
    const float fy = (y + 0.5f) * ((float)sh / dh) - 0.5f;
    const int x0 = __float2int_rd(fx), y0 = __float2int_rd(fy);
    const float tx = fx - x0, ty = fy - y0;
    const int xa = min(max(x0, 0), sw - 1), xb = min(max(x0 + 1, 0), sw - 1);
    const int ya = min(max(y0, 0), sh - 1), yb = min(max(y0 + 1, 0), sh - 1);
    const float4 top = lerp(to_float(src[ya * sw + xa]), to_float(src[ya * sw + xb]), tx);
    const float4 low = lerp(to_float(src[yb * sw + xa]), to_float(src[yb * sw + xb]), tx);
    const float4 v = lerp(top, low, ty);
    dst[y * dw + x] = make_uchar4(v.x + 0.5f, v.y + 0.5f, v.z + 0.5f, v.w + 0.5f);
}
