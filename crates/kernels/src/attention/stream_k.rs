//! The schedule of a launch whose lengths are on the device: a kernel that reads them and makes the work lists of the
//! main kernel.
//!
//! It is stream-K (Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication
//! on the GPU", 2023), with whole tiles first. The Q tiles of all sequences and heads form one line, in which each is
//! as long as its cost: its K blocks, and [`TILE_COST`] for its first and last products. Tiles that share K and V are
//! next to each other, because blocks that work on them at the same time read K and V once from global memory.
//!
//! - *Round-robin*: where there is little work, where tiles cost about the same ([`EVEN`]), or where no sequence has
//!   several row tiles, tiles go to blocks in turn, as many as leave no block with more than its share. The rest of the
//!   line is cut into a range for each block, which evens out the load.
//! - *Rounds*: otherwise the line is cut into rounds, and each round into a range for each block. All blocks are in one
//!   round at a time, and the L2 cache holds K and V of its few heads. A round is long enough for [`ROUND_TILES`] of
//!   the largest tiles in each range.
//!
//! Cuts are at ends of tiles, but for the last round, whose ranges even out the load of the others. A tile with a cut
//! inside is computed in pieces, and [`combine`](super::combine) merges their partials. A cut that would leave a piece
//! shorter than [`Pieces::least`] K blocks moves to the nearest end of the tile. Tiles that all cost the same are cut
//! into as many equal pieces as there are blocks for each, if that leaves no block much longer ([`UNEVEN`]).
//!
//! Sizes follow from the problem's bounds, so that launches can be captured. With H heads, T row tiles (Q tiles of all
//! sequences, of one head), and G blocks:
//!
//! - A block has at most its round-robin tiles, those that begin in its ranges, and the one that its last range begins
//!   in: at most `H·T + G` items, those of a block next to each other.
//! - The pieces of a tile that begins in block `i` have slots `2·i + 1`, `2·i + 2`, … in key order. The next tile in
//!   pieces begins in the block of the last piece or a later one, so no two share a slot, and there are fewer than
//!   `2·G`.
//! - At most one tile in pieces begins in a block: [`Combined`] is a list of `G`, or of all tiles where they are fewer.
//!   A block of `combine` with nothing to do costs time too.
//!
//! Of a [batch-invariant](Problem::batch_invariant) problem, the splits of a sequence with one row tile are on the line
//! in place of that tile, and no cut leaves a piece ([`Splits`]). The partials of a sequence and head have slots of
//! their own, one for each split that there can be, and [`Combined`] is a list of sequences and heads.
//!
//! Every block of the kernel makes all cuts. The last one writes the ranges of items, the others the items, each its
//! share, and who writes a place of [`Combined`] follows from the cuts: the same lengths give the same words, without
//! atomics in global memory.

use flashcore_problem::{Problem, QLengths};

use super::forward::Forward;
use super::lengths::{SequenceSpan, kinds};
use super::params::Shape;
use super::query_rows::TileHeads;
use super::scheduler::{COUNT_LIMIT, TILE_COST, WORDS};
use crate::args::{ALIGN, Built};
use crate::step::{KernelCache, Step};
use crate::{Refusal, refuse};

mod kernel;
mod reading;

pub(crate) use reading::{Combined, Items, Work};

/// Threads of a block, if several make a schedule: few, since all wait at its barriers, but enough to make the cuts of
/// most cards at once.
const THREADS: u32 = 320;

/// Threads of a block that makes a schedule alone.
const THREADS_ALONE: u32 = 1024;

/// Items that a block writes, unless that needs more than [`MAX_WRITERS`] blocks.
const ITEMS: u32 = 160;

/// Blocks that write items at most. Each makes all cuts.
const MAX_WRITERS: u32 = 40;

/// Ranges of a schedule for decoding, if they are enough for the blocks of its main kernel: with so few cuts in shared
/// memory, a block of that kernel fits into an SM at the same time.
const FEW_RANGES: u32 = 512;

/// Blocks of a main kernel at most, and ranges of all rounds: the cuts of the line are in shared memory.
pub(crate) const MAX_BLOCKS: u32 = 2048;

/// Up to so many sequences and row tiles are in shared memory. With the cuts they take 45 of the 48 KB that a block has
/// on every card without asking for more.
const MAX_SHARED: u32 = 1024;

/// The least length of a range of a round, in tiles of the largest cost: cuts at ends of tiles make ranges differ by up
/// to one tile, which the last round must even out.
const ROUND_TILES: u32 = 4;

/// Least ratio of the mean cost of tiles to the largest one for which tiles go to blocks round-robin, however many
/// there are: with such costs that keeps the blocks at the same tiles.
const EVEN: [u32; 2] = [7, 8];

/// Tiles that cost the same are cut into equal pieces if the longest block exceeds its share of the work by at most a
/// 32nd. With a tenth more (5 sequences of 4,096 keys) nothing was gained (run `serve-even`). A rest of a tile that is
/// too short for a piece makes the last one longer, which is not counted.
const UNEVEN: u32 = 32;

