//! The work item: a Q tile of a head and its K blocks, or some of them, in eight words. The host and a kernel
//! ([`stream_k`](super::super::stream_k)) write the same words, from one function over [`Index`].

use flashcore_ir::Val;

use super::super::block_range::{BlockOrder, BlockRange, share};
use super::super::divisor::Divisor;
use super::super::index::Index;
use super::super::query_rows::{Packing, WARPGROUP_ROWS};

/// Words of a work item.
pub(crate) const WORDS: usize = 8;

/// Low half: batch. High half: K/V head.
const BATCH: usize = 0;
/// Low half: head. High half: Q tile.
const HEAD: usize = 1;
/// First key of iteration 0 of the blocks masked at the low end, at the high end, and of those without a mask.
const LOW: usize = 2;
const HIGH: usize = 3;
const WHOLE: usize = 4;
/// Low half: iterations masked at the low end. High half: all masked ones.
const MASKED: usize = 5;
/// Low three bytes: fully masked iterations of each warpgroup. Highest byte: the split.
pub(crate) const FULLY_MASKED: usize = 6;
/// Low half: all iterations. High half: the slot of a partial.
const COUNT: usize = 7;

/// Marks a warpgroup without rows, in place of its fully masked iterations.
pub(crate) const NO_ROWS: u32 = 0xff;

/// Exclusive limit of the batches, heads, Q tiles and K blocks that an item can name.
pub(crate) const COUNT_LIMIT: usize = 1 << 16;

/// Warpgroups of a block, whose fully masked iterations are in an item.
const GROUPS: usize = 3;

/// Warpgroups of a tile, at most: those of a pair of blocks.
const MAX_WARPGROUPS: usize = 2 * GROUPS;

/// A Q tile of a block, or of a cluster's blocks together, and its K blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tile<I> {
    pub order: BlockOrder<I>,
    /// For each warpgroup, how many of the first iterations are fully masked for its rows: 0 if the tile has one
    /// warpgroup.
    pub fully_masked: [Option<I>; MAX_WARPGROUPS],
}

/// Which tile, and which split or piece of it, an item is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<I> {
    pub batch: I,
    pub head: I,
    pub kv_head: I,
    /// Number of the Q tile.
    pub tile: I,
    pub split: I,
    /// The slot of its partial, plus 1; 0 if it is a whole tile.
    pub slot: I,
}

/// The bits of batch, head and K/V head in the first two words of an item.
pub(super) fn head_words([batch, head, kv_head]: [usize; 3]) -> [u32; 2] {
    [(batch | kv_head << 16) as u32, head as u32]
}

/// Sets these bits in an item of batch, head and K/V head 0.
pub(super) fn set_head(item: &mut [u32; WORDS], [first, second]: [u32; 2]) {
    item[BATCH] |= first;
    item[HEAD] |= second;
}

impl<I: Index> Tile<I> {
    /// The tile of `rows` rows, those below `end` of a head, that begins at row `first`; `visible` gives the first key
    /// that a row sees, and one past the last.
    #[track_caller]
    pub(crate) fn new(visible: impl Fn(I) -> (I, I), first: I, end: I, rows: u32, cols: impl Into<Divisor>) -> Tile<I> {
        let cols = cols.into();
        let number = |value: u32| first.constant(value as i32);
        let last = (first + number(rows)).min(end) - number(1);
        let range = Tile::range(&visible, first, end, rows, cols);
        let order = BlockOrder::descending(range);
        let of_group = |group: u32| {
            let first = first + number(WARPGROUP_ROWS * group);
            let end_key = visible((first + number(WARPGROUP_ROWS - 1)).min(last)).1;
            let end_block = (end_key + number(cols.number() - 1)).div_by(cols);
            let out_of_range = I::select(order.masked_low.eq(number(0)), range.end - end_block, number(0));
            let fully_masked = out_of_range.min(order.masked).min(order.count - number(1));
            I::select(first.lt(end), fully_masked, number(NO_ROWS))
        };
        let groups = rows.div_ceil(WARPGROUP_ROWS);
        debug_assert!(groups <= MAX_WARPGROUPS as u32, "{rows} rows");
        let mut fully_masked = [None; MAX_WARPGROUPS];
        for (group, skipped) in (0..groups).zip(&mut fully_masked) {
            *skipped = Some(if groups == 1 { number(0) } else { of_group(group) });
        }
        Tile { order, fully_masked }
    }

