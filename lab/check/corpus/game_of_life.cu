// Game of Life in bits: a word holds 32 cells, a thread a word, sums by bit-sliced adders.
extern "C" __global__ void game_of_life(const unsigned* in, unsigned* out, int words, int rows) {
    const int w = threadIdx.x, y = blockIdx.x * blockDim.y + threadIdx.y;
    if (w >= words || y >= rows) return;
    unsigned ones = 0, twos = 0, fours = 0;
    const int left = (w + words - 1) % words, right = (w + 1) % words;
#pragma unroll
    for (int dy = -1; dy <= 1; ++dy) {
        const unsigned* row = in + (y + dy + rows) % rows * words;
        const unsigned me = row[w];
        const unsigned from[3] = {me << 1 | row[left] >> 31, dy ? me : 0u,
                                  me >> 1 | row[right] << 31};
        for (int i = 0; i < 3; ++i) {
            const unsigned carry = ones & from[i];
            ones ^= from[i];
            fours |= twos & carry;
            twos ^= carry;
        }
    }
    out[y * words + w] = ~fours & twos & (ones | in[y * words + w]);
}
