// A producer warp and three consumer warps with named barriers: one for full, one for empty.
__device__ __forceinline__ void arrive(int id) {
    asm volatile("bar.arrive %0, 128;" ::"r"(id) : "memory");
}

__device__ __forceinline__ void wait(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

extern "C" __global__ void warp_specialised(const float* in, float* out, int batches) {
    __shared__ float buffer[2][96];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        for (int b = 0; b < batches; ++b) {
            if (b >= 2) wait(3 + b % 2);  // empty
            for (int i = lane; i < 96; i += 32) buffer[b % 2][i] = in[b * 96 + i];
            __threadfence_block();
            arrive(1 + b % 2);  // full
        }
    } else {
        const int i = threadIdx.x - 32;
        float sum = 0.f;
        for (int b = 0; b < batches; ++b) {
            wait(1 + b % 2);
            sum += buffer[b % 2][95 - i];
            if (b + 2 < batches) arrive(3 + b % 2);
        }
        out[i] = sum;
    }
}
