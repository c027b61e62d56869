// New keys and values go into a paged cache, 16 bytes a thread; tokens with slot -1 are skipped.
extern "C" __global__ void kv_cache_append(const uint4* __restrict__ key,
                                           const uint4* __restrict__ value,
                                           uint4* __restrict__ key_cache,
                                           uint4* __restrict__ value_cache,
                                           const long long* __restrict__ slots, int vectors) {
    const long long slot = slots[blockIdx.x];
    if (slot < 0) return;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
        key_cache[slot * vectors + i] = key[blockIdx.x * vectors + i];
        value_cache[slot * vectors + i] = value[blockIdx.x * vectors + i];
    }
}
