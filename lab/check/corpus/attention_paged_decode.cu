// Decode attention over a paged K/V cache: a block a head, warps take tokens, results are merged in
// shared memory. The block table tells where a page lies.
constexpr int kDim = 32, kPage = 8, kWarps = 4;

extern "C" __global__ void attention_paged_decode(const float* q, const float* k_cache,
                                                  const float* v_cache, const int* block_table,
                                                  const int* lengths, float* out, int max_pages,
                                                  int heads, float scale) {
    __shared__ float part[kWarps][kDim], maxima[kWarps], sums[kWarps];
    const int head = blockIdx.x, seq = blockIdx.y;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float mine = q[(seq * heads + head) * kDim + lane] * scale;
    float m = -INFINITY, l = 0.f, acc = 0.f;

    for (int token = warp; token < lengths[seq]; token += kWarps) {
        const int page = block_table[seq * max_pages + token / kPage];
        const size_t at = ((size_t)(page * kPage + token % kPage) * heads + head) * kDim + lane;
        float s = mine * k_cache[at];
        for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(0xffffffff, s, d);
        const float new_m = fmaxf(m, s);
        const float shrink = __expf(m - new_m), p = __expf(s - new_m);
        acc = acc * shrink + p * v_cache[at];
        l = l * shrink + p;
        m = new_m;
    }
    part[warp][lane] = acc;
    if (lane == 0) {
        maxima[warp] = m;
        sums[warp] = l;
    }
    __syncthreads();
    if (warp == 0) {
        float most = maxima[0];
        for (int w = 1; w < kWarps; ++w) most = fmaxf(most, maxima[w]);
        float sum = 0.f, value = 0.f;
        for (int w = 0; w < kWarps; ++w) {
            const float factor = maxima[w] == -INFINITY ? 0.f : __expf(maxima[w] - most);
            sum += sums[w] * factor;
            value += part[w][lane] * factor;
        }
        out[(seq * heads + head) * kDim + lane] = value / sum;
    }
}
