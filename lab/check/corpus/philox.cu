// Philox4x32-10 random numbers: a counter for each thread, four words at once, made uniform; then
// two normals by Box and Muller.
__device__ uint4 philox4x32(uint4 c, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned lo0 = 0xD2511F53u * c.x, hi0 = __umulhi(0xD2511F53u, c.x);
        const unsigned lo1 = 0xCD9E8D57u * c.z, hi1 = __umulhi(0xCD9E8D57u, c.z);
        c = make_uint4(hi1 ^ c.y ^ key.x, lo1, hi0 ^ c.w ^ key.y, lo0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}

extern "C" __global__ void philox(uint4* words, float2* normals, unsigned long long seed, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const uint4 r = philox4x32(make_uint4(i, 0, 0, 0), make_uint2(seed, seed >> 32));
    words[i] = r;
    const float u = (r.x >> 8) * 5.9604644775390625e-8f + 2.98023223876953125e-8f;
    const float v = (r.y >> 8) * 5.9604644775390625e-8f;
    float s, c;
    sincospif(2.0f * v, &s, &c);
    const float radius = sqrtf(-2.0f * logf(u));
    normals[i] = make_float2(radius * c, radius * s);
}
