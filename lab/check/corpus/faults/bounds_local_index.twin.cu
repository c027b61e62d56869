// Counts of classes 0 to 8 for each thread in a local array: there are nine of them.
extern "C" __global__ void bounds_local_index(const int* classes, int* most, int each) {
    int counts[9];
    for (int c = 0; c < 9; ++c) counts[c] = 0;
    for (int i = 0; i < each; ++i) {
        ++counts[classes[threadIdx.x * each + i]];
    }
    int best = 0;
#pragma unroll 1
    for (int c = 1; c < 9; ++c)
        if (counts[c] > counts[best]) best = c;
    most[threadIdx.x] = best;
}
