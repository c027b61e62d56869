// A bounded queue in global memory: blocks take work items until it is empty; an item may add two
// smaller ones. A slot is ready when its flag is set, after a fence.
__device__ unsigned load_flag(const volatile unsigned* flag) { return *flag; }

extern "C" __global__ void queue_lockfree(int* items, unsigned* ready, unsigned* head,
                                          unsigned* tail, int* pending, int* leaves) {
    for (;;) {
        if (*(volatile int*)pending == 0) return;  // all work is done
        const unsigned at = *(volatile unsigned*)head;
        if (at >= *(volatile unsigned*)tail) continue;
        if (atomicCAS(head, at, at + 1) != at) continue;
        while (load_flag(&ready[at]) == 0) {
        }
        __threadfence();
        const int item = items[at];
        if (item > 1) {
            atomicAdd(pending, 2);
            for (int half = 0; half < 2; ++half) {
                const unsigned to = atomicAdd(tail, 1u);
                items[to] = (item + half) / 2;
                __threadfence();
                atomicExch(&ready[to], 1u);
            }
        } else {
            atomicAdd(leaves, item);
        }
        atomicSub(pending, 1);
    }
}
