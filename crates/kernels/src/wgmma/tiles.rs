//! Tiles in shared memory for tensor copies and `wgmma`: rows are cut into slabs of columns, each as wide as its
//! swizzle.

use flashcore_ir::fragment::AVars;
use flashcore_ir::{Cache, Element, KernelBuilder, SharedPtr, SharedTile, Swizzle, TileShape};

/// Bytes of a row that a `wgmma` reads, whatever the elements (its K dimension). Rows are padded with zeros to a
/// multiple.
const STEP_BYTES: u32 = 32;

/// Elements of `bytes` bytes in a step: the K of a `wgmma`.
pub(super) const fn step(bytes: u32) -> u32 {
    STEP_BYTES / bytes
}

pub(super) const fn padded(cols: u32, bytes: u32) -> u32 {
    cols.next_multiple_of(step(bytes))
}

/// Columns of a tile: a whole number of slabs, which may be more than products read. Slabs of 16-bit elements have 64
/// or 128 bytes, unless 32 bytes hold a row: five or seven slabs of 32 bytes take up to 1.7 times as long to copy.
const fn tile_cols(cols: u32, bytes: u32) -> u32 {
    let cols = padded(cols, bytes);
    match bytes {
        2 if cols > 16 => cols.next_multiple_of(32),
        _ => cols,
    }
}

/// Columns of one slab.
pub(super) const fn slab_cols(cols: u32, bytes: u32) -> u32 {
    let row = tile_cols(cols, bytes) * bytes;
    let slab = match row {
        _ if row.is_multiple_of(128) => 128,
        _ if row.is_multiple_of(64) => 64,
        _ => 32,
    };
    slab / bytes
}

/// Slabs of a tile's rows.
pub(super) const fn slab_count(cols: u32, bytes: u32) -> u32 {
    tile_cols(cols, bytes) / slab_cols(cols, bytes)
}

pub(super) const fn tile_bytes(rows: u32, cols: u32, bytes: u32, stages: u32) -> u32 {
    rows * tile_cols(cols, bytes) * bytes * stages
}

/// A tile of rows, all slabs of them.
pub(super) fn slabs<E: Element>(rows: u32, cols: u32) -> TileShape {
    let swizzle = match slab_cols(cols, E::BYTES) * E::BYTES {
        128 => Swizzle::B128,
        64 => Swizzle::B64,
        _ => Swizzle::B32,
    };
    let shape = TileShape::new(rows, tile_cols(cols, E::BYTES));
    shape.swizzled(swizzle).in_slabs()
}

/// Loads rows of a tile into registers, as operand A. A lane loads words of 4 bytes: the four lanes of a row load a
/// chunk of 16 bytes, and a step has two chunks. `place(column)` is the lane's word in the chunk that begins at a
/// slab's first `column`.
#[track_caller]
pub(super) fn load_operand<'k, E: Element>(
    tile: SharedTile<'k, E>,
    held: AVars<'k, E>,
    place: impl Fn(u32) -> SharedPtr<'k, E>,
) {
    let chunk = 16 / E::BYTES;
    let (slab, cols) = (tile.cols() / tile.slabs(), 2 * held.steps() * chunk);
    for first in (0..cols).step_by(slab as usize) {
        let place = place(first);
        for column in (0..slab.min(cols - first)).step_by(chunk as usize) {
            let at = tile.across(place, column);
            for half in 0..2 {
                let words = tile.down(at, 8 * half).load_words(1, Cache::Default);
                held.word(2 * (first + column) / chunk + half).set(words[0]);
            }
        }
    }
}

/// Zeros the rows of each stage from `first` on, which products read and no copy writes. A barrier of the block must
/// follow.
#[track_caller]
pub(super) fn zero_rows<E: Element>(k: &KernelBuilder, tile: SharedTile<'_, E>, first: u32) {
    let (rows, chunk) = (tile.rows() - first, 16 / E::BYTES);
    if rows == 0 {
        return;
    }
    let (chunks, zero) = (tile.cols() / chunk, k.constant(0u32).reinterpret::<E::Word>());
    let all = tile.stages() * rows * chunks;
    k.for_divergent(k.thread_idx(), all, k.threads(), |place| {
        let (row, column) = (place / chunks, place % chunks * chunk);
        let at = tile.at_stage(row / rows, row % rows + first, column);
        at.store_words(&[zero; 4], Cache::Default);
    });
    k.fence_proxy_async();
}
