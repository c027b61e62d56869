// Exclusive prefix sums of segments of 256 integers, a segment a block of 128 threads: Blelloch's
// up-sweep and down-sweep in shared memory. The sum of each segment is written as well.
constexpr int THREADS = 128;

extern "C" __global__ void scan_segments(const int* x, int* sums, int* totals) {
    __shared__ int tree[2 * THREADS + 1];
    const int t = threadIdx.x;
    const int n = 2 * blockDim.x;
    const int first = blockIdx.x * n;
    tree[2 * t] = x[first + 2 * t];
    tree[2 * t + 1] = x[first + 2 * t + 1];

    int stride = 1;
    for (int pairs = n / 2; pairs > 0; pairs /= 2) {
        __syncthreads();
        if (t < pairs) {
            const int left = stride * (2 * t + 1) - 1;
            tree[left + stride] += tree[left];
        }
        stride *= 2;
    }

    if (t == 0) {
        tree[n] = tree[n - 1];
        tree[n - 1] = 0;
    }

    for (int pairs = 1; pairs < n; pairs *= 2) {
        stride /= 2;
        __syncthreads();
        if (t < pairs) {
            const int left = stride * (2 * t + 1) - 1;
            const int old = tree[left];
            tree[left] = tree[left + stride];
            tree[left + stride] += old;
        }
    }

    __syncthreads();
    sums[first + 2 * t] = tree[2 * t];
    sums[first + 2 * t + 1] = tree[2 * t + 1];
    if (t == THREADS - 1) totals[blockIdx.x] = tree[n];
}
