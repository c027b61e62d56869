// Top k of rows, a warp a row: each lane keeps a sorted list in local memory, k rounds take the
// best of the lanes' heads.
constexpr int kMost = 4;

extern "C" __global__ void topk_warp(const float* x, float* values, int* indices, int cols, int k) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    float best[kMost];
    int where[kMost];
    for (int i = 0; i < kMost; ++i) {
        best[i] = -INFINITY;
        where[i] = -1;
    }
    for (int c = lane; c < cols; c += 32) {
        const float v = x[row * cols + c];
        int place = kMost;
        while (place > 0 && v > best[place - 1]) --place;
        for (int i = kMost - 1; i > place; --i) {
            best[i] = best[i - 1];
            where[i] = where[i - 1];
        }
        if (place < kMost) {
            best[place] = v;
            where[place] = c;
        }
    }
    int head = 0;
    for (int r = 0; r < k; ++r) {
        float most = head < kMost ? best[head] : -INFINITY;
        int winner = lane;
        for (int d = 16; d > 0; d >>= 1) {
            const float other = __shfl_xor_sync(0xffffffff, most, d);
            const int other_lane = __shfl_xor_sync(0xffffffff, winner, d);
            if (other > most || (other == most && other_lane < winner)) {
                most = other;
                winner = other_lane;
            }
        }
        if (lane == winner) {
            values[row * k + r] = most;
            indices[row * k + r] = where[head];
            ++head;
        }
    }
}
