// fault: misaligned
// Sums of rows of 18 columns: a row begins at a multiple of 8 bytes, not of 16.
extern "C" __global__ void misaligned_vector(const float* x, float* sums, int rows) {
    const int row = threadIdx.x;
    if (row >= rows) return;
    float sum = 0.f;
    for (int c = 0; c < 16; c += 4) {
        const float4 v = *reinterpret_cast<const float4*>(&x[row * 18 + c]);  // FAULT
        sum += v.x + v.y + v.z + v.w;
    }
    sum += x[row * 18 + 16] + x[row * 18 + 17];
    sums[row] = sum;
}
