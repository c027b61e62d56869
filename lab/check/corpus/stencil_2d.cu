// Five-point stencil with a halo in shared memory; the borders of the grid are kept.
#define BX 16
#define BY 8

extern "C" __global__ void stencil_2d(const float* in, float* out, int nx, int ny, float w) {
    __shared__ float s[BY + 2][BX + 2];
    const int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y * BY + threadIdx.y;
    const int sx = threadIdx.x + 1, sy = threadIdx.y + 1;
    const bool inside = x < nx && y < ny;
    if (inside) {
        s[sy][sx] = in[y * nx + x];
        if (threadIdx.x == 0 && x > 0) s[sy][0] = in[y * nx + x - 1];
        if (threadIdx.x == BX - 1 && x + 1 < nx) s[sy][BX + 1] = in[y * nx + x + 1];
        if (threadIdx.y == 0 && y > 0) s[0][sx] = in[(y - 1) * nx + x];
        if (threadIdx.y == BY - 1 && y + 1 < ny) s[BY + 1][sx] = in[(y + 1) * nx + x];
    }
    __syncthreads();
    if (!inside) return;
    float v = s[sy][sx];
    if (x > 0 && x < nx - 1 && y > 0 && y < ny - 1)
        v += w * (s[sy][sx - 1] + s[sy][sx + 1] + s[sy - 1][sx] + s[sy + 1][sx] - 4.f * v);
    out[y * nx + x] = v;
}
