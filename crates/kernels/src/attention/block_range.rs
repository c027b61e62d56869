//! Which K blocks a Q tile needs: the first and the last, which of them need a mask, and in which order they are taken.
//!
//! Written once over [`Index`], without branches: the host uses it to make work lists, a kernel to find its own range,
//! and a backward pass, whose rows are keys, gives it [`Band::inverse`] to find the Q blocks of a K tile.

use std::ops::{Add, BitAnd, Mul, Sub};

use flashcore_ir::Val;

/// A number with its reciprocal, for many divisions by it.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    number: u32,
    /// `2^64 / number`, rounded up.
    reciprocal: u64,
}

impl Divisor {
    /// The number.
    pub fn number(self) -> u32 {
        self.number
    }

    /// The quotient of a number, rounded down, by a product, which takes a third of a division's time: exact for all
    /// numbers of 32 bits (Lemire, Kaser and Kurz, "Faster remainder by direct computation", 2019).
    #[inline]
    pub fn floor_div(self, number: u32) -> u32 {
        match self.number {
            1 => number,
            _ => ((u128::from(self.reciprocal) * u128::from(number)) >> 64) as u32,
        }
    }

    /// The quotient, rounded up, of a number that is less than 2^32 by at least the divisor.
    #[inline]
    pub fn ceil_div(self, number: u32) -> u32 {
        self.floor_div(number + (self.number - 1))
    }
}

/// Of a number that is not 0.
impl From<u32> for Divisor {
    fn from(number: u32) -> Divisor {
        Divisor {
            number,
            reciprocal: (u64::MAX / u64::from(number)).wrapping_add(1),
        }
    }
}

/// Arithmetic on rows, keys and blocks: of integers on the host, or of values in a kernel.
pub trait Index: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// What comparisons give.
    type Condition: Copy + BitAnd<Output = Self::Condition>;

    /// A constant, of the kind of this number.
    fn constant(self, value: i32) -> Self;
    /// The smaller of the two.
    fn at_most(self, other: Self) -> Self;
    /// The larger of the two.
    fn at_least(self, other: Self) -> Self;
    /// `self · factor + term`.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// The quotient, rounded down, of a number that is not negative by a positive one.
    fn floor_div(self, divisor: Self) -> Self;
    /// [`Self::floor_div`] by a [`Divisor`]; on the host, `self` must fit into 32 bits, as rows and keys do.
    #[track_caller]
    fn div_by(self, divisor: Divisor) -> Self {
        self.floor_div(self.constant(divisor.number as i32))
    }
    /// Whether the two are equal.
    fn is(self, other: Self) -> Self::Condition;
    /// Whether this one is less.
    fn is_below(self, other: Self) -> Self::Condition;
    /// Whether this one is greater.
    fn is_above(self, other: Self) -> Self::Condition;
    /// `then` where the condition holds, else `otherwise`.
    fn select(condition: Self::Condition, then: Self, otherwise: Self) -> Self;
}

impl Index for i64 {
    type Condition = bool;

    fn constant(self, value: i32) -> i64 {
        i64::from(value)
    }
    fn at_most(self, other: i64) -> i64 {
        self.min(other)
    }
    fn at_least(self, other: i64) -> i64 {
        self.max(other)
    }
    fn mul_add(self, factor: i64, term: i64) -> i64 {
        self * factor + term
    }
    fn floor_div(self, divisor: i64) -> i64 {
        self.div_euclid(divisor)
    }
    fn div_by(self, divisor: Divisor) -> i64 {
        debug_assert!(u32::try_from(self).is_ok(), "{self}");
        i64::from(divisor.floor_div(self as u32))
    }
    fn is(self, other: i64) -> bool {
        self == other
    }
    fn is_below(self, other: i64) -> bool {
        self < other
    }
    fn is_above(self, other: i64) -> bool {
        self > other
    }
    fn select(condition: bool, then: i64, otherwise: i64) -> i64 {
        if condition { then } else { otherwise }
    }
}

macro_rules! index_of_values {
    ($ty:ty) => {
        impl<'k> Index for Val<'k, $ty> {
            type Condition = Val<'k, bool>;

            fn constant(self, value: i32) -> Self {
                self.builder().constant(value as $ty)
            }
            #[track_caller]
            fn at_most(self, other: Self) -> Self {
                self.min(other)
            }
            #[track_caller]
            fn at_least(self, other: Self) -> Self {
                self.max(other)
            }
            #[track_caller]
            fn mul_add(self, factor: Self, term: Self) -> Self {
                self.fma(factor, term)
            }
            // As unsigned numbers they are divided by a shift.
            #[track_caller]
            fn floor_div(self, divisor: Self) -> Self {
                (self.reinterpret::<u32>() / divisor.reinterpret::<u32>()).reinterpret()
            }
            #[track_caller]
            fn is(self, other: Self) -> Val<'k, bool> {
                self.eq(other)
            }
            #[track_caller]
            fn is_below(self, other: Self) -> Val<'k, bool> {
                self.lt(other)
            }
            #[track_caller]
            fn is_above(self, other: Self) -> Val<'k, bool> {
                self.gt(other)
            }
            #[track_caller]
            fn select(condition: Val<'k, bool>, then: Self, otherwise: Self) -> Self {
                condition.select(then, otherwise)
            }
        }
    };
}
index_of_values!(i32);
index_of_values!(u32);

