#include <cuda_fp16.h>

// x = relu(x + bias) + residual in fp16 and in place, one block per row. Two neighbours are computed at
// a time; what is left over at the ends of a row is computed alone.
__device__ __forceinline__ void one(__half* row, const __half* bias, const __half* residual, int c) {
    const float sum = __half2float(row[c]) + __half2float(bias[c]);
    row[c] = __float2half(fmaxf(sum, 0.0f) + __half2float(residual[c]));
}

extern "C" __global__ void bias_relu(__half* x, const __half* bias, const __half* residual,
                                     int columns) {
    __half* row = x + blockIdx.x * columns;
    const __half* added = residual + blockIdx.x * columns;
    const int head = columns % 2;
    const int pairs = (columns - head) / 2;
    __half2* wide = reinterpret_cast<__half2*>(row + head);
    const __half2* wide_added = reinterpret_cast<const __half2*>(added + head);
    const __half2 zero = __float2half2_rn(0.0f);

    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        const int c = head + 2 * i;
        const __half2 value = wide[i];
        const __half2 shift = __halves2half2(bias[c], bias[c + 1]);
        const __half2 positive = __hmax2(__hadd2(value, shift), zero);
        wide[i] = __hadd2(positive, wide_added[i]);
    }

    if (threadIdx.x == 0 && head == 1) one(row, bias, added, 0);
    const int tail = head + 2 * pairs;
    if (threadIdx.x == 32 && tail < columns) one(row, bias, added, tail);
}
