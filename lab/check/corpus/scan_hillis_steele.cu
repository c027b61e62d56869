// Inclusive scan of a block (Hillis and Steele): two buffers in turn, one barrier for each step.
template <int N>
__global__ void scan_hillis_steele(const int* in, int* out) {
    __shared__ int buffer[2][N];
    const int tid = threadIdx.x;
    const int base = blockIdx.x * N;
    int current = 0;

    buffer[current][tid] = in[base + tid];
    __syncthreads();
    for (int offset = 1; offset < N; offset *= 2) {
        const int next = 1 - current;
        int v = buffer[current][tid];
        if (tid >= offset) v += buffer[current][tid - offset];
        buffer[next][tid] = v;
        current = next;
        __syncthreads();
    }
    out[base + tid] = buffer[current][tid];
}

template __global__ void scan_hillis_steele<128>(const int*, int*);
