// Exclusive scan of a block (Blelloch): up-sweep and down-sweep over padded shared memory.
#define LOG_BANKS 5
#define PADDED(i) ((i) + ((i) >> LOG_BANKS))

extern "C" __global__ void scan_blelloch(const float* in, float* out, float* totals, int n) {
    extern __shared__ float temp[];
    const int t = threadIdx.x;
    const int first = blockIdx.x * n;
    const int a = t, b = t + n / 2;
    temp[PADDED(a)] = in[first + a];
    temp[PADDED(b)] = in[first + b];

    int offset = 1;
    for (int d = n >> 1; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) {
            const int left = offset * (2 * t + 1) - 1;
            const int right = offset * (2 * t + 2) - 1;
            temp[PADDED(right)] += temp[PADDED(left)];
        }
        offset *= 2;
    }
    if (t == 0) {
        totals[blockIdx.x] = temp[PADDED(n - 1)];
        temp[PADDED(n - 1)] = 0;
    }
    for (int d = 1; d < n; d *= 2) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            const int left = offset * (2 * t + 1) - 1;
            const int right = offset * (2 * t + 2) - 1;
            const float kept = temp[PADDED(left)];
            temp[PADDED(left)] = temp[PADDED(right)];
            temp[PADDED(right)] += kept;
        }
    }
    __syncthreads();
    out[first + a] = temp[PADDED(a)];
    out[first + b] = temp[PADDED(b)];
}