/// Words of a block's range of items: its first, and one past the last.
const RANGE_WORDS: u32 = 2;

/// Words of the first item of a block, and the rows of its sequence: a kernel loads them at once, while it waits for
/// its range.
const FIRST_WORDS: u32 = WORDS as u32 + SequenceSpan::WORDS;

/// Words of a tile in pieces: how many there are, the first two words of its items, and the slot of the first.
const COMBINED_WORDS: u32 = 4;

/// Words of a row tile: its sequence and number there; the cost of all row tiles before it.
const ROW_TILE_WORDS: u32 = 2;

/// The tiles of a main kernel, and which pieces of them are worth a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    /// Query rows of a Q tile.
    pub rows: u32,
    /// Keys of a K block.
    pub cols: u32,
    /// Heads whose rows a Q tile has.
    pub heads: TileHeads,
    /// The least K blocks of a piece: copies that a block has in flight together take as long as one of them.
    pub least: u32,
}

/// Splits of a given number of keys ([`Problem::batch_invariant`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Splits {
    /// K blocks of one.
    blocks: u32,
    /// How many a tile has at most.
    most: u32,
}

/// What a schedule is made for, and the bounds of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub pieces: Pieces,
    /// Blocks of the main kernel.
    pub grid: u32,
    batch: u32,
    /// Heads with tiles of their own.
    heads: u32,
    /// Q tiles of all sequences, of one head; and their splits.
    row_tiles: u32,
    splits: Option<Splits>,
    head_dim_v: u32,
}

/// Offsets of the parts of a schedule in the workspace, in bytes. Partials begin it.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub partial_sums: u64,
    ranges: u64,
    combined: u64,
    first_items: u64,
    items: u64,
    item_rows: u64,
    row_tiles: u64,
    first_tiles: u64,
    pub end: u64,
}

impl Schedule {
    /// # Errors
    /// Bounds beyond what items and costs can count.
    pub(crate) fn new(family: &'static str, problem: &Problem, pieces: Pieces, grid: u32) -> Result<Schedule, Refusal> {
        let heads = pieces.heads.of_problem(problem);
        let (batch, rows) = (problem.batch(), pieces.rows as usize);
        let rows_of = |queries| pieces.heads.rows_of(problem, queries);
        let of_sequence = rows_of(problem.seq_len_q()).div_ceil(rows);
        let row_tiles = match problem.q_lengths() {
            QLengths::Equal => batch * of_sequence,
            QLengths::Packed { total, .. } => (rows_of(total) / rows + batch).min(batch * of_sequence),
        };
        let n_blocks = problem.seq_len_kv().div_ceil(pieces.cols as usize);
        let splits = problem.batch_invariant().map(|keys| {
            let blocks = keys.div_ceil(pieces.cols as usize).min(n_blocks.max(1));
            Splits {
                blocks: blocks as u32,
                most: n_blocks.div_ceil(blocks).max(1) as u32,
            }
        });
        let row_tiles = row_tiles + batch * splits.map_or(0, |splits| splits.most as usize - 1);
        // Slots are counted from 1.
        let slots = splits.map_or(0, |splits| batch * heads * splits.most as usize);
        refuse!(slots + 1 >= COUNT_LIMIT =>
            family, "raise the keys of a split (batch_invariant), or lower batch or seq_len_kv",
            "{slots} splits of {} keys in {batch} sequences of {heads} heads (at most 65534)",
            problem.batch_invariant().unwrap_or_default());
        let most = batch.max(heads).max(of_sequence).max(n_blocks);
        let grid = grid.clamp(1, MAX_BLOCKS);
        let cost = (heads * row_tiles) as u64 * (n_blocks as u64 + TILE_COST) + u64::from(grid * pieces.least.max(1));
        refuse!(most >= COUNT_LIMIT || cost > i32::MAX as u64 => family, "lower seq_len_q, seq_len_kv or batch",
            "{batch} sequences of up to {of_sequence} by {n_blocks} tiles in {heads} heads, a cost of {cost} (at most \
             65535 of each, and 2147483647)");
        Ok(Schedule {
            pieces,
            grid,
            batch: batch as u32,
            heads: heads as u32,
            row_tiles: row_tiles as u32,
            splits,
            head_dim_v: problem.head_dim_v() as u32,
        })
    }

    /// Partials of tiles that there is room for.
    fn slots(&self) -> u64 {
        match self.splits {
            None => 2 * u64::from(self.grid),
            Some(splits) => u64::from(self.combined()) * u64::from(splits.most),
        }
    }

    /// Tiles in pieces that there is room for: of all tiles, or one that begins in each block, whichever are fewer;
    /// with splits one of each head.
    pub(crate) fn combined(&self) -> u32 {
        match self.splits {
            None => self.grid.min(self.heads * self.row_tiles),
            Some(_) => self.batch * self.heads,
        }
    }

