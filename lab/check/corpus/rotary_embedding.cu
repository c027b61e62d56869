// Rotary embedding of queries in place, pairs (i, i + d/2), angles by sincosf from the position.
extern "C" __global__ void rotary_embedding(float* q, const int* positions, int heads, int dim,
                                            float log2_base) {
    const int token = blockIdx.x, half_dim = dim / 2;
    for (int i = threadIdx.x; i < heads * half_dim; i += blockDim.x) {
        const int head = i / half_dim, d = i % half_dim;
        float s, c;
        sincosf(positions[token] * exp2f(-2.f * d / dim * log2_base), &s, &c);
        float* pair = q + (token * heads + head) * dim + d;
        const float a = pair[0], b = pair[half_dim];
        pair[0] = a * c - b * s;
        pair[half_dim] = b * c + a * s;
    }
}
