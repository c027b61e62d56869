//! Which K blocks a Q tile needs: the first and the last, which of them need a mask, and their order in the main loop.
//! Those on the diagonal of a causal mask are `whole_end..end` of a [`BlockRange`].
//!
//! Written once over [`Index`], without branches: the host makes work lists with it, and a kernel finds its own range.
//! A backward pass, whose rows are keys, passes [`Band::inverse`] and gets the Q tiles of a tile of keys.

use super::divisor::Divisor;
use super::index::Index;

/// Row `i` sees keys `i + lo ..= i + hi` that are in `0..len`.
#[derive(Clone, Copy, Debug)]
pub struct Band<I> {
    /// First visible key relative to the row.
    pub lo: I,
    /// Last visible key relative to the row.
    pub hi: I,
    /// Number of keys.
    pub len: I,
}

impl<I: Index> Band<I> {
    /// First visible key of a row, and one past the last (not below the first). Both may be past `len` if the row sees
    /// no key, which is enough for a mask.
    #[track_caller]
    pub fn visible(&self, row: I) -> (I, I) {
        let end = (row + self.hi + row.constant(1)).min(self.len);
        let first = (row + self.lo).max(row.constant(0));
        (first, end.max(first))
    }

    /// [`Self::visible`], not past `len`, as [`KeyRange::keys`](flashcore_problem::KeyRange::keys): to count blocks.
    #[track_caller]
    pub fn keys(&self, row: I) -> (I, I) {
        let (first, end) = self.visible(row);
        (first.min(self.len), end.min(self.len))
    }

    /// The same band with rows and keys exchanged: key `j` is seen by rows `j - hi ..= j - lo` of `rows`.
    pub fn inverse(&self, rows: I) -> Band<I> {
        let zero = rows.constant(0);
        Band {
            lo: zero - self.hi,
            hi: zero - self.lo,
            len: rows,
        }
    }
}

/// The range of blocks that a tile of rows needs, in numbers of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange<I> {
    /// First block that any row sees.
    pub first: I,
    /// First block that every row sees whole.
    pub whole: I,
    /// One past the last of these.
    pub whole_end: I,
    /// One past the last block that any row sees.
    pub end: I,
}

/// The blocks of `block` keys that the rows from `first_row` to `last_row` see. The first row sees the lowest key, the
/// last row the highest, since both bounds grow with the row.
#[track_caller]
pub fn block_range<I: Index>(band: &Band<I>, first_row: I, last_row: I, block: impl Into<Divisor>) -> BlockRange<I> {
    BlockRange::between(band.visible(first_row), band.visible(last_row), block)
}

impl<I: Index> BlockRange<I> {
    /// [`block_range`] from the keys that the first and the last row see, `(first, end)` each.
    #[track_caller]
    pub fn between((lowest, whole_end): (I, I), (whole, highest): (I, I), block: impl Into<Divisor>) -> BlockRange<I> {
        let block = block.into();
        let down = |keys: I| keys.div_by(block);
        let up = |keys: I| down(keys + keys.constant(block.number() as i32 - 1));
        let (first, end) = (down(lowest), up(highest));
        let whole = up(whole).max(first).min(end);
        BlockRange {
            first,
            whole,
            whole_end: down(whole_end).max(whole).min(end),
            end,
        }
    }
}

/// The order of the blocks in a main loop: first those that need a mask at the low end of the range, ascending; then
/// those that need one at the high end; then those that every row sees whole, ascending, in a loop without a mask.
///
/// The block of iteration `i` is `base + i`, with a base for each of the three; at the high end it is `base - i` if
/// descending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOrder<I> {
    /// Base of the blocks at the low end.
    pub low: I,
    /// Iterations at the low end. In a part of an order it may be negative or more than all.
    pub masked_low: I,
    /// Base of the blocks at the high end.
    pub high: I,
    /// Base of the blocks without a mask.
    pub whole: I,
    /// Iterations that need a mask.
    pub masked: I,
    /// All iterations.
    pub count: I,
    /// Whether the blocks at the high end are in descending order: a tile then begins with the blocks that its first
    /// rows do not see at all.
    pub descending: bool,
}

impl<I: Index> BlockOrder<I> {
    /// Ascending at the high end. With `first_masked` the first block counts as one that needs a mask, because the loop
    /// over these sets the maxima of the rows.
    #[track_caller]
    pub fn ascending(range: BlockRange<I>, first_masked: bool) -> BlockOrder<I> {
        let (first, mut whole, whole_end, end) = (range.first, range.whole, range.whole_end, range.end);
        if first_masked {
            let none_masked = whole.eq(first) & whole_end.eq(end);
            whole = I::select(none_masked, (first + first.constant(1)).min(end), whole);
        }
        let masked_low = whole - first;
        let masked = masked_low + (end - whole_end.max(whole));
        BlockOrder {
            low: first,
            masked_low,
            high: whole_end - masked_low,
            whole: whole - masked,
            masked,
            count: (end - first).max(end.constant(0)),
            descending: false,
        }
    }

    /// Descending at the high end. If no key is seen, there is one block nevertheless, fully masked.
    #[track_caller]
    pub fn descending(range: BlockRange<I>) -> BlockOrder<I> {
        let (first, whole, end) = (range.first, range.whole, range.end);
        let (none, one) = (end.eq(first), end.constant(1));
        let masked_low = whole - first;
        let masked = masked_low + (end - range.whole_end);
        BlockOrder {
            low: first,
            masked_low,
            high: end.max(one) - one + masked_low,
            whole: whole - masked,
            masked: I::select(none, one, masked),
            count: (end - first).max(one),
            descending: true,
        }
    }

    /// The order of `count` iterations from `begin` on.
    #[track_caller]
    pub fn part(self, begin: I, count: I) -> BlockOrder<I> {
        BlockOrder {
            low: self.low + begin,
            masked_low: self.masked_low - begin,
            high: if self.descending {
                self.high - begin
            } else {
                self.high + begin
            },
            whole: self.whole + begin,
            masked: (self.masked - begin).max(begin.constant(0)).min(count),
            count,
            descending: self.descending,
        }
    }

    /// The same order, where the first block, if there is one, counts as one that needs a mask.
    #[track_caller]
    pub fn first_masked(self) -> BlockOrder<I> {
        let (zero, one) = (self.count.constant(0), self.count.constant(1));
        let none_masked = self.masked.eq(zero) & self.count.gt(zero);
        BlockOrder {
            low: I::select(none_masked, self.whole, self.low),
            masked_low: I::select(none_masked, one, self.masked_low),
            masked: I::select(none_masked, one, self.masked),
            ..self
        }
    }

    /// The block of an iteration.
    #[track_caller]
    pub fn n_block(&self, i: I) -> I {
        if self.descending {
            let masked = I::select(i.lt(self.masked_low), self.low + i, self.high - i);
            return I::select(i.lt(self.masked), masked, self.whole + i);
        }
        let masked = I::select(i.lt(self.masked_low), self.low, self.high);
        i + I::select(i.lt(self.masked), masked, self.whole)
    }
}

/// Divides `total` iterations into `count` shares that differ by at most one: the first iteration and the length, which
/// may be 0, of share `index`.
#[track_caller]
pub fn share<I: Index>(total: I, index: I, count: I) -> (I, I) {
    let each = total.floor_div(count);
    let rest = total - each * count;
    let begin = index.mul_add(each, index.min(rest));
    let longer = I::select(index.lt(rest), total.constant(1), total.constant(0));
    (begin, each + longer)
}

#[cfg(test)]
mod tests;
