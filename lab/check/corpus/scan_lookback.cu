// Scan of a whole array in one launch: blocks take tickets, publish their totals, and look back at
// their predecessors. A state word holds a flag (1: total, 2: prefix) and the value.
constexpr int kThreads = 128;

__device__ __forceinline__ unsigned long long packed(unsigned flag, int value) {
    return (unsigned long long)flag << 32 | (unsigned)value;
}

extern "C" __global__ void scan_lookback(const int* in, int* out, unsigned* ticket,
                                         volatile unsigned long long* state) {
    __shared__ int buffer[kThreads];
    __shared__ unsigned part;
    __shared__ int before;
    const int tid = threadIdx.x;
    if (tid == 0) part = atomicAdd(ticket, 1u);
    __syncthreads();

    buffer[tid] = in[part * kThreads + tid];
    for (int d = 1; d < kThreads; d <<= 1) {
        __syncthreads();
        const int add = tid >= d ? buffer[tid - d] : 0;
        __syncthreads();
        buffer[tid] += add;
    }
    __syncthreads();

    if (tid == 0) {
        const int total = buffer[kThreads - 1];
        int prefix = 0;
        if (part > 0) state[part] = packed(1, total);
        for (int p = (int)part - 1; p >= 0;) {
            const unsigned long long word = state[p];
            const unsigned flag = word >> 32;
            if (flag == 0) continue;  // not published yet
            prefix += (int)(unsigned)word;
            if (flag == 2) break;
            --p;
        }
        state[part] = packed(2, prefix + total);
        before = prefix;
    }
    __syncthreads();
    out[part * kThreads + tid] = buffer[tid] + before;
}
