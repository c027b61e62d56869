// Merge of two sorted arrays: each thread finds by binary search how much of both lies before its
// part (merge path), then merges serially.
__device__ __noinline__ int merge_path(const int* a, int na, const int* b, int nb, int diagonal) {
    int lo = max(0, diagonal - nb), hi = min(diagonal, na);
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (a[mid] <= b[diagonal - 1 - mid]) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

extern "C" __global__ void merge_sorted(const int* a, int na, const int* b, int nb, int* out,
                                        int each) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * each;
    if (first >= na + nb) return;
    int i = merge_path(a, na, b, nb, first);
    int j = first - i;
    for (int o = first; o < first + each && o < na + nb; ++o) {
        const bool from_a = j >= nb || (i < na && a[i] <= b[j]);
        out[o] = from_a ? a[i++] : b[j++];
    }
}