    /// The K blocks of such a tile.
    #[track_caller]
    pub(crate) fn range(
        visible: &impl Fn(I) -> (I, I),
        first: I,
        end: I,
        rows: u32,
        cols: impl Into<Divisor>,
    ) -> BlockRange<I> {
        let last = (first + first.constant(rows as i32)).min(end) - first.constant(1);
        BlockRange::between(visible(first), visible(last), cols)
    }

    /// `count` of the K blocks, those of the iterations from `begin` on; at least one.
    #[track_caller]
    pub(crate) fn part(&self, begin: I, count: I) -> Tile<I> {
        Tile {
            order: self.order.part(begin, count),
            fully_masked: self.after(begin, count),
        }
    }

    /// The fully masked iterations among `count` from `begin` on: at most all but the last.
    #[track_caller]
    fn after(&self, begin: I, count: I) -> [Option<I>; MAX_WARPGROUPS] {
        let number = |value: u32| begin.constant(value as i32);
        let left = |of_group: I| {
            let left = (of_group - begin).max(number(0)).min(count - number(1));
            I::select(of_group.eq(number(NO_ROWS)), of_group, left)
        };
        match self.fully_masked {
            alone @ [_, None, ..] => alone,
            groups => groups.map(|of_group| of_group.map(left)),
        }
    }

    /// The item of a block whose warpgroups are those of the tile from `first_group` on.
    #[track_caller]
    pub(crate) fn words(&self, place: Place<I>, first_group: usize, cols: u32) -> [I; WORDS] {
        let order = &self.order;
        let number = |value: u32| order.count.constant(value as i32);
        let pair = |low: I, high: I| high.mul_add(number(1 << 16), low);
        let key = |base: I| base * number(cols);
        let of_group = |group: usize| {
            let of_group = self.fully_masked.get(first_group + group);
            of_group.copied().flatten().unwrap_or_else(|| number(NO_ROWS))
        };
        let groups = (0..GROUPS).rev().map(of_group);
        let masked_low = order.masked_low.max(number(0)).min(order.count);
        [
            pair(place.batch, place.kv_head),
            pair(place.head, place.tile),
            key(order.low),
            key(order.high),
            key(order.whole),
            pair(masked_low, order.masked),
            groups.fold(place.split, |word, of_group| word.mul_add(number(1 << 8), of_group)),
            pair(order.count, place.slot),
        ]
    }
}

impl Tile<i64> {
    /// The tile with the K blocks of one of `count` splits. A split without K blocks has the block `past` all keys,
    /// which is fully masked: an empty split still writes zeros and its offset.
    pub(crate) fn split(&self, index: usize, count: usize, past: usize) -> Tile<i64> {
        if count == 1 {
            return *self;
        }
        let (begin, blocks) = share(self.order.count, index as i64, count as i64);
        if blocks > 0 {
            return self.part(begin, blocks);
        }
        let order = BlockOrder {
            low: past as i64,
            masked_low: 0,
            high: past as i64,
            whole: past as i64 - 1,
            masked: 1,
            count: 1,
            descending: true,
        };
        let fully_masked = self.after(begin, 1);
        Tile { order, fully_masked }
    }
}

/// A Q tile and its K blocks, as a kernel reads them.
pub(crate) struct WorkItem<'k> {
    words: Vec<Val<'k, u32>>,
    rows: u32,
    cols: u32,
    /// Whether the item may be a piece of a tile, which has a slot for its partial.
    in_pieces: bool,
    packing: Packing,
}

impl<'k> WorkItem<'k> {
    /// The item in these words, for tiles of `rows` by `cols`.
    pub(crate) fn new(words: Vec<Val<'k, u32>>, [rows, cols]: [u32; 2], packing: Packing, in_pieces: bool) -> Self {
        WorkItem {
            words,
            rows,
            cols,
            in_pieces,
            packing,
        }
    }

