// A lock for each bucket: lanes of a warp may want the same one, so that a lane enters, leaves and
// only then stops trying.
extern "C" __global__ void spin_lock(const int* keys, const float* values, int* lock, float* sum,
                                     int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int bucket = keys[i];
    bool done = false;
    while (!done) {
        if (atomicCAS(&lock[bucket], 0, 1) == 0) {
            __threadfence();
            volatile float* s = sum + bucket;
            volatile int* c = count + bucket;
            *s = *s + values[i];
            *c = *c + 1;
            __threadfence();
            atomicExch(&lock[bucket], 0);
            done = true;
        }
    }
}
