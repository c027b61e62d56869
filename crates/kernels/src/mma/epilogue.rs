//! The result on its way out: merged over the warps along the keys, normalised, rounded, stored; or, where
//! blocks share out the keys, stored as a part.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, TileShape, Val, Widen};

use super::Config;
use super::place::{Block, Split, WarpPlace};
use super::warp::State;
use crate::lanes::{ACC_COLS, QUAD};
use crate::params::{Params, Shape};
use crate::parts::{Part, Parts};
use crate::softmax::normaliser;
use crate::tiles::{CHUNK, HeadTile, padded, tile_bytes};

pub(super) struct Epilogue<'k, 'p, E> {
    pub(super) k: &'k KernelBuilder,
    pub(super) params: &'p Params<'k, E>,
    pub(super) block: &'p Block<'k>,
    pub(super) warp: &'p WarpPlace<'k>,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
}

impl<'k, E: MmaElement + Widen> Epilogue<'k, '_, E> {
    /// Rounds the output into shared memory and stores it from there, 16 bytes an access.
    #[track_caller]
    pub(super) fn store(&self, state: &State<'k>, q_tile: HeadTile<'k, E>) {
        if let (Some(parts), Some(split)) = (self.params.parts, self.block.split) {
            return self.store_parts(state, &parts, split);
        }
        let (k, levers, head_dim_v) = (self.k, self.levers, self.shape.head_dim_v);
        let fits = tile_bytes(levers.rows, head_dim_v, 1) <= tile_bytes(levers.rows, self.shape.head_dim, 1);
        let out_tile = if fits {
            HeadTile::reusing(k, "out_tile", levers.rows, head_dim_v, levers.swizzled, q_tile)
        } else {
            HeadTile::declare(k, "out_tile", levers.rows, head_dim_v, 1, levers.swizzled)
        };
        let first = self.warp.first_row + k.lane() / QUAD;
        let column = k.lane() % QUAD * 2u32;
        for (m, block) in state.blocks.iter().enumerate() {
            for (half, row) in block.rows.iter().enumerate() {
                let sum = row.sum.get().reduce_sum(QUAD);
                let norm = normaliser(sum);
                for tile in 0..padded(head_dim_v) / ACC_COLS {
                    let pair = [0, 1].map(|e| block.out.var(4 * tile + 2 * half as u32 + e) * norm);
                    let place = out_tile.at_column(first + (16 * m as u32 + 8 * half as u32), tile * ACC_COLS, column);
                    place.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
                }
                self.store_lse(state.row(m, half), sum, row.reference.offset.get(), column);
            }
        }
        k.barrier();
        out_tile.chunks(k).for_each(|row, column, place| {
            let row = self.block.first_row + row;
            let exists = row.lt(self.block.num_rows) & column.lt(head_dim_v);
            k.if_(exists.divergent(), || {
                let words = place.load_words(4, Cache::Default);
                self.out_row(row).offset(column).store_words(&words, Cache::Default);
            });
        });
    }

    /// Stores the log-sum-exp of a row, if it is asked for and this is the lane that has its first column.
    #[track_caller]
    fn store_lse(&self, row: Val<'k, u32>, sum: Val<'k, f32>, offset: Val<'k, f32>, column: Val<'k, u32>) {
        if !self.shape.lse {
            return;
        }
        let mine = column.eq(0) & row.lt(self.block.num_rows);
        self.k.if_(mine.divergent(), || {
            let (head, query) = self.block.head_and_query(row);
            let batch_head = self.block.batch.fma(self.params.num_heads, head);
            self.params.store_lse(batch_head, query, offset, sum);
        });
    }

    /// The part of a row that this block computes.
    #[track_caller]
    fn part(&self, parts: &Parts<'k>, split: Split<'k>, row: Val<'k, u32>) -> Part<'k> {
        let (head, query) = self.block.head_and_query(row);
        let batch_head = self.block.batch.fma(self.params.num_heads, head);
        parts.at(batch_head.fma(self.params.seq_len_q, query), split.index, split.count)
    }

    /// Stores the block's parts straight from registers: four lanes fill a sector of 32 bytes.
    #[track_caller]
    fn store_parts(&self, state: &State<'k>, parts: &Parts<'k>, split: Split<'k>) {
        let k = self.k;
        let column = k.lane() % QUAD * 2u32;
        for (m, block) in state.blocks.iter().enumerate() {
            for (half, row) in block.rows.iter().enumerate() {
                let sum = row.sum.get().reduce_sum(QUAD);
                let at = state.row(m, half);
                k.if_(at.lt(self.block.num_rows).divergent(), || {
                    let part = self.part(parts, split, at);
                    let place = part.out.offset(column);
                    for tile in 0..self.shape.head_dim_v / ACC_COLS {
                        let pair = [0, 1].map(|e| block.out.var(4 * tile + 2 * half as u32 + e).get());
                        place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
                    }
                    k.if_(column.eq(0).divergent(), || {
                        part.store_sum(row.reference.offset.get(), sum)
                    });
                });
            }
        }
    }

    #[track_caller]
    fn out_row(&self, row: Val<'k, u32>) -> GlobalPtr<'k, E> {
        let (head, query) = self.block.head_and_query(row);
        self.params.out.row(self.params.out.head(self.block.batch, head), query)
    }

    /// Merges what the warps along the keys have found, and stores it.
    ///
    /// Each leaves its output, not yet normalised, with the sums and references it is relative to, in the
    /// bytes of the tiles of keys; then all threads share the rows out anew.
    #[track_caller]
    pub(super) fn merge_and_store(&self, state: &State<'k>, k_tile: HeadTile<'k, E>, v_tile: HeadTile<'k, E>) {
        let (k, levers, head_dim_v) = (self.k, self.levers, self.shape.head_dim_v);
        let cols = padded(head_dim_v);
        // Rows that start eight banks apart: the pairs that four rows of a quad write are then in different ones.
        let shape = TileShape::new(levers.rows, cols)
            .padded(merge_padding(cols))
            .stages(levers.kv_warps);
        let needed = 4 * levers.rows * (cols + merge_padding(cols)) * levers.kv_warps;
        let (of_k, of_v) = (k_tile.shared(), v_tile.shared());
        let parts = if needed <= of_k.stages() * of_k.stage_bytes() {
            k.shared_tile_reusing::<f32, E>("parts", shape, of_k)
        } else if needed <= of_v.stages() * of_v.stage_bytes() {
            k.shared_tile_reusing::<f32, E>("parts", shape, of_v)
        } else {
            k.shared_tile::<f32>("parts", shape)
        };
        // The offsets of all rows, then their sums.
        let sums = k.shared_tile::<f32>("sums", TileShape::new(2, levers.rows).stages(levers.kv_warps));

        let first = self.warp.first_row + k.lane() / QUAD;
        let column = k.lane() % QUAD * 2u32;
        let mine = parts.at_stage(self.warp.kv_warp, first, column);
        let mine_sums = sums.at_stage(self.warp.kv_warp, 0, first);
        for (m, block) in state.blocks.iter().enumerate() {
            for (half, row) in block.rows.iter().enumerate() {
                let down = 16 * m as u32 + 8 * half as u32;
                let place = parts.down(mine, down);
                for tile in 0..cols / ACC_COLS {
                    let pair = [0, 1].map(|e| block.out.var(4 * tile + 2 * half as u32 + e).get());
                    place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
                }
                let sum = row.sum.get().reduce_sum(QUAD);
                k.if_((k.lane() % QUAD).eq(0).divergent(), || {
                    mine_sums.plus(down as i32).store(row.reference.offset);
                    sums.down(mine_sums, 1).plus(down as i32).store(sum);
                });
            }
        }
        k.barrier();

        let per_row = head_dim_v / CHUNK;
        k.for_divergent(k.thread_idx(), levers.rows * per_row, k.threads(), |chunk| {
            let (row_in_tile, column) = (chunk / per_row, chunk % per_row * CHUNK);
            // The lowest offset belongs to the highest reference.
            let mut found = Vec::new();
            for part in 0..levers.kv_warps {
                let offset = sums.at_stage(part, 0, row_in_tile);
                found.push((offset.load(), sums.down(offset, 1).load()));
            }
            let offset = found[1..].iter().fold(found[0].0, |lowest, part| lowest.min(part.0));
            // Of eight threads that read together, four read their first quad of columns and four their second, then
            // the other: the eight quads are then in different banks, if a row has a multiple of four chunks or one more.
            let second_first = (chunk / 4u32 % 2u32).ne(0);
            let quads = [second_first.select(4u32, 0u32), second_first.select(0u32, 4u32)];
            let mut sum = k.constant(0.0);
            let mut read = [[k.constant(0.0); 4]; 2];
            for (part, &(part_offset, part_sum)) in found.iter().enumerate() {
                let factor = (offset - part_offset).exp2();
                sum = part_sum.fma(factor, sum);
                let place = parts.at_stage(part as u32, row_in_tile, column);
                for (read, &quad) in read.iter_mut().zip(&quads) {
                    let values = place.offset(quad).load_words(4, Cache::Default);
                    for (read, value) in read.iter_mut().zip(values) {
                        *read = value.fma(factor, *read);
                    }
                }
            }
            let mut out = Vec::new();
            for i in 0..CHUNK as usize {
                let (quad, i) = (i / 4, i % 4);
                out.push(second_first.select(read[1 - quad][i], read[quad][i]));
            }
            let row = self.block.first_row + row_in_tile;
            if let (Some(parts), Some(split)) = (self.params.parts, self.block.split) {
                k.if_(row.lt(self.block.num_rows).divergent(), || {
                    let part = self.part(&parts, split, row);
                    part.out.offset(column).store_f32s(&out, 16, Cache::Default);
                    k.if_(column.eq(0).divergent(), || part.store_sum(offset, sum));
                });
                return;
            }
            let norm = normaliser(sum);
            k.if_(row.lt(self.block.num_rows).divergent(), || {
                let values: Vec<_> = out.iter().map(|&value| value * norm).collect();
                self.out_row(row).offset(column).store_f32s(&values, 16, Cache::Default);
            });
            self.store_lse(row, sum, offset, column);
        });
    }
}

/// Elements that rows of f32 are padded by, so that neighbouring rows start eight banks apart.
pub(super) const fn merge_padding(cols: u32) -> u32 {
    (8 + 32 - cols % 32) % 32
}
