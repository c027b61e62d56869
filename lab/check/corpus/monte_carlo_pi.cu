// Points in a circle by xorshift in each thread, counted by a 64-bit atomic per block.
struct XorShift {
    unsigned long long s;
    __device__ explicit XorShift(unsigned long long seed) : s(seed * 0x9E3779B97F4A7C15ull + 1) {}
    __device__ unsigned next() {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        return s >> 32;
    }
};

extern "C" __global__ void monte_carlo_pi(unsigned long long* hits, int rounds) {
    __shared__ unsigned inside;
    if (threadIdx.x == 0) inside = 0;
    __syncthreads();
    XorShift rng(blockIdx.x * blockDim.x + threadIdx.x + 1);
    unsigned mine = 0;
    for (int i = 0; i < rounds; ++i) {
        const unsigned long long x = rng.next() >> 1, y = rng.next() >> 1;
        mine += x * x + y * y < 1ull << 62;
    }
    atomicAdd(&inside, mine);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(hits, (unsigned long long)inside);
}
