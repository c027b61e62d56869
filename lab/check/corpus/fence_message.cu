// Blocks in a chain: each waits for a release store of the one before it, adds, and passes it on
// (cuda::atomic_ref).
#include <cuda/atomic>

extern "C" __global__ void fence_message(const int* add, int* value, int* turn) {
    if (threadIdx.x == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_device> t(*turn);
        while (t.load(cuda::memory_order_acquire) != blockIdx.x) {
        }
        *value = *value * 3 + add[blockIdx.x];
        t.store(blockIdx.x + 1, cuda::memory_order_release);
    }
}
