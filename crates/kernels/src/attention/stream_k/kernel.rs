//! The kernel: prefix sums of tiles and of costs, cuts of the line into ranges, and an item for each tile and piece.
//!
//! It is short, and every launch waits for it, so what counts is its longest chain of instructions that wait for each
//! other. Threads meet at few barriers, searches read several places at once, and quotients by numbers that the host
//! knows are products. Each of several blocks makes all cuts, and writes its share of the items.

use flashcore_ir::{GlobalPtr, KernelBuilder, SharedTile, TileShape, Val, Var};

use super::{MAX_SHARED, Places, ROW_TILE_WORDS, Schedule, Splits};
use crate::Refusal;
use crate::args::Args;
use crate::attention::divisor::ParamDivisor;
use crate::attention::forward::Forward;
use crate::attention::params::{RowParams, Shape};
use crate::attention::query_rows::{QueryRows, TileHeads};
use crate::attention::scheduler::Tile;

mod cuts;
mod items;
mod line;
mod ranks;
mod row_tiles;
mod scratch;
mod sums;

use scratch::Scratch;
use sums::MAX_EXCHANGED;

/// What of [`Pieces`](super::Pieces) is baked into the kernel.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Tiles {
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) heads: TileHeads,
    /// Whether a sequence of one row tile has splits of a given size in place of tiles.
    pub(super) fixed_splits: bool,
    /// Whether sequences and row tiles are few enough for shared memory.
    pub(super) few: bool,
    /// Whether every sequence has at most one row tile, which is not split: a step that decodes.
    pub(super) one_each: bool,
    /// Ranges of all rounds at most.
    pub(super) most_ranges: u32,
}

/// The pointers and numbers of the kernel.
struct Context<'k> {
    k: &'k KernelBuilder,
    threads: u32,
    tiles: Tiles,
    params: RowParams<'k>,
    ranges: GlobalPtr<'k, u32>,
    combined: GlobalPtr<'k, u32>,
    /// Of each block; of all items, and the rows of their sequences.
    first_items: GlobalPtr<'k, u32>,
    items: GlobalPtr<'k, u32>,
    item_rows: GlobalPtr<'k, u32>,
    row_tiles: Scratch<'k>,
    first_tiles: Scratch<'k>,
    batch: Val<'k, u32>,
    heads: Val<'k, u32>,
    most_row_tiles: Val<'k, u32>,
    grid: Val<'k, u32>,
    most_rounds: Val<'k, u32>,
    least: Val<'k, u32>,
    /// Places of what is to be combined, if each tile has its own, else 0.
    tile_places: Val<'k, u32>,
    by_heads: ParamDivisor<'k>,
    by_grid: ParamDivisor<'k>,
    by_group: ParamDivisor<'k>,
    by_writers: ParamDivisor<'k>,
    /// K blocks of a split, and splits of a tile at most.
    splits: Option<[Val<'k, u32>; 2]>,
    warp_sums: SharedTile<'k, u32>,
    /// The first row of [`Self::warp_sums`] that the next exchange takes.
    exchanged: Var<'k, u32>,
    /// Of each range of the line: where it begins, the tile there, how many tiles begin before it, and its first item.
    cuts: SharedTile<'k, u32>,
}

/// The ranges that the line is cut into: those of whole tiles, and then one for each block.
#[derive(Clone, Copy)]
struct Ranges<'k> {
    /// Tiles that each block has one by one, before all ranges.
    round_robin: Val<'k, u32>,
    /// 1 if tiles go round-robin.
    rounds: Val<'k, u32>,
    /// Ranges of whole tiles: those of all rounds but the last.
    whole: Val<'k, u32>,
}

/// Rows of [`Context::cuts`].
const POSITION: u32 = 0;
/// The tile and the range, both numbers added: no two are the same.
const NUMBER: u32 = 1;
const TILES_BEFORE: u32 = 2;
const ITEM: u32 = 3;
/// Of each block, in the words that its first items take later: what its round-robin tiles cost.
const LOAD: u32 = ITEM;

/// Cuts behind the last one that a search may read.
const BEHIND: u32 = 33;

