// Per-warp minimum, maximum, sum and mask by the warp reduction instructions of sm_80.
extern "C" __global__ void reduce_redux(const unsigned* x, uint4* out) {
    const unsigned tid = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned v = x[tid];
    uint4 r;
    r.x = __reduce_min_sync(0xffffffffu, v);
    r.y = __reduce_max_sync(0xffffffffu, v);
    r.z = __reduce_add_sync(0xffffffffu, v & 0xffffu);
    r.w = __reduce_xor_sync(0xffffffffu, v) | (__any_sync(0xffffffffu, v > 0xfffff000u) ? 1u : 0u);
    if (threadIdx.x % 32 == 0) out[tid / 32] = r;
}
