// One step of Adam over all parameters: grid-stride loop, a struct of hyperparameters by value.
struct AdamParams {
    float lr, beta1, beta2, eps, decay;
    int step;
};

extern "C" __global__ void adam_step(float* w, float* m, float* v, const float* grad, int n,
                                     const AdamParams p) {
    const float fix1 = 1.f - powf(p.beta1, p.step);
    const float fix2 = 1.f - powf(p.beta2, p.step);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        const float g = grad[i];
        const float mi = m[i] = p.beta1 * m[i] + (1.f - p.beta1) * g;
        const float vi = v[i] = p.beta2 * v[i] + (1.f - p.beta2) * g * g;
        w[i] -= p.lr * (mi / fix1 / (sqrtf(vi / fix2) + p.eps) + p.decay * w[i]);
    }
}