pub(super) fn body<'k>(k: &'k Args<'k, Forward>, threads: u32, tiles: Tiles, shape: &Shape) {
    k.min_blocks_per_sm(1);
    shape.begin_next_launch(k);
    let params = RowParams::declare(k, shape);
    let few = |words| tiles.few.then_some(words);
    let part = |name, of: fn(&Places) -> u64| k.part::<u32>(name, true, move |request| request.scheduled(of));
    let number = |name, of: fn(&Schedule) -> u32| k.try_number(name, move |request| Ok(of(request.schedule()?)));
    let divisor = |name, of: fn(&Schedule) -> u32| k.divisor(name, move |request| Ok(of(request.schedule()?)));
    let of_split = |name, of: fn(&Splits) -> u32| {
        let missing = || Refusal::Build("a schedule without splits".to_string());
        k.try_number(name, move |request| {
            request.schedule()?.splits.as_ref().map(of).ok_or_else(missing)
        })
    };
    let context = Context {
        k,
        threads,
        tiles,
        params,
        ranges: part("schedule_ranges", |at| at.ranges),
        combined: part("schedule_combined", |at| at.combined),
        first_items: part("schedule_first_items", |at| at.first_items),
        items: part("schedule_items", |at| at.items),
        item_rows: part("schedule_item_rows", |at| at.item_rows),
        row_tiles: Scratch::declare(k, "schedule_row_tiles", few(ROW_TILE_WORDS * (MAX_SHARED + 2)), |at| {
            at.row_tiles
        }),
        first_tiles: Scratch::declare(k, "schedule_first_tiles", few(MAX_SHARED + 1), |at| at.first_tiles),
        batch: number("batch", |schedule| schedule.batch),
        heads: number("heads", |schedule| schedule.heads),
        most_row_tiles: number("most_row_tiles", |schedule| schedule.row_tiles),
        grid: number("grid", |schedule| schedule.grid),
        most_rounds: k.try_number("most_rounds", |request| {
            Ok(request.schedule()?.most_ranges(&request.problem)[1])
        }),
        least: number("least", |schedule| schedule.pieces.least.max(1)),
        tile_places: number("tile_places", Schedule::tile_places),
        by_heads: divisor("heads", |schedule| schedule.heads),
        by_grid: divisor("grid", |schedule| schedule.grid),
        by_group: k.divisor("group", |request| Ok(request.problem.group_size() as u32)),
        by_writers: divisor("writers", Schedule::writers),
        splits: tiles.fixed_splits.then(|| {
            [
                of_split("split_blocks", |splits| splits.blocks),
                of_split("most_splits", |splits| splits.most),
            ]
        }),
        warp_sums: k.shared_tile("warp_sums", TileShape::new(2 * MAX_EXCHANGED, threads / 32)),
        exchanged: k.var(0u32),
        cuts: k.shared_tile("cuts", TileShape::new(4, tiles.most_ranges + BEHIND)),
    };
    if !tiles.one_each {
        // Those of round-robin tiles are added to them.
        k.for_divergent(k.thread_idx(), context.grid, threads, |block| {
            context.cuts.at(LOAD, block).store(0u32);
        });
    }
    let (row_tiles, cost, largest) = if tiles.one_each {
        context.one_row_tile_each()
    } else {
        let row_tiles = context.count_row_tiles();
        k.barrier();
        let (cost, largest) = context.row_tile_costs(row_tiles);
        (row_tiles, cost, largest)
    };
    k.barrier();
    let ranges = context.cut(row_tiles, cost, largest);
    k.barrier();
    // Of several blocks, the last one has no items.
    let is_last = k.block_idx(0).eq(k.grid_dim(0) - 1);
    context.number_items(row_tiles, ranges, is_last);
    context.write_items(row_tiles, ranges);
}

impl<'k> Context<'k> {
    /// Rows of a sequence with those that heads share, if packed, and the same as rows of a batch's head.
    #[track_caller]
    fn rows_of(&self, params: &RowParams<'k>, batch: Val<'k, u32>, head: Val<'k, u32>) -> QueryRows<'k> {
        QueryRows::new(params, self.tiles.heads, [batch, head])
    }

    /// The keys that a row sees.
    #[track_caller]
    fn visible(&self, params: &RowParams<'k>, rows: &QueryRows<'k>, row: Val<'k, i32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let row = row.reinterpret();
        let query = match self.tiles.heads {
            TileHeads::Dense => self.by_group.quotient(row),
            TileHeads::One | TileHeads::Warpgroups(_) => rows.query(row),
        };
        params.band.keys(query.reinterpret())
    }

    /// A tile of a sequence.
    #[track_caller]
    fn tile(&self, params: &RowParams<'k>, rows: &QueryRows<'k>, number: Val<'k, u32>) -> Tile<Val<'k, i32>> {
        let visible = |row: Val<'k, i32>| self.visible(params, rows, row);
        let [first, end] = [number * self.tiles.rows, rows.count].map(Val::reinterpret);
        Tile::new(visible, first, end, self.tiles.rows, self.tiles.cols)
    }
}
