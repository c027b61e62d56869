// Labels of connected cells on a line, until no label changes. The flag may be cleared only after
// all threads have read it.
extern "C" __global__ void race_loop_flag(const unsigned char* solid, int* labels, int* rounds) {
    __shared__ int label[64];
    __shared__ int changed;
    const int i = threadIdx.x;
    label[i] = i;
    int count = 0;
    for (;;) {
        __syncthreads();
        if (i == 0) changed = 0;
        __syncthreads();
        const int left = i > 0 && solid[i] && solid[i - 1] ? label[i - 1] : label[i];
        __syncthreads();
        if (left < label[i]) {
            label[i] = left;
            atomicExch(&changed, 1);
        }
        ++count;
        __syncthreads();
        if (changed == 0) break;
    }
    labels[i] = label[i];
    if (i == 0) *rounds = count;
}