/// Row `i` sees keys `i + lo ..= i + hi`, cut to `0..len`.
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
    /// First visible key of a row, and one past the last (not below the first). Both may be past the last key if the
    /// row sees none: enough for a mask.
    #[track_caller]
    pub fn visible(&self, row: I) -> (I, I) {
        let end = (row + self.hi + row.constant(1)).at_most(self.len);
        let first = (row + self.lo).at_least(row.constant(0));
        (first, end.at_least(first))
    }

    /// [`Self::visible`] cut to `0..len`, as [`KeyRange::keys`](flashcore_problem::KeyRange::keys): to count blocks.
    #[track_caller]
    pub fn keys(&self, row: I) -> (I, I) {
        let (first, end) = self.visible(row);
        (first.at_most(self.len), end.at_most(self.len))
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

/// Blocks that a tile of rows needs, each bound as a block's number.
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

/// The blocks of `block` keys that the rows from `first_row` to `last_row` of a tile see. Bounds grow with the row: the
/// first row sees the lowest key, the last row the highest.
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
        let up = |keys: I| down(keys + keys.constant(block.number as i32 - 1));
        let (first, end) = (down(lowest), up(highest));
        let whole = up(whole).at_least(first).at_most(end);
        BlockRange {
            first,
            whole,
            whole_end: down(whole_end).at_least(whole).at_most(end),
            end,
        }
    }
}

/// The order in which a main loop takes the blocks: those that need a mask at the low end, upwards; those at the high
/// end; then those that every row sees whole, upwards, in a loop without a mask.
///
/// Each kind has a base, from which iteration `i` follows as `base + i`, at the high end `base - i` if descending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOrder<I> {
    /// Base of the blocks at the low end.
    pub low: I,
    /// Iterations at the low end; less than 0 or more than all for a share of an order.
    pub masked_low: I,
    /// Base of the blocks at the high end.
    pub high: I,
    /// Base of the blocks without a mask.
    pub whole: I,
    /// Iterations that need a mask.
    pub masked: I,
    /// All iterations.
    pub count: I,
    /// Whether the blocks at the high end are taken from the last one down, so that a tile begins with those that its
    /// first rows do not see at all.
    pub descending: bool,
}

impl<I: Index> BlockOrder<I> {
    /// Upwards at the high end. With `first_masked` the first block counts as one that needs a mask: the loop over
    /// these sets the maxima of the rows.
    #[track_caller]
    pub fn ascending(range: BlockRange<I>, first_masked: bool) -> BlockOrder<I> {
        let (first, mut whole, whole_end, end) = (range.first, range.whole, range.whole_end, range.end);
        if first_masked {
            let none_masked = whole.is(first) & whole_end.is(end);
            whole = I::select(none_masked, (first + first.constant(1)).at_most(end), whole);
        }
        let masked_low = whole - first;
        let masked = masked_low + (end - whole_end.at_least(whole));
        BlockOrder {
            low: first,
            masked_low,
            high: whole_end - masked_low,
            whole: whole - masked,
            masked,
            count: (end - first).at_least(end.constant(0)),
            descending: false,
        }
    }

    /// Downwards at the high end. One block even where no key is seen, of which the mask leaves nothing.
    #[track_caller]
    pub fn descending(range: BlockRange<I>) -> BlockOrder<I> {
        let (first, whole, end) = (range.first, range.whole, range.end);
        let (none, one) = (end.is(first), end.constant(1));
        let masked_low = whole - first;
        let masked = masked_low + (end - range.whole_end);
        BlockOrder {
            low: first,
            masked_low,
            high: end.at_least(one) - one + masked_low,
            whole: whole - masked,
            masked: I::select(none, one, masked),
            count: (end - first).at_least(one),
            descending: true,
        }
    }

    /// `count` of the iterations from `begin` on, as an order of their own.
    #[track_caller]
    pub fn part(self, begin: I, count: I) -> BlockOrder<I> {
        BlockOrder {
            low: self.low + begin,
            masked_low: self.masked_low - begin,
            high: match self.descending {
                true => self.high - begin,
                false => self.high + begin,
            },
            whole: self.whole + begin,
            masked: (self.masked - begin).at_least(begin.constant(0)).at_most(count),
            count,
            descending: self.descending,
        }
    }

    /// The same order, where the first block, if there is one, counts as one that needs a mask.
    #[track_caller]
    pub fn first_masked(self) -> BlockOrder<I> {
        let (zero, one) = (self.count.constant(0), self.count.constant(1));
        let none_masked = self.masked.is(zero) & self.count.is_above(zero);
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
            let masked = I::select(i.is_below(self.masked_low), self.low + i, self.high - i);
            return I::select(i.is_below(self.masked), masked, self.whole + i);
        }
        let masked = I::select(i.is_below(self.masked_low), self.low, self.high);
        i + I::select(i.is_below(self.masked), masked, self.whole)
    }
}

/// Share `index` of `count` shares of `total` iterations, as equal as can be: where it begins and how long it is,
/// perhaps 0.
#[track_caller]
pub fn share<I: Index>(total: I, index: I, count: I) -> (I, I) {
    let each = total.floor_div(count);
    let rest = total - each * count;
    let begin = index.mul_add(each, index.at_most(rest));
    let longer = I::select(index.is_below(rest), total.constant(1), total.constant(0));
    (begin, each + longer)
}

#[cfg(test)]
mod tests;
