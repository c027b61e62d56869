// MurmurHash3 (32 bits) of strings that lie one after another: bytes, rotations, byte permutation,
// bit reversal.
extern "C" __global__ void hash_murmur(const unsigned char* text, const int* start, uint2* out,
                                       int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned char* s = text + start[i];
    const int length = start[i + 1] - start[i];
    unsigned h = 0x9747b28c;
    for (int b = 0; b + 4 <= length; b += 4) {
        unsigned k = s[b] | s[b + 1] << 8 | s[b + 2] << 16 | (unsigned)s[b + 3] << 24;
        k = __funnelshift_l(k * 0xcc9e2d51u, k * 0xcc9e2d51u, 15) * 0x1b873593u;
        h ^= k;
        h = __funnelshift_l(h, h, 13) * 5 + 0xe6546b64u;
    }
    unsigned k = 0;
    switch (length & 3) {
        case 3: k ^= s[(length & ~3) + 2] << 16;  // falls through
        case 2: k ^= s[(length & ~3) + 1] << 8;   // falls through
        case 1:
            k ^= s[length & ~3];
            k *= 0xcc9e2d51u;
            h ^= __funnelshift_l(k, k, 15) * 0x1b873593u;
    }
    h ^= length;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    h ^= h >> 16;
    out[i] = make_uint2(h, __brev(h) ^ __byte_perm(h, length, 0x0145));
}
