// Lanes of a warp reverse their values through shared memory.
extern "C" __global__ void race_lane_exchange(const float* x, float* out, int rounds) {
    __shared__ float s[4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float v = x[threadIdx.x];
    for (int r = 0; r < rounds; ++r) {
        s[warp][lane] = v;
        __syncwarp();
        v += s[warp][31 - lane] * 0.5f;
        __syncwarp();
    }
    out[threadIdx.x] = v;
}
