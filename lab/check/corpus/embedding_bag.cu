// Gradient of an embedding bag: rows of gradients are added to the table by half2 atomics.
#include <cuda_fp16.h>

extern "C" __global__ void embedding_bag(const half2* grad, const int* index, const int* bag_of,
                                         half2* table, int entries, int pairs) {
    for (int e = blockIdx.x; e < entries; e += gridDim.x)
        for (int c = threadIdx.x; c < pairs; c += blockDim.x)
            atomicAdd(&table[index[e] * pairs + c], grad[bag_of[e] * pairs + c]);
}
