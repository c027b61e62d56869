// fault: uninitialised-global
// Row sums in parts; the output is not cleared by the host.
extern "C" __global__ void uninit_global_sum(const float* x, float* out, int cols) {
    const int row = threadIdx.x;
    for (int first = 0; first < cols; first += 8) {
        float part = 0.f;
        for (int c = first; c < first + 8; ++c) part += x[row * cols + c];
        out[row] += part;  // FAULT
    }
}
