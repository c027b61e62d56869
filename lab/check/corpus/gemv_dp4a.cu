// Matrix times vector of 8-bit integers by dp4a, a warp a row, 16-byte loads.
extern "C" __global__ void gemv_dp4a(const int4* __restrict__ W, const int4* __restrict__ x,
                                     int* __restrict__ y, int rows, int vectors) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    int sum = 0;
    for (int i = threadIdx.x; i < vectors; i += 32) {
        const int4 w = __ldg(&W[row * vectors + i]);
        const int4 v = __ldg(&x[i]);
        sum = __dp4a(w.x, v.x, sum);
        sum = __dp4a(w.y, v.y, sum);
        sum = __dp4a(w.z, v.z, sum);
        sum = __dp4a(w.w, v.w, sum);
    }
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffff, sum, d);
    if (threadIdx.x == 0) y[row] = sum;
}
