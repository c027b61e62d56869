// Compensated (Kahan) sums of doubles, one per thread; then doubles go through shuffles.
struct Kahan {
    double sum = 0.0;
    double lost = 0.0;

    __device__ void add(double value) {
        const double y = value - lost;
        const double t = sum + y;
        lost = (t - sum) - y;
        sum = t;
    }
};

extern "C" __global__ void reduce_f64_kahan(const double* x, double* out, int n) {
    Kahan kahan;
    for (int i = threadIdx.x; i < n; i += blockDim.x) kahan.add(x[i]);
    double total = kahan.sum;
    for (int offset = 16; offset; offset >>= 1)
        total += __shfl_down_sync(0xffffffffu, total, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(out, total);
}
