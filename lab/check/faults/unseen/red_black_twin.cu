// One half-sweep of red-black Gauss-Seidel on the 2D Laplace equation, in f64 and in place: the points
// of one colour get the mean of their four neighbours, all of which have the other colour. The outer
// rows and columns are the boundary. Blocks are 15 x 15, so two of them cover 30 inner points. The
// largest change of the sweep goes to `change`: the bits of doubles >= 0 have the order of the doubles.
constexpr int SIDE = 15;
constexpr int THREADS = SIDE * SIDE;

extern "C" __global__ void half_sweep(double* u, int width, int height, int colour,
                                      unsigned long long* change) {
    __shared__ double changes[THREADS];
    const int t = threadIdx.y * SIDE + threadIdx.x;
    const int x = 1 + blockIdx.x * SIDE + threadIdx.x;
    const int y = 1 + blockIdx.y * SIDE + threadIdx.y;
    const bool inside = x < width - 1 && y < height - 1;
    const int parity = (x + y) % 2;

    double moved = 0.0;
    if (inside && parity == colour) {
        const int at = y * width + x;
        const double across = u[at - 1] + u[at + 1];
        const double along = u[at - width] + u[at + width];
        const double mean = 0.25 * (across + along);
        moved = fabs(mean - u[at]);
        u[at] = mean;
    }

    changes[t] = moved;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half && t + half < THREADS) changes[t] = fmax(changes[t], changes[t + half]);
        __syncthreads();
    }
    if (t == 0) atomicMax(change, (unsigned long long)__double_as_longlong(changes[0]));
}
