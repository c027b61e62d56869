#include <cuda_pipeline.h>

// Depthwise convolution: each channel has 130 inputs, 3 weights and 128 outputs. A block computes
// `channels` of them one after the other. Three stages of shared memory hold the inputs of this channel
// and of the two that follow.
constexpr int OUTPUTS = 128;
constexpr int TAPS = 3;
constexpr int INPUTS = OUTPUTS + TAPS - 1;
constexpr int STAGES = 3;

extern "C" __global__ void depthwise(const float* x, const float* weights, float* y, int channels) {
    __shared__ float stages[STAGES][INPUTS];
    const int t = threadIdx.x;
    const int first = blockIdx.x * channels;

    auto fetch = [&](int channel) {
        if (channel < channels) {
            float* stage = stages[channel % STAGES];
            const float* source = x + (first + channel) * INPUTS;
            for (int i = t; i < INPUTS; i += OUTPUTS) {
                __pipeline_memcpy_async(&stage[i], &source[i], sizeof(float));
            }
        }
        __pipeline_commit();
    };

    for (int channel = 0; channel < STAGES - 1; ++channel) fetch(channel);

    for (int channel = 0; channel < channels; ++channel) {
        __pipeline_wait_prior(STAGES - 1);
        __syncthreads();
        fetch(channel + STAGES - 1);

        const float* stage = stages[channel % STAGES];
        const float* w = weights + (first + channel) * TAPS;
        float sum = 0.0f;
        for (int tap = 0; tap < TAPS; ++tap) {
            sum = fmaf(w[tap], stage[t + tap], sum);
        }
        y[(first + channel) * OUTPUTS + t] = sum;
    }
}
