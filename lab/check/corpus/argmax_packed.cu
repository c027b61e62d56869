// Arg max of floats: value and index are packed in 64 bits, so that one atomicMax decides.
__device__ __forceinline__ unsigned ordered(float f) {
    const unsigned bits = __float_as_uint(f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

extern "C" __global__ void argmax_packed(const float* x, unsigned long long* best, int n) {
    unsigned long long mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        // Of equal values the lowest index wins.
        const unsigned long long key = (unsigned long long)ordered(x[i]) << 32 | (0xffffffffu - i);
        mine = key > mine ? key : mine;
    }
    for (int d = 1; d < 32; d <<= 1) {
        const unsigned long long other = __shfl_xor_sync(0xffffffffu, mine, d);
        if (other > mine) mine = other;
    }
    if (threadIdx.x % 32 == 0) atomicMax(best, mine);
}
