//! The order in which a block takes the tiles of keys that its rows see.

use flashcore_ir::Val;

use crate::params::RowParams;

/// Query rows whose keys are asked for.
pub(crate) struct Rows<'k> {
    pub(crate) first: Val<'k, u32>,
    pub(crate) last: Val<'k, u32>,
    /// Whether the first tile counts as one that needs a mask even where none does: it sets the references.
    pub(crate) first_masked: bool,
    /// Whether tiles that need a mask at the high end are taken from the highest down, so that those which the first
    /// rows do not see at all come first.
    pub(crate) downwards: bool,
}

/// One of `count` shares of the tiles of keys.
#[derive(Clone, Copy)]
pub(crate) struct Split<'k> {
    pub(crate) index: Val<'k, u32>,
    pub(crate) count: Val<'k, u32>,
}

/// The tiles of keys that the block's rows see, in the order they are taken: those that need a mask first
/// (at the low end, then at the high end), then those that every row sees whole.
pub(crate) struct TileSequence<'k> {
    cols: u32,
    first: Val<'k, i32>,
    /// Turns that need a mask at the low end.
    masked_low: Val<'k, i32>,
    /// What takes a turn at the high end to its tile.
    high: Val<'k, i32>,
    downwards: bool,
    /// What takes an unmasked turn to its tile.
    whole: Val<'k, i32>,
    /// Turns that need a mask.
    pub(crate) masked: Val<'k, i32>,
    pub(crate) turns: Val<'k, i32>,
}

impl<'k> TileSequence<'k> {
    #[track_caller]
    pub(crate) fn new(params: &RowParams<'k>, rows: &Rows<'k>, cols: u32) -> Self {
        let k = params.seq_len_q.builder();
        let count = cols as i32;
        // Bounds grow with the row: the first row sees the lowest key, the last row the highest.
        let (lowest, whole_end) = params.visible_keys(rows.first);
        let (whole_first, highest) = params.visible_keys(rows.last);
        let up = |keys: Val<'k, i32>| (keys + (count - 1)) / count;
        let (first, end) = (lowest / count, up(highest));
        let whole = up(whole_first).max(first).min(end);
        let high = (whole_end / count).max(whole).min(end);
        let whole = match rows.first_masked {
            true => (whole.eq(first) & high.eq(end)).select((first + 1).min(end), whole),
            false => whole,
        };
        let masked_low = whole - first;
        let masked = masked_low + (end - high.max(whole));
        TileSequence {
            cols,
            first,
            masked_low,
            high: match rows.downwards {
                true => end - 1 + masked_low,
                false => high - masked_low,
            },
            downwards: rows.downwards,
            whole: whole - masked,
            masked,
            turns: (end - first).max(k.constant(0)),
        }
    }

    /// A run of turns that is one of several shares, as equal as can be; shares may be empty.
    #[track_caller]
    pub(crate) fn share(self, split: Split<'k>, first_masked: bool) -> Self {
        let turns = self.turns.reinterpret::<u32>();
        let each = turns / split.count;
        let rest = turns - each * split.count;
        let begin = split.index.fma(each, split.index.min(rest)).reinterpret::<i32>();
        let turns = (each + split.index.lt(rest).select(1u32, 0u32)).reinterpret::<i32>();
        let share = TileSequence {
            cols: self.cols,
            first: self.first + begin,
            masked_low: self.masked_low - begin,
            high: match self.downwards {
                true => self.high - begin,
                false => self.high + begin,
            },
            downwards: self.downwards,
            whole: self.whole + begin,
            masked: (self.masked - begin).max(0).min(turns),
            turns,
        };
        if !first_masked {
            return share;
        }
        // Every share has a first tile that sets the references.
        let none_masked = share.masked.eq(0) & turns.gt(0);
        TileSequence {
            first: none_masked.select(share.whole, share.first),
            masked_low: none_masked.select(1, share.masked_low),
            masked: none_masked.select(1, share.masked),
            ..share
        }
    }

    /// Turns at the beginning in which rows that see no key from `end` on see nothing, at most all but one: there are
    /// some only where tiles are taken downwards.
    #[track_caller]
    pub(crate) fn unseen(&self, end: Val<'k, i32>) -> Val<'k, i32> {
        let cols = self.cols as i32;
        let highest = self.high + 1;
        let unseen = (highest - (end + (cols - 1)) / cols).max(0).min(self.turns - 1);
        (self.masked_low.eq(0) & self.masked.gt(0)).select(unseen.max(0), 0)
    }

    /// First key of the tile of a turn.
    #[track_caller]
    pub(crate) fn first_key(&self, turn: Val<'k, i32>, edges: Edges) -> Val<'k, u32> {
        let base = match edges {
            Edges::Whole => self.whole,
            Edges::Checked => {
                let high = match self.downwards {
                    // The turn is added again below.
                    true => self.high - turn - turn,
                    false => self.high,
                };
                let masked = turn.lt(self.masked_low).select(self.first, high);
                turn.lt(self.masked).select(masked, self.whole)
            }
        };
        (turn + base).reinterpret::<u32>() * self.cols
    }
}

/// Whether a tile may reach past what its rows see or what there is.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Edges {
    Checked,
    Whole,
}
