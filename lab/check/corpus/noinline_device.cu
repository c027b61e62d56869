// Device functions that stay calls: with a pointer to a local array, and with a struct as result.
struct Roots {
    double lo, hi;
    int count;
};

__device__ __noinline__ Roots solve(const double* p) {
    const double disc = p[1] * p[1] - 4.0 * p[0] * p[2];
    if (disc < 0.0) return {0.0, 0.0, 0};
    const double root = sqrt(disc), half = 0.5 / p[2];
    const double a = (-p[1] - root) * half, b = (-p[1] + root) * half;
    return {fmin(a, b), fmax(a, b), 2};
}

__device__ __noinline__ double horner(const double* p, int n, double x) {
    double v = p[n - 1];
    for (int i = n - 2; i >= 0; --i) v = v * x + p[i];
    return v;
}

extern "C" __global__ void noinline_device(const double* polynomials, double* out, int* counts,
                                           int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double p[3];
    for (int c = 0; c < 3; ++c) p[c] = polynomials[i * 3 + c];
    const Roots r = solve(p);
    counts[i] = r.count;
    out[i] = r.count ? r.lo + horner(p, 3, r.hi) : horner(p, 3, 1.0);
}
