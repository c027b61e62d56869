//! The result on its way out: merged over the warps along the keys, normalised, rounded, stored; or, where blocks
//! share the keys, stored as a partial.

use flashcore_ir::{Cache, TileShape, Val};

use super::consumer::Warp;
use super::producer::{Block, Keys};
use crate::attention::epilogue::normaliser;
use crate::attention::row_tile::{ACC_COLS, QUAD, RowTile, lane_column, lane_row};
use crate::attention::softmax::{Row, SixteenBits};
use crate::attention::split::Partial;
use crate::tiles::{CHUNK, HeadTile, padded, tile_bytes};

pub(super) struct Epilogue<'k, 'p, E> {
    pub(super) warp: &'p Warp<'k, 'p, E>,
    pub(super) block: &'p Block<'k>,
}

impl<'k, E: SixteenBits> Epilogue<'k, '_, E> {
    /// The lane's rows: row block, half, output and state.
    fn rows(&self) -> impl Iterator<Item = (usize, usize, RowTile<'k>, Row<'k>)> {
        let rows = self.warp.rows.iter().enumerate();
        rows.map(|(i, row)| (i / 2, i % 2, self.warp.out[i / 2], *row))
    }

    /// Stores the output, or the partials of a piece.
    #[track_caller]
    pub(super) fn store(&self, q_tile: HeadTile<'k, E>) {
        self.in_pieces(|| self.store_partials(), || self.store_output(q_tile));
    }

    /// Does one thing where the block has a piece of its rows' keys, the other where it has all of them.
    #[track_caller]
    fn in_pieces(&self, piece: impl FnOnce(), whole: impl FnOnce()) {
        match &self.block.keys {
            Keys::All => whole(),
            Keys::Split(_) => piece(),
            Keys::Item(item) => self.warp.k.if_else(item.slot().ne(0).uniform(), piece, whole),
        }
    }

    #[track_caller]
    fn store_partials(&self) {
        let Warp { k, shape, .. } = *self.warp;
        let column = lane_column(k);
        for (m, half, out, row) in self.rows() {
            let (sum, at) = (row.total(), self.warp.row(m, half));
            k.if_(at.lt(self.block.rows.count).divergent(), || {
                if let Some(partial) = self.partial(at) {
                    partial.store_row(&out, half, column, shape.head_dim_v, &row.max, sum);
                }
            });
        }
    }

    /// Rounds the output into shared memory and stores it from there, 16 bytes an access.
    #[track_caller]
    fn store_output(&self, q_tile: HeadTile<'k, E>) {
        let Warp { k, levers, shape, .. } = *self.warp;
        let head_dim_v = shape.head_dim_v;
        let fits = tile_bytes(levers.rows, head_dim_v, 1) <= tile_bytes(levers.rows, shape.head_dim, 1);
        let out_tile = if fits {
            HeadTile::reusing(k, "out_tile", levers.rows, head_dim_v, levers.swizzled, q_tile)
        } else {
            HeadTile::declare(k, "out_tile", levers.rows, head_dim_v, 1, levers.swizzled)
        };
        let first = self.warp.place.first_row + lane_row(k);
        let column = lane_column(k);
        for (m, half, out, row) in self.rows() {
            let sum = row.total();
            let norm = normaliser(sum);
            for tile in 0..padded(head_dim_v) / ACC_COLS {
                let pair = out.pair(tile, half).map(|value| value * norm);
                let place = out_tile.at_column(first + (16 * m as u32 + 8 * half as u32), tile * ACC_COLS, column);
                place.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
            }
            self.store_lse(self.warp.row(m, half), sum, row.max.offset.get(), column);
        }
        k.barrier();
        out_tile.chunks(k).for_each(|row, column, place| {
            let row = self.block.first_row + row;
            let exists = row.lt(self.block.rows.count) & column.lt(head_dim_v);
            k.if_(exists.divergent(), || {
                let words = place.load_words(4, Cache::Default);
                let out = self.block.rows.of(&self.warp.params.out, row);
                out.offset(column).store_words(&words, Cache::Default);
            });
        });
    }

    #[track_caller]
    fn store_lse(&self, row: Val<'k, u32>, sum: Val<'k, f32>, offset: Val<'k, f32>, column: Val<'k, u32>) {
        let Warp { k, params, shape, .. } = *self.warp;
        if !shape.lse {
            return;
        }
        let mine = column.eq(0) & row.lt(self.block.rows.count);
        k.if_(mine.divergent(), || {
            let (batch_head, query) = self.block.rows.batch_head_and_query(params.num_heads, row);
            params.store_lse(batch_head, query, offset, sum);
        });
    }

    /// The block's partial of a row, if it may have a piece of its keys.
    #[track_caller]
    fn partial(&self, row: Val<'k, u32>) -> Option<Partial<'k>> {
        let (partials, params, k) = (self.warp.params.partials?, self.warp.params, self.warp.k);
        match &self.block.keys {
            Keys::All => None,
            Keys::Split(split) => {
                let (batch_head, query) = self.block.rows.batch_head_and_query(params.num_heads, row);
                Some(partials.at(batch_head.fma(params.seq_len_q, query), split.index, split.count))
            }
            Keys::Item(item) => {
                let rows = k.constant(self.warp.levers.rows);
                Some(partials.at(item.slot() - 1, row - self.block.first_row, rows))
            }
        }
    }

    /// Merges the results of the warps along the keys, and stores them.
    ///
    /// Each warp stores its output, not normalised, with the sums and maxima it is relative to, in the
    /// bytes of the K and V tiles; then all threads share the rows again.
    #[track_caller]
    pub(super) fn merge_and_store(&self, k_tile: HeadTile<'k, E>, v_tile: HeadTile<'k, E>) {
        let Warp { k, levers, .. } = *self.warp;
        let head_dim_v = self.warp.shape.head_dim_v;
        let cols = padded(head_dim_v);
        // Rows that start eight banks apart: the pairs that four rows of a quad write are then in different ones.
        let tile = TileShape::new(levers.rows, cols)
            .padded(merge_padding(cols))
            .stages(levers.kv_warps);
        let needed = 4 * levers.rows * (cols + merge_padding(cols)) * levers.kv_warps;
        let (of_k, of_v) = (k_tile.tile, v_tile.tile);
        let parts = if needed <= of_k.stages() * of_k.stage_bytes() {
            k.shared_tile_reusing::<f32, E>("parts", tile, of_k)
        } else if needed <= of_v.stages() * of_v.stage_bytes() {
            k.shared_tile_reusing::<f32, E>("parts", tile, of_v)
        } else {
            k.shared_tile::<f32>("parts", tile)
        };
        // The offsets of all rows, then their sums.
        let sums = k.shared_tile::<f32>("sums", TileShape::new(2, levers.rows).stages(levers.kv_warps));

        let place = self.warp.place;
        let first = place.first_row + lane_row(k);
        let column = lane_column(k);
        let mine = parts.at_stage(place.kv_warp, first, column);
        let mine_sums = sums.at_stage(place.kv_warp, 0, first);
        for (m, half, out, row) in self.rows() {
            let down = 16 * m as u32 + 8 * half as u32;
            let place = parts.down(mine, down);
            for tile in 0..cols / ACC_COLS {
                let pair = out.pair(tile, half).map(|value| value.get());
                place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
            }
            let sum = row.total();
            k.if_((k.lane() % QUAD).eq(0).divergent(), || {
                mine_sums.plus(down as i32).store(row.max.offset);
                sums.down(mine_sums, 1).plus(down as i32).store(sum);
            });
        }
        k.barrier();

        let per_row = head_dim_v / CHUNK;
        k.for_divergent(k.thread_idx(), levers.rows * per_row, k.threads(), |chunk| {
            let (row_in_tile, column) = (chunk / per_row, chunk % per_row * CHUNK);
            // The lowest offset belongs to the highest maximum.
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
            let store_partial = || {
                k.if_(row.lt(self.block.rows.count).divergent(), || {
                    if let Some(partial) = self.partial(row) {
                        partial.out.offset(column).store_f32s(&out, 16, Cache::Default);
                        k.if_(column.eq(0).divergent(), || partial.store_sum(offset, sum));
                    }
                });
            };
            let store_whole = || {
                let norm = normaliser(sum);
                k.if_(row.lt(self.block.rows.count).divergent(), || {
                    let values: Vec<_> = out.iter().map(|&value| value * norm).collect();
                    let out_row = self.block.rows.of(&self.warp.params.out, row);
                    out_row.offset(column).store_f32s(&values, 16, Cache::Default);
                });
                self.store_lse(row, sum, offset, column);
            };
            self.in_pieces(store_partial, store_whole);
        });
    }
}

/// Elements that rows of f32 are padded by, so that neighbouring rows start eight banks apart.
pub(super) const fn merge_padding(cols: u32) -> u32 {
    (8 + 32 - cols % 32) % 32
}
