//! What the kernels of the family share: who computes what, plain copies into shared memory, scores on tensor cores.

use std::cell::RefCell;

use flashcore_ir::fragment::{Acc, MmaElement};
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedPtr, Val, Widen};

use super::Config;
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::lengths::TensorParam;
use crate::attention::params::{Params, Shape};
use crate::tiles::{CHUNK, Fragments, HeadTile, STEP, a_lane, b_lane, padded};

/// Rows of a warp: those of one tensor-core instruction.
pub(super) const WARP_ROWS: u32 = 16;

/// Rows of a head, and the tile that they are copied to.
pub(super) struct HeadRows<'k, E> {
    pub tile: HeadTile<'k, E>,
    tensor: TensorParam<'k, E>,
    head: GlobalPtr<'k, E>,
}

/// The block's rows and head, and the keys that any of its rows sees, from whole tiles.
pub(super) struct Block<'k, E> {
    pub params: Params<'k, E>,
    pub batch_head: Val<'k, u32>,
    pub batch: Val<'k, u32>,
    pub head: Val<'k, u32>,
    pub first_row: Val<'k, u32>,
    pub out_head: GlobalPtr<'k, E>,
    pub q: HeadRows<'k, E>,
    pub k: HeadRows<'k, E>,
    pub v: HeadRows<'k, E>,
    first_key: Val<'k, i32>,
    end_key: Val<'k, i32>,
}

impl<'k, E: MmaElement + Widen> Block<'k, E> {
    #[track_caller]
    pub(super) fn new(k: &'k Args<'k, Forward>, levers: &Config, shape: &Shape) -> Self {
        k.min_blocks_per_sm(1);
        let params = Params::<E>::declare(k, shape);
        let rows = levers.rows();
        let tiles = (params.seq_len_q + (rows - 1)) / rows;
        let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
        let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
        let kv_head = head / params.group_size;
        let first_row = tile * rows;
        // Bounds grow with the row: the first row sees the lowest key, the last row the highest.
        let last_row = (first_row + (rows - 1)).min(params.seq_len_q - 1);
        let cols = levers.cols;
        let head_rows = |name, rows, head_dim, tensor: TensorParam<'k, E>, head| HeadRows {
            tile: HeadTile::declare(k, name, rows, head_dim, 1, false),
            tensor,
            head: tensor.head(batch, head),
        };
        Block {
            batch_head,
            batch,
            head,
            first_row,
            q: head_rows("q_tile", rows, shape.head_dim, params.q, head),
            k: head_rows("k_tile", cols, shape.head_dim, params.k, kv_head),
            v: head_rows("v_tile", cols, shape.head_dim_v, params.v, kv_head),
            out_head: params.out.head(batch, head),
            first_key: params.visible_keys(first_row).0 / cols as i32 * cols as i32,
            end_key: params.visible_keys(last_row).1,
            params,
        }
    }

    /// Copies Q, and calls `body` with the first key of each tile of K and V that has been copied.
    pub(super) fn for_each_tile(&self, body: impl FnOnce(Val<'k, u32>)) {
        let (k, params) = (self.first_row.builder(), &self.params);
        self.q.load(self.first_row, params.seq_len_q);
        let step = self.k.tile.tile.rows() as i32;
        k.for_uniform(self.first_key, self.end_key, step, |key0| {
            let key0 = key0.reinterpret::<u32>();
            k.barrier();
            self.k.load(key0, params.seq_len_kv);
            self.v.load(key0, params.seq_len_kv);
            k.barrier();
            body(key0);
        });
    }
}

/// Chunks that a thread reads before it stores them: memory is waited for once a batch, and registers hold one.
const BATCH: usize = 4;

impl<'k, E: MmaElement + Widen> HeadRows<'k, E> {
    /// Copies rows `first..` into the tile, through registers; rows at or past `len` and the padding become zero.
    #[track_caller]
    fn load(&self, first: Val<'k, u32>, len: Val<'k, u32>) {
        let (k, HeadRows { tile, tensor, head }) = (first.builder(), self);
        let copy = |batch: &[(Val<'k, u32>, Val<'k, u32>, SharedPtr<'k, E>)]| {
            let mut read = Vec::new();
            for &(row, column, _) in batch {
                // What does not exist is read from the last chunk that does, and not used.
                let from = tensor.row(*head, (first + row).min(len - 1));
                let from = from.offset(column.min(tile.head_dim - CHUNK));
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
