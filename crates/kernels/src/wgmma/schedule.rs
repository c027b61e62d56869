//! Which tiles of query rows a block computes, and in which order, as the kernel reads it: the host works it out
//! ([`super::deal`]).
//!
//! Blocks are persistent: each goes through a list of its own, so that the next tile's copies are under way while
//! this one is finished.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, Val, Var};

use super::Config;

/// Words of an entry: see [`super::deal`].
pub(super) const WORDS: usize = 8;

/// The word of an entry that says what warpgroups do not see, and which split it is of.
pub(super) const UNSEEN: usize = 6;

/// What fills the entries after the last of a list.
pub(super) const END: u32 = u32::MAX;

/// In place of the turns that a warpgroup passes over: it has no rows.
pub(super) const NO_ROWS: u32 = 0xff;

/// Batches, heads, tiles of rows and tiles of keys that an entry can name.
pub(super) const MOST: usize = 1 << 16;

/// Splits of the keys that an entry can name, less those that might make it look like [`END`].
pub(super) const MOST_SPLITS: u32 = 128;

/// A block's list as its warps read it. The copying warp reads each entry a tile earlier than the others, which find
/// it in the L1 cache.
pub(super) struct List<'k> {
    k: &'k KernelBuilder,
    table: GlobalPtr<'k, u32>,
    rows: u32,
    cols: u32,
    /// Number in the table of the entry at hand.
    this: Var<'k, u32>,
}

/// An entry of a list: a tile of query rows to be computed.
pub(super) struct Entry<'k> {
    words: Vec<Val<'k, u32>>,
    rows: u32,
    cols: u32,
}

/// As much of the entry after as is needed before its turn comes.
pub(super) struct Next<'k> {
    unseen: Val<'k, u32>,
}

impl<'k> List<'k> {
    /// At the first entry. There always is one.
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, table: GlobalPtr<'k, u32>, levers: &Config) -> Self {
        List {
            k,
            table,
            rows: levers.rows,
            cols: levers.cols,
            this: k.var(k.block_idx(0)),
        }
    }

    /// The entry at hand.
    #[track_caller]
    pub(super) fn this(&self) -> Entry<'k> {
        let place = self.table.offset(self.this.get() * WORDS as u32);
        let mut words = place.load_words(4, Cache::ReadOnly);
        words.extend(place.plus(4).load_words(4, Cache::ReadOnly));
        Entry {
            words,
            rows: self.rows,
            cols: self.cols,
        }
    }

    /// The entry after.
    #[track_caller]
    pub(super) fn next(&self) -> Next<'k> {
        let place = self.table.offset((self.this + self.k.grid_dim(0)) * WORDS as u32);
        Next {
            unseen: place.plus(UNSEEN as i32).load_words(1, Cache::ReadOnly)[0],
        }
    }

    /// Goes on to the entry after.
    #[track_caller]
    pub(super) fn advance(&self) {
        self.this.add_assign(self.k.grid_dim(0));
    }
}

impl<'k> Next<'k> {
    /// Whether there is one.
    #[track_caller]
    pub(super) fn exists(&self) -> Val<'k, bool> {
        self.unseen.ne(END)
    }

    /// Whether a warpgroup's rows see something in its first turn.
    #[track_caller]
    pub(super) fn sees_at_once(&self, warpgroup: Val<'k, u32>) -> Val<'k, bool> {
        (self.unseen >> (warpgroup * 8) & 0xff).eq(0)
    }
}

impl<'k> Entry<'k> {
    #[track_caller]
    pub(super) fn batch(&self) -> Val<'k, u32> {
        self.low(0)
    }

    #[track_caller]
    pub(super) fn kv_head(&self) -> Val<'k, u32> {
        self.high(0)
    }

    #[track_caller]
    pub(super) fn head(&self) -> Val<'k, u32> {
        self.low(1)
    }

    /// The tile's first query row.
    #[track_caller]
    pub(super) fn first_row(&self) -> Val<'k, u32> {
        self.high(1) * self.rows
    }

    /// Which of the splits of the rows' keys these are.
    #[track_caller]
    pub(super) fn split(&self) -> Val<'k, u32> {
        self.words[UNSEEN] >> 24u32
    }

    /// Turns: tiles of keys to go through.
    pub(super) fn turns(&self) -> Val<'k, u32> {
        self.words[7]
    }

    /// Turns, the first ones, that need a mask.
    #[track_caller]
    pub(super) fn masked(&self) -> Val<'k, u32> {
        self.high(5)
    }

    /// First key of the tile of a turn.
    #[track_caller]
    pub(super) fn first_key(&self, turn: Val<'k, u32>) -> Val<'k, u32> {
        let whole = self.words[4] + turn * self.cols;
        turn.lt(self.masked()).select(self.first_masked_key(turn), whole)
    }

    /// The same of a turn that needs a mask.
    #[track_caller]
    pub(super) fn first_masked_key(&self, turn: Val<'k, u32>) -> Val<'k, u32> {
        let past = turn * self.cols;
        turn.lt(self.low(5)).select(self.words[2] + past, self.words[3] - past)
    }

    /// Turns, the first ones, in which a warpgroup's rows see nothing; all of them if it has no rows.
    #[track_caller]
    pub(super) fn unseen(&self, warpgroup: Val<'k, u32>) -> Val<'k, u32> {
        let unseen = self.words[UNSEEN] >> (warpgroup * 8) & 0xff;
        unseen.eq(NO_ROWS).select(self.turns(), unseen)
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
