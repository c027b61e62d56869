// fault: shared-race
// Warp 0 prepares a table and raises a flag; the other warps poll the flag. Data before a flag and
// after it need fences.
extern "C" __global__ void race_flag_polling(const float* x, float* out) {
    __shared__ float table[32];
    __shared__ volatile int flag;
    const int tid = threadIdx.x;
    if (tid == 0) flag = 0;
    __syncthreads();
    if (tid < 32) {
        table[tid] = x[tid] * x[tid];  // FAULT
        __syncwarp();
        if (tid == 0) {
            flag = 1;
        }
    } else {
        while (flag == 0) {
        }
        out[tid - 32] = table[(tid * 5) % 32] + 1.f;  // FAULT
    }
}
