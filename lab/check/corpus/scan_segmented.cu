// Segmented inclusive scan in warps: a head flag stops the sum. Ballot finds each lane's own head.
extern "C" __global__ void scan_segmented(const float* values, const unsigned char* heads,
                                          float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned lane = threadIdx.x & 31;
    const bool head = lane == 0 || (i < n && heads[i] != 0);
    const unsigned flags = __ballot_sync(0xffffffffu, head);
    const unsigned up_to_me = flags & (0xffffffffu >> (31 - lane));
    const int start = 31 - __clz(up_to_me);

    float v = i < n ? values[i] : 0.0f;
    for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, v, d);
        if ((int)lane - d >= start) v += other;
    }
    if (i < n) out[i] = v;
}
