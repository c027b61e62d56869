// Activation functions by a switch that is the same for a block: precise and fast math.
enum Kind { kGelu, kSilu, kTanh, kErf, kSoftplus, kFast };

__device__ float activate(float x, int kind) {
    switch (kind) {
        case kGelu: return 0.5f * x * (1.f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
        case kSilu: return x / (1.f + expf(-x));
        case kTanh: return tanhf(x);
        case kErf: return erff(x) + cbrtf(x);
        case kSoftplus: return x > 20.f ? x : log1pf(expf(x));
        case kFast: {
            const float ratio = __fdividef(__sinf(x), __cosf(x) + 2.f);
            return ratio + __powf(2.f, x) + __logf(3.f + x * x);
        }
        default: return x;
    }
}

extern "C" __global__ void activations(const float* x, float* y, int n) {
    const int kind = blockIdx.y;
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[kind * n + i] = activate(x[i], kind);
}
