// Scan in place: between reading the left neighbour and writing, all threads must have read.
extern "C" __global__ void race_scan_in_place(const int* x, int* out) {
    __shared__ int s[96];
    const int tid = threadIdx.x;
    s[tid] = x[tid];
    for (int d = 1; d < 96; d *= 2) {
        __syncthreads();
        const int left = tid >= d ? s[tid - d] : 0;
        __syncthreads();
        s[tid] += left;
    }
    out[tid] = s[tid];
}
