// Books transfers between accounts. Each account has a lock, and a transfer holds the locks of both of
// its accounts. The first lane of each warp does the work: the lanes of a warp would contend.
__device__ __forceinline__ void acquire(int* lock) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
}

__device__ __forceinline__ void release(int* lock) {
    __threadfence();
    atomicExch(lock, 0);
}

extern "C" __global__ void book(const int* from, const int* to, const int* amounts, int transfers,
                                int* balances, int* locks) {
    if (threadIdx.x % 32 != 0) return;
    const int warps = gridDim.x * blockDim.x / 32;
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;

    for (int i = warp; i < transfers; i += warps) {
        const int payer = from[i];
        const int payee = to[i];
        if (payer == payee) continue;
        const int first = payer;
        const int second = payee;
        acquire(&locks[first]);
        acquire(&locks[second]);
        balances[payer] -= amounts[i];
        balances[payee] += amounts[i];
        release(&locks[second]);
        release(&locks[first]);
    }
}
