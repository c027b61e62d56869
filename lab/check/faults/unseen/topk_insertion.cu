// Router of a mixture of experts: the k experts with the largest logits of each token, in descending
// order, and the softmax of these k logits; k is at most 8 and at most `experts`. A thread keeps the
// list of a token in arrays and inserts each logit that is larger than the last of the list.
constexpr int MAX_K = 8;
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void route(const float* logits, int* chosen, float* weights, int tokens,
                                 int experts, int k) {
    const int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) return;

    float best[MAX_K];
    int expert_of[MAX_K];
    for (int j = 0; j < k - 1; ++j) {
        best[j] = LOWEST;
        expert_of[j] = -1;
    }

    for (int expert = 0; expert < experts; ++expert) {
        const float logit = logits[token * experts + expert];
        if (logit <= best[k - 1]) continue;
        int place = k - 1;
        while (place > 0 && best[place - 1] < logit) {
            best[place] = best[place - 1];
            expert_of[place] = expert_of[place - 1];
            --place;
        }
        best[place] = logit;
        expert_of[place] = expert;
    }

    float sum = 0.0f;
    for (int j = 0; j < k; ++j) sum += __expf(best[j] - best[0]);
    for (int j = 0; j < k; ++j) {
        chosen[token * k + j] = expert_of[j];
        weights[token * k + j] = __expf(best[j] - best[0]) / sum;
    }
}