    /// Places of [`Combined`] if each tile has its own, and 0 otherwise.
    fn tile_places(&self) -> u32 {
        match self.splits {
            None if self.combined() < self.grid => self.combined(),
            _ => 0,
        }
    }

    pub(crate) fn places(&self) -> Places {
        let mut end = 0;
        let mut next = |words: u64| {
            let start = end;
            end = (end + 4 * words).next_multiple_of(u64::from(ALIGN));
            start
        };
        let [grid, row_tiles] = [self.grid, self.row_tiles].map(u64::from);
        let rows = self.slots() * u64::from(self.pieces.rows);
        let items = u64::from(self.heads) * row_tiles + grid;
        // Partials begin the workspace.
        next(rows * u64::from(self.head_dim_v));
        Places {
            partial_sums: next(2 * rows),
            ranges: next(u64::from(RANGE_WORDS) * grid),
            combined: next(u64::from(COMBINED_WORDS) * u64::from(self.combined())),
            first_items: next(u64::from(FIRST_WORDS) * grid),
            items: next(WORDS as u64 * items),
            item_rows: next(u64::from(SequenceSpan::WORDS) * items),
            row_tiles: next(u64::from(ROW_TILE_WORDS) * (row_tiles + 2)),
            first_tiles: next(u64::from(self.batch) + 1),
            end,
        }
    }

    /// Bytes of the workspace that it takes, from its start.
    pub(crate) fn bytes(&self) -> u64 {
        self.places().end
    }

    /// Rows of a tile that there can be.
    pub(crate) fn rows(&self, problem: &Problem) -> u32 {
        let rows = self.pieces.heads.rows_of(problem, problem.seq_len_q());
        self.pieces.rows.min(rows as u32)
    }

    /// About how many pieces a tile has, if all are as long.
    pub(crate) fn usual_pieces(&self) -> u32 {
        match self.splits {
            None => self.grid.div_ceil((self.heads * self.row_tiles).max(1)) + 1,
            Some(splits) => splits.most,
        }
    }

    /// Whether sequences and row tiles are in shared memory.
    fn is_small(&self) -> bool {
        self.batch.max(self.row_tiles) <= MAX_SHARED
    }

    /// Blocks that write items. They share nothing, so that row tiles have to be in the shared memory of each, or there
    /// is one.
    fn writers(&self) -> u32 {
        let items = self.heads * self.row_tiles + self.grid;
        let writers = items.div_ceil(ITEMS).clamp(1, MAX_WRITERS);
        if self.is_small() { writers } else { 1 }
    }

    /// Whether every sequence has at most one row tile, which is not split.
    fn is_one_each(&self, problem: &Problem) -> bool {
        let rows = self.pieces.heads.rows_of(problem, problem.seq_len_q());
        self.splits.is_none() && rows <= self.pieces.rows as usize
    }

    /// Ranges of all rounds at most, and rounds. Rounds keep K and V in the L2 cache that several tiles read: not those
    /// of sequences of one row tile each.
    fn most_ranges(&self, problem: &Problem) -> [u32; 2] {
        if !self.is_one_each(problem) {
            [MAX_BLOCKS, MAX_BLOCKS / self.grid]
        } else if self.grid <= FEW_RANGES {
            [FEW_RANGES, 1]
        } else {
            [MAX_BLOCKS, 1]
        }
    }

    /// The step that makes it, before a main kernel of this shape.
    pub(crate) fn step(request: &Forward, main: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
        let (problem, schedule) = (&request.problem, request.schedule()?);
        let Pieces { rows, cols, heads, .. } = schedule.pieces;
        let few = schedule.is_small();
        let tiles = kernel::Tiles {
            rows,
            cols,
            heads,
            fixed_splits: schedule.splits.is_some(),
            few,
            one_each: schedule.is_one_each(problem),
            most_ranges: schedule.most_ranges(problem)[0],
        };
        let shape = Shape {
            overlaps: main.overlaps,
            ..Shape::of_lengths(kinds(problem))
        };
        let kernel = kernels.get_or_build(tiles, shape, |tiles, shape| {
            let kernel::Tiles { rows, cols, .. } = tiles;
            let (heads, lengths, overlaps) = (tiles.heads.name(), shape.lengths_name(), shape.overlaps_name());
            let splits = if tiles.fixed_splits { "_splits" } else { "" };
            let many = if tiles.few { "" } else { "_many" };
            let each = if tiles.one_each { "_one_each" } else { "" };
            let ranges = match tiles.most_ranges {
                MAX_BLOCKS => String::new(),
                most => format!("_r{most}"),
            };
            let name = format!("schedule_m{rows}n{cols}{heads}{splits}{many}{each}{ranges}{lengths}{overlaps}");
            let threads = if tiles.few { THREADS } else { THREADS_ALONE };
            Built::build(name, threads, |k| kernel::body(k, threads, tiles, shape))
        })?;
        // Another one writes where the items of each block are.
        let blocks = if few { schedule.writers() + 1 } else { 1 };
        kernel.step([blocks, 1, 1], request)
    }
}

#[cfg(test)]
mod tests;
