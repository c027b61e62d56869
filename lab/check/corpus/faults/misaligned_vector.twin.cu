// Sums of rows of 18 columns: a row begins at a multiple of 8 bytes, not of 16.
extern "C" __global__ void misaligned_vector(const float* x, float* sums, int rows) {
    const int row = threadIdx.x;
    if (row >= rows) return;
    float sum = 0.f;
    for (int c = 0; c < 18; c += 2) {
        const float2 v = *reinterpret_cast<const float2*>(&x[row * 18 + c]);
        sum += v.x + v.y;
    }
    sums[row] = sum;
}
