// Gravity of n bodies in doubles: tiles of positions in shared memory, rsqrt of doubles.
struct alignas(16) Body {
    double x, y, z, mass;
};

extern "C" __global__ void nbody_f64(const Body* body, double3* force, int n, double soft) {
    __shared__ Body tile[32];
    const int i = blockIdx.x * 32 + threadIdx.x;
    const Body me = body[i];
    double3 f = make_double3(0, 0, 0);
    for (int first = 0; first < n; first += 32) {
        tile[threadIdx.x] = body[first + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < 32; ++j) {
            const double x = tile[j].x - me.x, y = tile[j].y - me.y, z = tile[j].z - me.z;
            const double r = rsqrt(x * x + y * y + z * z + soft);
            const double w = tile[j].mass * r * r * r;
            f.x += w * x;
            f.y += w * y;
            f.z += w * z;
        }
        __syncthreads();
    }
    force[i] = f;
}
