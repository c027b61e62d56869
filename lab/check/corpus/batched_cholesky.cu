// Cholesky factors of matrices 6x6 in doubles, packed lower triangles, a thread a matrix.
#define N 6
#define AT(r, c) ((r) * ((r) + 1) / 2 + (c))

extern "C" __global__ void batched_cholesky(const double* a, double* l, double* log_det,
                                            int count) {
    const int m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= count) return;
    double t[N * (N + 1) / 2];
    double sum = 0.0;
    for (int i = 0; i < N * (N + 1) / 2; ++i) t[i] = a[m * 21 + i];
    for (int c = 0; c < N; ++c) {
        double d = t[AT(c, c)];
        for (int k = 0; k < c; ++k) d -= t[AT(c, k)] * t[AT(c, k)];
        d = sqrt(d);
        t[AT(c, c)] = d;
        sum += log(d);
        for (int r = c + 1; r < N; ++r) {
            double v = t[AT(r, c)];
            for (int k = 0; k < c; ++k) v -= t[AT(r, k)] * t[AT(c, k)];
            t[AT(r, c)] = v / d;
        }
    }
    for (int i = 0; i < N * (N + 1) / 2; ++i) l[m * 21 + i] = t[i];
    log_det[m] = 2.0 * sum;
}
