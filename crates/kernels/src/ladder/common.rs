//! What the kernels of the family share: who computes what, plain copies into shared memory, scores on tensor cores.

use std::cell::RefCell;

use flashcore_ir::fragment::{Acc, MmaElement};
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedPtr, Val, Widen};

use super::Config;
use crate::attention::lengths::TensorParam;
use crate::attention::params::Params;
use crate::tiles::{CHUNK, Fragments, HeadTile, STEP, a_lane, b_lane, padded};

/// Rows of a warp: those of one tensor-core instruction.
pub(super) const WARP_ROWS: u32 = 16;

/// The block's rows and head, and the keys that any of its rows sees, from whole tiles.
pub(super) struct Block<'k, E> {
    pub batch_head: Val<'k, u32>,
    pub batch: Val<'k, u32>,
    pub head: Val<'k, u32>,
    pub first_row: Val<'k, u32>,
    pub q_head: GlobalPtr<'k, E>,
    pub k_head: GlobalPtr<'k, E>,
    pub v_head: GlobalPtr<'k, E>,
    pub out_head: GlobalPtr<'k, E>,
    pub first_key: Val<'k, i32>,
    pub end_key: Val<'k, i32>,
}

impl<'k, E: MmaElement> Block<'k, E> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, params: &Params<'k, E>, levers: &Config) -> Self {
        let rows = levers.rows();
        let tiles = (params.seq_len_q + (rows - 1)) / rows;
        let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
        let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
        let kv_head = head / params.group_size;
        let first_row = tile * rows;
        // Bounds grow with the row: the first row sees the lowest key, the last row the highest.
        let last_row = (first_row + (rows - 1)).min(params.seq_len_q - 1);
        let cols = levers.cols as i32;
        Block {
            batch_head,
            batch,
            head,
            first_row,
            q_head: params.q.head(batch, head),
            k_head: params.k.head(batch, kv_head),
            v_head: params.v.head(batch, kv_head),
            out_head: params.out.head(batch, head),
            first_key: params.visible_keys(first_row).0 / cols * cols,
            end_key: params.visible_keys(last_row).1,
        }
    }
}

/// Chunks that a thread reads before it stores them: memory is waited for once a batch, and registers hold one.
const BATCH: usize = 4;

/// Copies rows `first..` of a head into a tile, through registers; rows at or past `len` and the padding become zero.
#[track_caller]
pub(super) fn load_tile<'k, E: MmaElement + Widen>(
    k: &'k KernelBuilder,
    tile: HeadTile<'k, E>,
    tensor: &TensorParam<'k, E>,
    head: GlobalPtr<'k, E>,
    first: Val<'k, u32>,
    len: Val<'k, u32>,
) {
    let copy = |batch: &[(Val<'k, u32>, Val<'k, u32>, SharedPtr<'k, E>)]| {
        let mut read = Vec::new();
        for &(row, column, _) in batch {
            // What does not exist is read from the last chunk that does, and not used.
            let from = tensor
                .row(head, (first + row).min(len - 1))
                .offset(column.min(tile.head_dim - CHUNK));
            read.push(from.load_words(CHUNK / 2, Cache::ReadOnly));
        }
        for (&(row, column, place), words) in batch.iter().zip(read) {
            let exists = (first + row).lt(len) & column.lt(tile.head_dim);
            k.if_else(
                exists.divergent(),
                || place.store_words(&words, Cache::Default),
                || place.store_f32s(&vec![k.constant(0.0); CHUNK as usize], 16, Cache::Default),
            );
        }
    };
    k.verb("load_tile", || {
        let chunks = tile.chunks(k);
        if !chunks.are_whole() {
            return chunks.for_each(|row, column, place| copy(&[(row, column, place)]));
        }
        let all = RefCell::new(Vec::new());
        chunks.for_each(|row, column, place| all.borrow_mut().push((row, column, place)));
        all.into_inner().chunks(BATCH).for_each(copy);
    });
}

/// Where a warp's lanes read the operands of its scores.
pub(super) struct ScoreOperands<'k, E> {
    q: Fragments<'k, E>,
    k: Fragments<'k, E>,
}

impl<'k, E: MmaElement> ScoreOperands<'k, E> {
    #[track_caller]
    pub(super) fn new(
        k: &'k KernelBuilder,
        q_tile: HeadTile<'k, E>,
        k_tile: HeadTile<'k, E>,
        warp: Val<'k, u32>,
    ) -> Self {
        let (row, col) = a_lane(k.lane());
        let q = q_tile.fragments(row + warp * WARP_ROWS, col);
        let (row, col) = b_lane(k.lane());
        let k = k_tile.fragments(row, col);
        ScoreOperands { q, k }
    }

    /// `S = Q·Kᵀ` of the warp's 16 rows with a tile of keys.
    #[track_caller]
    pub(super) fn multiply(&self, k: &'k KernelBuilder, scores: Acc<'k>, head_dim: u32) {
        k.verb("S = Q*K", || {
            scores.zero();
            for step in (0..padded(head_dim)).step_by(STEP as usize) {
                let q = self.q.a(k, 0, step);
                for keys in 0..scores.tiles() / 2 {
                    let [left, right] = self.k.b_rows(k, keys * STEP, step);
                    k.mma(scores, 2 * keys, q, left);
                    k.mma(scores, 2 * keys + 1, q, right);
                }
            }
        });
    }
}
