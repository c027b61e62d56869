// Cross entropy of rows: -log softmax of the label, by logsumexp; labels below 0 are ignored.
extern "C" __global__ void cross_entropy(const float* logits, const long long* labels, float* loss,
                                         int classes) {
    const int row = blockIdx.x, lane = threadIdx.x;
    const float* x = logits + row * classes;
    float m = -3.402823466e38f;
    for (int c = lane; c < classes; c += 32) m = max(m, x[c]);
    for (int d = 16; d > 0; d >>= 1) m = max(m, __shfl_xor_sync(0xffffffff, m, d));
    float s = 0;
    for (int c = lane; c < classes; c += 32) s += exp(x[c] - m);
    for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffff, s, d);
    if (lane == 0) {
        const long long label = labels[row];
        loss[row] = label < 0 ? 0.0f : log(s) + m - x[label];
    }
}
