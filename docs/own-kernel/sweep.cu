// Attention with its scores in shared memory, for a search over M (query rows of a block), WARPS and VEC (halves that
// a thread copies at once). BUG plants what goes wrong in such kernels; M = 64 needs more than 48 KB.
#include <cuda_fp16.h>
#include <stdint.h>

#define none 0
#define hang 1
#define fragment 2
#define race 3

constexpr int N = 64;  // keys of a tile
constexpr int D = 64;  // columns
constexpr int TILES = M / 16 * (N / 8) / WARPS;  // 16 x 8 tiles of a warp

template <int WORDS> struct Words { uint32_t words[WORDS]; };

__device__ uint32_t pair(const half *at) { return *reinterpret_cast<const uint32_t *>(at); }

// m16n8k16: row g = lane / 4 of A and column g of B, columns and rows 2 t = lane % 4 * 2.
__device__ void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <int COLUMNS> __device__ void load_a(uint32_t (&a)[4], const half (*from)[COLUMNS], int row, int column) {
    a[0] = pair(&from[row][column]);
#if BUG == fragment
    a[2] = pair(&from[row + 8][column]);
    a[1] = pair(&from[row][column + 8]);
#else
    a[1] = pair(&from[row + 8][column]);
    a[2] = pair(&from[row][column + 8]);
#endif
    a[3] = pair(&from[row + 8][column + 8]);
}

template <int ROWS> __device__ void copy(half (*to)[D], const half *from, int first, int rows, int stride) {
    using Chunk = Words<VEC / 2>;
    for (int at = threadIdx.x; at < ROWS * D / VEC; at += WARPS * 32) {
        int row = at / (D / VEC), column = at % (D / VEC) * VEC;
        Chunk chunk = {};
        if (first + row < rows)
            chunk = *reinterpret_cast<const Chunk *>(from + (size_t)(first + row) * stride + column);
        *reinterpret_cast<Chunk *>(&to[row][column]) = chunk;
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
sweep(const half *q, const half *k, const half *v, half *out, int heads, int rows, float scale_log2) {
    __shared__ __align__(16) half sq[M][D], sk[N][D], sv[N][D], sp[M][N];
    __shared__ float ss[M][N], row_max[M], row_sum[M], rescale[M];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int stride = heads * D, first = blockIdx.x * M;
    const size_t begin = ((size_t)blockIdx.z * rows * heads + blockIdx.y) * D;

    copy<M>(sq, q + begin, first, rows, stride);
    for (int row = threadIdx.x; row < M; row += WARPS * 32) {
        row_max[row] = -1e30f;
        row_sum[row] = 0;
    }
    float sums[TILES][4] = {};
    for (int key = 0; key < rows; key += N) {
        copy<N>(sk, k + begin, key, rows, stride);
        copy<N>(sv, v + begin, key, rows, stride);
        __syncthreads();
        for (int i = 0; i < TILES; i++) {
            int tile = warp + WARPS * i, row = tile / (N / 8) * 16 + g, column = tile % (N / 8) * 8;
            float scores[4] = {};
            for (int d = 0; d < D; d += 16) {
                uint32_t a[4], b[2] = {pair(&sk[column + g][d + 2 * t]), pair(&sk[column + g][d + 2 * t + 8])};
                load_a<D>(a, sq, row, d + 2 * t);
                multiply(scores, a, b);
            }
            for (int j = 0; j < 4; j++) {
                int at = column + 2 * t + j % 2;
                ss[row + j / 2 * 8][at] = key + at < rows ? scores[j] * scale_log2 : -1e30f;
            }
        }
        __syncthreads();
        for (int row = warp; row < M; row += WARPS) {
            float left = ss[row][lane], right = ss[row][lane + 32], most = fmaxf(left, right);
            for (int by = 16; by; by /= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
            most = fmaxf(most, row_max[row]);
            left = exp2f(left - most), right = exp2f(right - most);
            sp[row][lane] = __float2half(left), sp[row][lane + 32] = __float2half(right);
            float sum = left + right;
            for (int by = 16; by; by /= 2)
                sum += __shfl_xor_sync(~0u, sum, by);
            __syncwarp();
            if (lane == 0) {
                rescale[row] = exp2f(row_max[row] - most);
                row_sum[row] = row_sum[row] * rescale[row] + sum;
                row_max[row] = most;
            }
        }
#if BUG == hang
        while (*(volatile float *)row_sum >= 0) {
        }
#endif
#if BUG != race
        __syncthreads();
#endif
        for (int i = 0; i < TILES; i++) {
            int tile = warp + WARPS * i, row = tile / (D / 8) * 16 + g, column = tile % (D / 8) * 8 + g;
            for (int j = 0; j < 4; j++)
                sums[i][j] *= rescale[row + j / 2 * 8];
            for (int d = 0; d < N; d += 16) {
                uint32_t a[4], b[2];
                load_a<N>(a, sp, row, d + 2 * t);
                for (int j = 0; j < 2; j++) {
                    half2 both = {sv[d + 8 * j + 2 * t][column], sv[d + 8 * j + 2 * t + 1][column]};
                    b[j] = *reinterpret_cast<uint32_t *>(&both);
                }
                multiply(sums[i], a, b);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < TILES; i++) {
        int tile = warp + WARPS * i, row = tile / (D / 8) * 16 + g, column = tile % (D / 8) * 8 + 2 * t;
        for (int j = 0; j < 4; j++) {
            int at = row + j / 2 * 8;
            if (first + at < rows)
                out[begin + (size_t)(first + at) * stride + column + j % 2] = __float2half(sums[i][j] / row_sum[at]);
        }
    }
}
