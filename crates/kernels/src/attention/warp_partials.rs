//! Merges the results of warps that share the rows of a tile, each for some of its keys, through shared memory.
//!
//! Each warp stores a partial of each row: an output that is not normalised, with its offset and sum, as blocks do in
//! [`split`](super::split). After a barrier all threads of the block merge them.

use flashcore_ir::{Cache, Element, KernelBuilder, SharedTile, TileShape, Val};

use super::row_tile::{ACC_COLS, QUAD, RowTile, lane_column, lane_row};
use super::softmax::Row;
use crate::tiles::{CHUNK, padded};

/// The shared memory that the warps write and the threads read.
pub(crate) struct WarpPartials<'k> {
    out: SharedTile<'k, f32>,
    /// The offsets of all rows, then their sums.
    sums: SharedTile<'k, f32>,
    rows: u32,
    head_dim_v: u32,
    warps: u32,
    /// Number of rows that exist, if some may not.
    existing: Option<Val<'k, u32>>,
}

/// One chunk of a row, merged over the warps.
pub(crate) struct MergedChunk<'k> {
    /// The row in its tile.
    pub row: Val<'k, u32>,
    /// First of its [`CHUNK`] columns.
    pub column: Val<'k, u32>,
    /// Not normalised.
    pub out: Vec<Val<'k, f32>>,
    /// What the output is relative to.
    pub offset: Val<'k, f32>,
    pub sum: Val<'k, f32>,
}

impl<'k> WarpPartials<'k> {
    /// For `[rows, head_dim_v]` of each of `warps` warps along the keys. Reuses the first of `reused` that is large
    /// enough; nothing may read those any more. Rows of the tile from `existing` on do not exist, and are left out.
    #[track_caller]
    pub(crate) fn declare<E: Element>(
        k: &'k KernelBuilder,
        [rows, head_dim_v, warps]: [u32; 3],
        reused: [SharedTile<'k, E>; 2],
        existing: Option<Val<'k, u32>>,
    ) -> Self {
        let cols = padded(head_dim_v);
        // Rows start eight banks apart, so that the pairs that lanes of four rows write are in different banks.
        let padding = (8 + 32 - cols % 32) % 32;
        let tile = TileShape::new(rows, cols).padded(padding).stages(warps);
        let needed = 4 * rows * (cols + padding) * warps;
        let fits = |other: &SharedTile<'k, E>| needed <= other.stages() * other.stage_bytes();
        let out = match reused.into_iter().find(fits) {
            Some(other) => k.shared_tile_reusing::<f32, E>("partials", tile, other),
            None => k.shared_tile::<f32>("partials", tile),
        };
        WarpPartials {
            out,
            sums: k.shared_tile::<f32>("sums", TileShape::new(2, rows).stages(warps)),
            rows,
            head_dim_v,
            warps,
            existing: existing.map(|existing| existing.min(rows)),
        }
    }

    /// Stores this lane's results. Its warp is number `warp` along the keys, and the warp's rows begin at `first_row`.
    /// `rows` gives each row's distance from the lane's first row, its half, output and state.
    #[track_caller]
    pub(crate) fn store(
        &self,
        warp: Val<'k, u32>,
        first_row: Val<'k, u32>,
        rows: impl Iterator<Item = (u32, usize, RowTile<'k>, Row<'k>)>,
    ) {
        let k = first_row.builder();
        let first = first_row + lane_row(k);
        let column = lane_column(k);
        let mine = self.out.at_stage(warp, first, column);
        let mine_sums = self.sums.at_stage(warp, 0, first);
        let store = |(down, half, out, row): (u32, usize, RowTile<'k>, Row<'k>)| {
            let place = self.out.down(mine, down);
            for tile in 0..padded(self.head_dim_v) / ACC_COLS {
                let pair = out.pair(tile, half).map(|value| value.get());
                place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
            }
            let sum = row.total();
            k.if_((k.lane() % QUAD).eq(0).divergent(), || {
                mine_sums.plus(down as i32).store(row.max.offset);
                self.sums.down(mine_sums, 1).plus(down as i32).store(sum);
            });
        };
        for row in rows {
            match self.existing {
                Some(existing) if row.0 > 0 => {
                    let any = (first_row + row.0).lt(existing).uniform();
                    k.if_(any, || store(row));
                }
                _ => store(row),
            }
        }
    }

    /// Merges the warps, in their order, and calls `body` with each chunk of the thread. A barrier must precede.
    #[track_caller]
    pub(crate) fn for_each_merged(&self, k: &'k KernelBuilder, body: impl Fn(&MergedChunk<'k>)) {
        let per_row = self.head_dim_v / CHUNK;
        let chunks = match self.existing {
            Some(rows) => rows * per_row,
            None => k.constant(self.rows * per_row),
        };
        k.for_divergent(k.thread_idx(), chunks, k.threads(), |chunk| {
            let (row, column) = (chunk / per_row, chunk % per_row * CHUNK);
            // The lowest offset belongs to the highest maximum.
            let mut found = Vec::new();
            for part in 0..self.warps {
                let offset = self.sums.at_stage(part, 0, row);
                found.push((offset.load(), self.sums.down(offset, 1).load()));
            }
            let offset = found[1..].iter().fold(found[0].0, |lowest, part| lowest.min(part.0));
            // Of eight threads that read together, four read their first quad of columns first, and four their second.
            // The eight quads are then in different banks, if a row has a multiple of four chunks or one more.
            let second_first = (chunk / 4u32 % 2u32).ne(0);
            let quads = [second_first.select(4u32, 0u32), second_first.select(0u32, 4u32)];
            let mut sum = k.constant(0.0);
            let mut read = [[k.constant(0.0); 4]; 2];
            for (part, &(part_offset, part_sum)) in found.iter().enumerate() {
                let factor = (offset - part_offset).exp2();
                sum = part_sum.fma(factor, sum);
                let place = self.out.at_stage(part as u32, row, column);
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
            body(&MergedChunk {
                row,
                column,
                out,
                offset,
                sum,
            });
        });
    }
}
