// fault: shared-race
// Four warps in two pairs; the warps of a pair exchange values by a barrier of 64 threads. Pairs
// are warps (0, 1) and (2, 3), so that the barrier's number must be that of the pair.
extern "C" __global__ void race_named_barrier(const int* x, int* out) {
    __shared__ int box[128];
    const int tid = threadIdx.x, warp = tid / 32;
    const int id = 1 + warp % 2;
    const int v = x[tid];
    box[tid] = v * v;  // FAULT
    asm volatile("bar.sync %0, 64;" ::"r"(id) : "memory");
    out[tid] = box[tid ^ 32] + v;  // FAULT
}
