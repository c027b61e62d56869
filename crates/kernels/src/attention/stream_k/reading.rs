//! How a main kernel and `combine` read a schedule.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};

use super::{COMBINED_WORDS, FIRST_WORDS, Places, RANGE_WORDS};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::lengths::SequenceSpan;
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{Tiling, WORDS, WorkItem, WorkList};

/// Where the work lists of a main kernel are.
#[derive(Clone, Copy)]
pub(crate) enum Work<'k> {
    /// In a table of the host's.
    Table(GlobalPtr<'k, u32>),
    /// In a schedule: the range of items of each block, and all items, which may be pieces of tiles.
    Listed {
        ranges: GlobalPtr<'k, u32>,
        items: GlobalPtr<'k, u32>,
    },
}

impl<'k> Work<'k> {
    /// The work lists of a schedule.
    pub(crate) fn listed<T: 'static>(k: &'k Args<'k, Forward<T>>) -> Self {
        Work::Listed {
            ranges: scheduled(k, "schedule_ranges", |at| at.ranges),
            items: scheduled(k, "schedule_items", |at| at.items),
        }
    }

    /// The items of the block, for a kernel that begins the next one while it is at this one.
    #[track_caller]
    pub(crate) fn list(self, k: &'k KernelBuilder, tiling: Tiling) -> WorkList<'k> {
        match self {
            Work::Table(table) => WorkList::new(k, table, tiling, None),
            Work::Listed { ranges, items } => WorkList::new(k, items, tiling, Some(range(k, ranges))),
        }
    }
}

/// A part of a schedule.
#[track_caller]
fn scheduled<'k, T: 'static>(k: &'k Args<'k, Forward<T>>, name: &str, of: fn(&Places) -> u64) -> GlobalPtr<'k, u32> {
    k.part(name, false, move |request| request.scheduled(of))
}

/// The first item of the block, and one past the last; it may have none.
#[track_caller]
fn range<'k>(k: &'k KernelBuilder, ranges: GlobalPtr<'k, u32>) -> [Val<'k, u32>; 2] {
    let range = ranges.offset(k.block_idx(0) * RANGE_WORDS);
    // Partials, which the kernel writes, are in the same buffer.
    let range = range.load_words(RANGE_WORDS, Cache::Default);
    [range[0], range[1]]
}

/// The items of a block with the rows of their sequences, so that a kernel has no lengths to load.
pub(crate) struct Items<'k> {
    ranges: GlobalPtr<'k, u32>,
    first_items: GlobalPtr<'k, u32>,
    items: GlobalPtr<'k, u32>,
    item_rows: GlobalPtr<'k, u32>,
    /// Rows and columns of a tile.
    tile: [u32; 2],
}

impl<'k> Items<'k> {
    #[track_caller]
    pub(crate) fn declare(k: &'k Args<'k, Forward>, rows: u32, cols: u32) -> Self {
        Items {
            ranges: scheduled(k, "schedule_ranges", |at| at.ranges),
            first_items: scheduled(k, "schedule_first_items", |at| at.first_items),
            items: scheduled(k, "schedule_items", |at| at.items),
            item_rows: scheduled(k, "schedule_item_rows", |at| at.item_rows),
            tile: [rows, cols],
        }
    }

    /// Runs `body` for each item of the block, which may have none, with the [words](SequenceSpan::words) of the rows
    /// of its sequence and whether it is the last item.
    #[track_caller]
    pub(crate) fn for_each(
        &self,
        k: &'k KernelBuilder,
        body: impl FnOnce(WorkItem<'k>, Vec<Val<'k, u32>>, Val<'k, bool>),
    ) {
        let [first, end] = range(k, self.ranges);
        // Loaded at the same time as the range: one waits for memory once.
        let words = self.first_items.offset(k.block_idx(0) * FIRST_WORDS);
        let words: Vec<Var<'k, u32>> = (0..FIRST_WORDS / 4)
            .flat_map(|i| words.plus(4 * i as i32).load_words(4, Cache::Default))
            .map(|word| k.var(word))
            .collect();
        k.for_uniform(first, end, 1, |index| {
            let (item, of_sequence) = words.split_at(WORDS);
            let get = |words: &[Var<'k, u32>]| words.iter().map(|word| word.get()).collect();
            let next = index + 1;
            let item = WorkItem::new(get(item), self.tile, Packing::NONE, true);
            body(item, get(of_sequence), next.ge(end));
            k.if_(next.lt(end).uniform(), || {
                let item = self.items.offset(next * WORDS as u32);
                let rows = self.item_rows.offset(next * SequenceSpan::WORDS);
                let loaded = [item, item.plus(4), rows].into_iter();
                let loaded = loaded.flat_map(|place| place.load_words(4, Cache::Default));
                words.iter().zip(loaded).for_each(|(word, loaded)| word.set(loaded));
            });
        });
    }
}

/// A tile in pieces, as `combine` reads it. There is a place for each block of the main kernel that one may begin in,
/// for each tile where they are fewer, or for each sequence and head in splits.
pub(crate) struct Combined<'k> {
    pub batch: Val<'k, u32>,
    pub head: Val<'k, u32>,
    /// Number of the Q tile.
    pub tile: Val<'k, u32>,
    /// Slot of the first piece; those of the others follow.
    pub slot: Val<'k, u32>,
    /// How many there are; 0 if there is no such tile.
    pub count: Val<'k, u32>,
}

impl<'k> Combined<'k> {
    /// The tile at the place whose number the block has along y.
    #[track_caller]
    pub(crate) fn of_block(k: &'k Args<'k, Forward>) -> Self {
        let all = scheduled(k, "schedule_combined", |at| at.combined);
        let words = all.offset(k.block_idx(1) * COMBINED_WORDS);
        let words = words.load_words(COMBINED_WORDS, Cache::Default);
        Combined {
            batch: words[1] & 0xffff,
            head: words[2] & 0xffff,
            tile: words[2] >> 16u32,
            slot: words[3],
            count: words[0],
        }
    }
}
