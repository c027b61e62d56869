// Sliding sums of five with two elements of halo on each side.
#define R 2

extern "C" __global__ void bounds_shared_halo(const int* x, int* out, int n) {
    __shared__ int s[64 + 2 * R];
    const int tid = threadIdx.x, i = blockIdx.x * 64 + tid;
    s[tid + R] = x[i];
    if (tid < R) {
        s[tid] = i >= R ? x[i - R] : 0;
        s[tid + 64 + R] = i + 64 < n ? x[i + 64] : 0;
    }
    __syncthreads();
    int sum = 0;
    for (int k = 0; k <= 2 * R; ++k) sum += s[tid + k];
    out[i] = sum;
}
