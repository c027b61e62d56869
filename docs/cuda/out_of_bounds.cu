// Transposes a matrix by tiles of 16 x 16.
extern "C" __global__ void transpose(const float* in, float* out, int rows, int columns) {
    __shared__ float tile[16][17];
    int column = blockIdx.x * 16 + threadIdx.x % 16;
    int row = blockIdx.y * 16 + threadIdx.x / 16;
    if (row < rows && column < columns) tile[threadIdx.x / 16][threadIdx.x % 16] = in[row * columns + column];
    __syncthreads();
    int to_column = blockIdx.y * 16 + threadIdx.x % 16;
    int to_row = blockIdx.x * 16 + threadIdx.x / 16;
    if (to_row < columns) out[to_row * rows + to_column] = tile[threadIdx.x % 16][threadIdx.x / 16];
}
