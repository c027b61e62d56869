// Escape times: loops of very different lengths within a warp, with break and continue.
extern "C" __global__ void mandelbrot(unsigned short* out, int width, int height, int most) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    // Powers of two, so that float64 and float32 agree on the starting points.
    const float cr = (x - width * 0.75f) * 0.0625f, ci = (y - height * 0.5f) * 0.0625f;
    float zr = 0.f, zi = 0.f;
    int n = 0;
    for (; n < most; ++n) {
        const float r2 = __fmul_rn(zr, zr), i2 = __fmul_rn(zi, zi);
        if (__fadd_rn(r2, i2) > 4.f) break;
        zi = __fadd_rn(__fmul_rn(2.f, __fmul_rn(zr, zi)), ci);
        zr = __fadd_rn(__fsub_rn(r2, i2), cr);
    }
    out[y * width + x] = n;
}
