// Resamples a signal with cubic (Catmull-Rom) interpolation, and finds the peak of each block's outputs
// for a level meter. Positions in the input are fixed-point numbers with 16 fractional bits: output i
// is at i * step.
constexpr int FRACTION_BITS = 16;
constexpr int ONE = 1 << FRACTION_BITS;
constexpr int THREADS = 256;

extern "C" __global__ void resample(const float* in, int n_in, float* out, int n_out, int step,
                                    float* peaks) {
    __shared__ float levels[THREADS];
    const int t = threadIdx.x;
    const int i = blockIdx.x * THREADS + t;

    float value = 0.0f;
    if (i < n_out) {
        const int position = i * step;
        const int at = position >> FRACTION_BITS;
        const float f = (float)(position & (ONE - 1)) / ONE;
        const float a = in[max(at - 1, 0)];
        const float b = in[at];
        const float c = in[min(at + 1, n_in - 1)];
        const float d = in[min(at + 2, n_in - 1)];
        const float cubic = 3.0f * (b - c) + d - a;
        const float square = 2.0f * a - 5.0f * b + 4.0f * c - d;
        value = b + 0.5f * f * (c - a + f * (square + f * cubic));
        out[i] = value;
    }

    levels[t] = fabsf(value);
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (t < half) levels[t] = fmaxf(levels[t], levels[t + half]);
        __syncthreads();
    }
    if (t == 0) peaks[blockIdx.x] = levels[0];
}
