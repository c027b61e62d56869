// Causal attention, a thread a query row, online softmax, everything in registers and local memory.
#define D 16

extern "C" __global__ void attention_scalar(const float* Q, const float* K, const float* V,
                                            float* O, int seq, float scale) {
    const int head = blockIdx.y;
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= seq) return;
    const float* k = K + head * seq * D;
    const float* v = V + head * seq * D;
    float q[D], acc[D];
    for (int d = 0; d < D; ++d) {
        q[d] = Q[(head * seq + row) * D + d] * scale;
        acc[d] = 0.f;
    }
    float m = -INFINITY, l = 0.f;
    for (int j = 0; j <= row; ++j) {
        float s = 0.f;
        for (int d = 0; d < D; ++d) s += q[d] * k[j * D + d];
        const float new_m = fmaxf(m, s);
        const float shrink = expf(m - new_m);
        const float p = expf(s - new_m);
        l = l * shrink + p;
        for (int d = 0; d < D; ++d) acc[d] = acc[d] * shrink + p * v[j * D + d];
        m = new_m;
    }
    for (int d = 0; d < D; ++d) O[(head * seq + row) * D + d] = acc[d] / l;
}
