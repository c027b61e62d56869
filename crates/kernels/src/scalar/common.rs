//! What the scalar kernels share: how operands are read.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, Val, Widen};

use crate::attention::lengths::TensorParam;
use crate::attention::params::Shape;

/// Elements that one thread loads at a time; `head_dim` is a multiple of it.
pub(super) const CHUNK: u32 = 8;

/// [`CHUNK`] elements of a row: zeros where it is on no page.
#[track_caller]
pub(super) fn load<'k, E: Widen>(
    at: GlobalPtr<'k, E>,
    on_page: Option<Val<'k, bool>>,
    bytes: u32,
) -> Vec<Val<'k, f32>> {
    let values = at.load_f32s(CHUNK, bytes, Cache::ReadOnly).into_iter();
    let there = |value| on_page.map_or(value, |on_page| on_page.select(value, 0.0));
    values.map(there).collect()
}

/// Copies rows `first..` of a head into a tile as f32; rows past `len` become zero.
#[track_caller]
pub(super) fn load_tile<'k, E: Widen>(
    k: &'k KernelBuilder,
    shape: &Shape,
    tile: SharedTile<'k, f32>,
    tensor: &TensorParam<'k, E>,
    head: GlobalPtr<'k, E>,
    first: Val<'k, u32>,
    len: Val<'k, u32>,
) {
    k.verb("load_tile", || {
        let chunks_per_row = tile.cols() / CHUNK;
        let chunks = tile.rows() * chunks_per_row;
        k.for_divergent(k.thread_idx(), chunks, k.threads(), |chunk| {
            let (row, column) = (chunk / chunks_per_row, chunk % chunks_per_row * CHUNK);
            let dst = tile.at(row, column);
            k.if_else(
                (first + row).lt(len).divergent(),
                || {
                    let (src, on_page) = tensor.key_row(head, first + row);
                    let values = load(src.offset(column), on_page, shape.vector_bytes);
                    dst.store_f32s(&values, 16, Cache::Default);
                },
                || dst.store_f32s(&[k.constant(0.0); CHUNK as usize], 16, Cache::Default),
            );
        });
    });
}
