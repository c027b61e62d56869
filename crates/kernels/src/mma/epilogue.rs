//! Stores the output: merged over the warps along the keys, normalised and rounded; or, where blocks share the keys, as
//! a partial.

use flashcore_ir::{Cache, Val};

use super::consumer::Warp;
use super::producer::{Block, KvPart};
use crate::attention::epilogue::Total;
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::attention::softmax::{Row, SixteenBits, partial_offset};
use crate::attention::split::Partial;
use crate::attention::warp_partials::WarpPartials;
use crate::tiles::{HeadTile, padded, tile_bytes};

impl<'k, E: SixteenBits> Warp<'k, '_, E> {
    /// The lane's rows: how far below the first one, half, output and state.
    fn results(&self) -> impl Iterator<Item = (u32, usize, RowTile<'k>, Row<'k>)> {
        let rows = self.rows.iter().enumerate();
        rows.map(|(i, row)| (8 * i as u32, i % 2, self.out[i / 2], *row))
    }

    /// Stores the output, or the partials of a piece.
    #[track_caller]
    pub(super) fn store(&self, q_tile: HeadTile<'k, E>) {
        self.in_pieces(|| self.store_partials(), || self.store_output(q_tile));
    }

    /// Calls `piece` if the block has a part of its rows' keys, `whole` if it has all of them.
    #[track_caller]
    fn in_pieces(&self, piece: impl FnOnce(), whole: impl FnOnce()) {
        match &self.block.keys {
            KvPart::All => whole(),
            KvPart::Split(..) => piece(),
            KvPart::Item(item, _) => self.k.if_else(item.slot().ne(0).uniform(), piece, whole),
        }
    }

    #[track_caller]
    fn store_partials(&self) {
        let (k, shape, column) = (self.k, self.shape, lane_column(self.k));
        for (down, half, out, row) in self.results() {
            let (sum, at) = (row.total(), self.first_row + down);
            let offset = partial_offset(row.max.offset.get(), shape.dtype, || self.visible(at));
            k.if_(at.lt(self.block.rows.count).divergent(), || {
                if let Some(partial) = self.partial(at) {
                    partial.store_row(&out, half, column, shape.head_dim_v, offset, sum);
                }
            });
        }
    }

    /// Rounds the output into shared memory and stores it from there, 16 bytes an access.
    #[track_caller]
    fn store_output(&self, q_tile: HeadTile<'k, E>) {
        let Block { k, levers, shape, .. } = *self.block;
        let head_dim_v = shape.head_dim_v;
        let fits = tile_bytes(levers.rows, head_dim_v, 1) <= tile_bytes(levers.rows, shape.head_dim, 1);
        let out_tile = if fits {
            HeadTile::reusing(k, "out_tile", levers.rows, head_dim_v, levers.swizzled, q_tile)
        } else {
            HeadTile::declare(k, "out_tile", levers.rows, head_dim_v, 1, levers.swizzled)
        };
        let first = self.place.first_row + lane_row(k);
        let column = lane_column(k);
        for (down, half, out, row) in self.results() {
            let at = self.first_row + down;
            let (head, keys) = (|| self.block.rows.head_of(at), self.visible(at));
            let total = self.params.total(head, row.max.offset.get(), row.total(), keys);
            let norm = total.norm();
            for tile in 0..padded(head_dim_v) / ACC_COLS {
                let pair = out.pair(tile, half).map(|value| value * norm);
                let place = out_tile.at_column(first + down, tile * ACC_COLS, column);
                place.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
            }
            self.store_lse(at, &total, column);
        }
        k.barrier();
        out_tile.chunks(k).for_each(|row, column, place| {
            let row = self.block.first_row + row;
            let exists = row.lt(self.block.rows.count) & column.lt(head_dim_v);
            k.if_(exists.divergent(), || {
                let words = place.load_words(4, Cache::Default);
                let out = self.block.rows.of(&self.params.out, row);
                out.offset(column).store_words(&words, Cache::Default);
            });
        });
    }

    #[track_caller]
    fn store_lse(&self, row: Val<'k, u32>, total: &Total<'k>, column: Val<'k, u32>) {
        if !self.shape.lse {
            return;
        }
        let mine = column.eq(0) & row.lt(self.block.rows.count);
        self.k.if_(mine.divergent(), || {
            let (batch_head, query) = self.block.rows.batch_head_and_query(self.params.num_heads, row);
            self.params.store_lse(batch_head, query, total);
        });
    }

    /// The block's partial of a row, if it may have a piece of its keys.
    #[track_caller]
    fn partial(&self, row: Val<'k, u32>) -> Option<Partial<'k>> {
        let (partials, params) = (self.params.partials?, &self.params);
        match &self.block.keys {
            KvPart::All => None,
            KvPart::Split(split, splits) => {
                let (batch_head, query) = self.block.rows.batch_head_and_query(params.num_heads, row);
                Some(partials.at(batch_head.fma(params.seq_len_q, query), *split, *splits))
            }
            KvPart::Item(item, _) => {
                let rows = self.k.constant(self.levers.rows);
                Some(partials.at(item.slot() - 1, row - self.block.first_row, rows))
            }
        }
    }

    /// Merges the results of the warps along the keys, and stores them.
    #[track_caller]
    pub(super) fn merge_and_store(&self, k_tile: HeadTile<'k, E>, v_tile: HeadTile<'k, E>) {
        let Block { k, levers, shape, .. } = *self.block;
        let of = [levers.rows, shape.head_dim_v, levers.kv_warps];
        // Packed heads seldom fill a tile.
        let existing = (levers.pack_heads).then(|| self.block.rows.count - self.block.first_row);
        let partials = WarpPartials::declare(k, of, [k_tile.tile, v_tile.tile], existing);
        partials.store(self.place.kv_warp, self.place.first_row, self.results());
        k.barrier();
        partials.for_each_merged(k, |merged| {
            let (row, column, out) = (self.block.first_row + merged.row, merged.column, &merged.out);
            let exists = || row.lt(self.block.rows.count).divergent();
            let store_partial = || {
                k.if_(exists(), || {
                    if let Some(partial) = self.partial(row) {
                        partial.out.offset(column).store_f32s(out, 16, Cache::Default);
                        k.if_(column.eq(0).divergent(), || {
                            let keys = || self.visible(row);
                            let offset = partial_offset(merged.offset, shape.dtype, keys);
                            partial.store_sum(offset, merged.sum)
                        });
                    }
                });
            };
            let store_whole = || {
                let head = || self.block.rows.head_of(row);
                let total = self.params.total(head, merged.offset, merged.sum, self.visible(row));
                let norm = total.norm();
                k.if_(exists(), || {
                    let values: Vec<_> = out.iter().map(|&value| value * norm).collect();
                    let out_row = self.block.rows.of(&self.params.out, row);
                    out_row.offset(column).store_f32s(&values, 16, Cache::Default);
                });
                self.store_lse(row, &total, column);
            };
            self.in_pieces(store_partial, store_whole);
        });
    }
}
