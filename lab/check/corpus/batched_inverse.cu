// Inverses of many 4x4 matrices, one a thread, by Gauss and Jordan with pivoting: the matrix is a
// local array with indices that are known at run time only.
extern "C" __global__ void batched_inverse(const float* in, float* out, int count) {
    const int which = blockIdx.x * blockDim.x + threadIdx.x;
    if (which >= count) return;
    float a[4][8];
    for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 8; ++c)
            a[r][c] = c < 4 ? in[which * 16 + r * 4 + c] : float(c - 4 == r);

#pragma unroll 1
    for (int p = 0; p < 4; ++p) {
        int pivot = p;
        for (int r = p + 1; r < 4; ++r)
            if (fabsf(a[r][p]) > fabsf(a[pivot][p])) pivot = r;
        for (int c = 0; c < 8; ++c) {
            const float t = a[p][c];
            a[p][c] = a[pivot][c];
            a[pivot][c] = t;
        }
        const float inverse = 1.f / a[p][p];
        for (int c = 0; c < 8; ++c) a[p][c] *= inverse;
        for (int r = 0; r < 4; ++r) {
            if (r == p) continue;
            const float f = a[r][p];
            for (int c = 0; c < 8; ++c) a[r][c] -= f * a[p][c];
        }
    }
    for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) out[which * 16 + r * 4 + c] = a[r][4 + c];
}
