// Routing of tokens to experts: softmax over experts, the two best, renormalised weights, and a
// count of tokens for each expert.
struct Route {
    int expert[2];
    float weight[2];
};

extern "C" __global__ void moe_routing(const float* logits, int2* chosen, float2* weights,
                                       int* load, int tokens, int experts) {
    const int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) return;
    const float* row = logits + token * experts;
    float most = row[0];
    for (int e = 1; e < experts; ++e) most = fmaxf(most, row[e]);
    Route r = {{-1, -1}, {-1.f, -1.f}};
    for (int e = 0; e < experts; ++e) {
        const float p = expf(row[e] - most);
        if (p > r.weight[0]) {
            r.weight[1] = r.weight[0];
            r.expert[1] = r.expert[0];
            r.weight[0] = p;
            r.expert[0] = e;
        } else if (p > r.weight[1]) {
            r.weight[1] = p;
            r.expert[1] = e;
        }
    }
    const float sum = r.weight[0] + r.weight[1];
    for (int i = 0; i < 2; ++i) {
        r.weight[i] /= sum;
        atomicAdd(&load[r.expert[i]], 1);
    }
    chosen[token] = make_int2(r.expert[0], r.expert[1]);
    weights[token] = make_float2(r.weight[0], r.weight[1]);
}
