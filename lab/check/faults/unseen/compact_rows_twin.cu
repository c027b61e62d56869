// Moves the values above 0.5 of each row to its front, keeps their order, and zeroes the rest.
// A block works on one row, 128 values at a time: a scan in shared memory gives each value its place.
constexpr int THREADS = 128;

extern "C" __global__ void compact_rows(const float* x, float* kept, int* counts, int n) {
    __shared__ int places[THREADS];
    __shared__ int filled;
    const int t = threadIdx.x;
    x += blockIdx.x * n;
    kept += blockIdx.x * n;
    if (t == 0) filled = 0;

    for (int first = 0; first < n; first += THREADS) {
        const int i = first + t;
        const float value = i < n ? x[i] : 0.0f;
        const bool keep = value > 0.5f;
        places[t] = keep ? 1 : 0;
        __syncthreads();
        for (int distance = 1; distance < THREADS; distance *= 2) {
            const int before = t >= distance ? places[t - distance] : 0;
            __syncthreads();
            places[t] += before;
            __syncthreads();
        }
        if (keep) kept[filled + places[t] - 1] = value;
        __syncthreads();
        if (t == 0) filled += places[THREADS - 1];
        __syncthreads();
    }

    __syncthreads();
    const int total = filled;
    for (int i = total + t; i < n; i += THREADS) kept[i] = 0.0f;
    if (t == 0) counts[blockIdx.x] = total;
}
