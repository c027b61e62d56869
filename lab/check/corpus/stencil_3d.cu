// Seven-point Laplacian with 3-D blocks on a periodic grid, straight from global memory.
__device__ int wrap(int i, int n) { return (i + n) % n; }

extern "C" __global__ void stencil_3d(const float* u, float* lap, int3 n) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= n.x || y >= n.y || z >= n.z) return;
    auto at = [&](int i, int j, int k) {
        return u[(wrap(k, n.z) * n.y + wrap(j, n.y)) * n.x + wrap(i, n.x)];
    };
    lap[(z * n.y + y) * n.x + x] = at(x - 1, y, z) + at(x + 1, y, z) + at(x, y - 1, z) +
                                   at(x, y + 1, z) + at(x, y, z - 1) + at(x, y, z + 1) -
                                   6.0f * at(x, y, z);
}
