// Edit distance of pairs of strings by anti-diagonals, a block a pair, three diagonals in shared
// memory in turn.
extern "C" __global__ void edit_distance(const char* a, const char* b, int length, int* distance) {
    __shared__ short diagonal[3][65];
    const int i = threadIdx.x;  // row: length + 1 of them
    a += blockIdx.x * length;
    b += blockIdx.x * length;
    for (int d = 0; d <= 2 * length; ++d) {
        const int j = d - i;
        if (i <= length && j >= 0 && j <= length) {
            int best;
            if (i == 0 || j == 0) {
                best = i + j;
            } else {
                const int across = diagonal[(d + 1) % 3][i - 1] + (a[i - 1] != b[j - 1]);
                const int down = diagonal[(d + 2) % 3][i - 1] + 1;
                const int right = diagonal[(d + 2) % 3][i] + 1;
                best = min(across, min(down, right));
            }
            diagonal[d % 3][i] = best;
        }
        __syncthreads();
    }
    if (i == length) distance[blockIdx.x] = diagonal[2 * length % 3][length];
}
