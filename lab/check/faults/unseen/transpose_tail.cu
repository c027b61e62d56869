// Transposes a batch of matrices of rows x columns floats, through 16 x 16 tiles of shared memory, so
// that both the loads and the stores are coalesced. A block has 16 x 4 threads, each of which moves
// four elements. The tiles at the right and at the bottom may be partial.
constexpr int TILE = 16;
constexpr int STEP = 4;

extern "C" __global__ void transpose(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[TILE][TILE + 1];
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    in += blockIdx.z * rows * columns;
    out += blockIdx.z * rows * columns;

    int x = blockIdx.x * TILE + tx;
    int y = blockIdx.y * TILE + ty;
    for (int i = 0; i < TILE; i += STEP) {
        if (x < columns && y + i < rows) {
            tile[ty + i][tx] = in[(y + i) * columns + x];
        }
    }

    __syncthreads();

    x = blockIdx.y * TILE + tx;
    y = blockIdx.x * TILE + ty;
    for (int i = 0; i < TILE; i += STEP) {
        if (x < columns && y + i < rows) {
            out[(y + i) * rows + x] = tile[tx][ty + i];
        }
    }
}