    #[track_caller]
    pub(crate) fn batch(&self) -> Val<'k, u32> {
        self.low(BATCH)
    }

    #[track_caller]
    pub(crate) fn kv_head(&self) -> Val<'k, u32> {
        self.high(BATCH)
    }

    /// Head of its rows: the first head, if heads are packed.
    #[track_caller]
    pub(crate) fn head(&self) -> Val<'k, u32> {
        self.low(HEAD)
    }

    #[track_caller]
    pub(crate) fn first_row(&self) -> Val<'k, u32> {
        self.high(HEAD) * self.rows
    }

    /// Query of its first row.
    #[track_caller]
    pub(crate) fn first_query(&self) -> Val<'k, u32> {
        self.high(HEAD) * self.packing.queries_in(self.rows)
    }

    /// Query, head and batch of the first row of part `part` of the tile; parts have `rows` rows each.
    #[track_caller]
    pub(crate) fn part_at(&self, part: Val<'k, u32>, rows: u32) -> [Val<'k, u32>; 3] {
        let (packing, first_query) = (self.packing, self.first_query());
        let row = part * rows;
        let query = packing.query(first_query, row);
        [query, packing.head(self.head(), row), self.batch()]
    }

    #[track_caller]
    pub(crate) fn split(&self) -> Val<'k, u32> {
        self.words[FULLY_MASKED] >> 24u32
    }

    #[track_caller]
    pub(crate) fn n_blocks(&self) -> Val<'k, u32> {
        if self.in_pieces {
            self.low(COUNT)
        } else {
            self.words[COUNT]
        }
    }

    /// The slot of its partial, plus 1; 0 if it is a whole tile.
    #[track_caller]
    pub(crate) fn slot(&self) -> Val<'k, u32> {
        self.high(COUNT)
    }

    #[track_caller]
    pub(crate) fn masked(&self) -> Val<'k, u32> {
        self.high(MASKED)
    }

    #[track_caller]
    pub(crate) fn first_key(&self, n_block: Val<'k, u32>) -> Val<'k, u32> {
        let whole = self.words[WHOLE] + n_block * self.cols;
        let masked = n_block.lt(self.masked());
        masked.select(self.first_masked_key(n_block), whole)
    }

    /// [`Self::first_key`] of a K block that needs a mask.
    #[track_caller]
    pub(crate) fn first_masked_key(&self, n_block: Val<'k, u32>) -> Val<'k, u32> {
        let past = n_block * self.cols;
        n_block
            .lt(self.low(MASKED))
            .select(self.words[LOW] + past, self.words[HIGH] - past)
    }

    /// The K blocks in their order, for kernels whose K blocks are a power of two long.
    #[track_caller]
    pub(crate) fn order(&self) -> BlockOrder<Val<'k, i32>> {
        assert!(self.cols.is_power_of_two(), "blocks of {} keys", self.cols);
        let block = |word: usize| self.words[word].reinterpret::<i32>() >> self.cols.trailing_zeros();
        BlockOrder {
            low: block(LOW),
            masked_low: self.low(MASKED).reinterpret(),
            high: block(HIGH),
            whole: block(WHOLE),
            masked: self.masked().reinterpret(),
            count: self.n_blocks().reinterpret(),
            descending: true,
        }
    }

    /// How many of the first K blocks are fully masked for a warpgroup's rows: all of them if it has no rows, 0 if the
    /// tile has one warpgroup.
    #[track_caller]
    pub(crate) fn fully_masked(&self, warpgroup: Val<'k, u32>) -> Val<'k, u32> {
        if self.rows == WARPGROUP_ROWS {
            return warpgroup.builder().constant(0);
        }
        let blocks = self.words[FULLY_MASKED] >> (warpgroup * 8) & 0xff;
        blocks.eq(NO_ROWS).select(self.n_blocks(), blocks)
    }

    #[track_caller]
    fn low(&self, word: usize) -> Val<'k, u32> {
        self.words[word] & 0xffff
    }

    #[track_caller]
    fn high(&self, word: usize) -> Val<'k, u32> {
        self.words[word] >> 16u32
    }
}
