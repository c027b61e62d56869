// Row sums of 20 columns, a warp a row: the mask of a shuffle names lanes that do not take part.
extern "C" __global__ void mask_of_absent_lanes(const float* x, float* out, int cols) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
    float v = lane < cols ? x[row * cols + lane] : 0.f;
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if (lane == 0) out[row] = v;
    if (lane == 31) out[gridDim.x * 4 + row] = (float)row;
}
