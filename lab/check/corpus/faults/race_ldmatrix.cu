// fault: shared-race
// Transpose of a 32x16 tile of 16-bit elements: warps copy rows, ldmatrix.trans reads 8x8 blocks
// that other warps copied.
extern "C" __global__ void race_ldmatrix(const uint4* in, unsigned* out) {
    __shared__ __align__(16) unsigned short tile[32][24];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // 64 threads: 8 elements each, warp 0 the rows below 16.
    uint4* mine = reinterpret_cast<uint4*>(&tile[threadIdx.x / 2][threadIdx.x % 2 * 8]);
    *mine = in[threadIdx.x];  // FAULT

    unsigned r[4];
    // Warp w has the columns from 8 w on, of all 32 rows.
    const unsigned at = (unsigned)__cvta_generic_to_shared(&tile[lane][warp * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)  // FAULT
                 : "memory");
    for (int i = 0; i < 4; ++i) out[(warp * 8 + lane / 4) * 16 + i * 4 + lane % 4] = r[i];
}
