//! A warpgroup's softmax: scores become probabilities, and probabilities operands, without leaving registers.

use flashcore_ir::Val;

use super::input::{Input, LARGEST_POWER};
use super::math::{Masked, Row, Warpgroup};
use super::tiles::step;
use crate::lanes::{QUAD, lane_columns, largest_of};
use crate::mma::Rescale;

impl<'k, E: Input> Warpgroup<'k, '_, E> {
    /// Groups of 16 keys of a tile, as [`lane_columns`] counts them.
    pub(super) fn steps(&self) -> std::ops::Range<u32> {
        0..self.shared.levers.cols / 16
    }

    /// How many powers of two a score may be above the largest that the reference was raised to.
    pub(super) fn slack(&self) -> f32 {
        match self.shared.levers.rescale {
            Rescale::Eager => 0.0,
            Rescale::Lazy => E::LAZY_POWERS,
            Rescale::Bold => E::BOLD_POWERS,
        }
    }

    /// How many powers of two references are put above the largest score: so many below it that what is above them is a
    /// probability yet.
    pub(super) fn margin(&self) -> f32 {
        self.slack() - LARGEST_POWER
    }

    /// With soft cap: scores, not yet scaled, are capped.
    #[track_caller]
    pub(super) fn cap(&self) {
        if self.shared.shape.softcap {
            for register in 0..4 * self.scores.tiles() {
                let score = self.scores.var(register);
                let scaled = match &self.scales {
                    Some(scales) => score * scales.scores.get(),
                    None => score.get(),
                };
                score.set(self.shared.params.score(scaled));
            }
        }
    }

    /// Scores that a row does not see become −∞.
    #[track_caller]
    pub(super) fn mask(&self, (tile, key0): Masked<'k, '_>) {
        self.k.verb("mask", || {
            let first = (key0 + self.k.lane() % QUAD * 2u32).reinterpret::<i32>();
            for half in 0..2 {
                let row = tile.first_row() + self.lane_row + 8 * half as u32;
                let (low, end) = self.shared.params.visible_keys(row);
                // Relative to this lane's first key, so that the columns are constants.
                let (low, end) = (low - first, end - first);
                for (column, register) in lane_columns(self.steps(), half) {
                    let score = self.scores.var(register);
                    let sees = low.le(column) & end.gt(column);
                    score.set(sees.select(score, f32::NEG_INFINITY));
                }
            }
        });
    }

    /// Raises the references of the rows to their scores where one is more than `slack` powers of two above its row's,
    /// and brings the sums to the new ones; the output too if it is `at_hand`, else [`Row::factor`] says by what it is
    /// to be multiplied. Whether any was raised in this warp.
    #[track_caller]
    pub(super) fn raise_references(&self, slack: f32, at_hand: bool) -> Val<'k, bool> {
        let k = self.k;
        k.verb("raise_references", || {
            let largest = [0, 1].map(|half| largest_of(&self.scores, self.steps(), half));
            let above = |row: &Row<'k>, score: Val<'k, f32>| row.reference.exponent(score).gt(slack);
            let any = above(&self.rows[0], largest[0]) | above(&self.rows[1], largest[1]);
            let any = any.vote_any();
            k.if_(any.uniform(), || {
                for (half, (row, score)) in self.rows.iter().zip(largest).enumerate() {
                    let factor = row.reference.raise(score.reduce_max(QUAD), self.margin());
                    row.sum.mul_assign(factor);
                    if at_hand {
                        self.rescale_output(half, factor);
                    } else {
                        row.factor.set(factor);
                    }
                }
            });
            any
        })
    }

    /// Brings the output of a row to a reference that was raised.
    #[track_caller]
    pub(super) fn rescale_output(&self, half: usize, factor: Val<'k, f32>) {
        self.k.verb("rescale_output", || {
            for (_, register) in lane_columns(0..self.out.tiles() / 2, half) {
                self.out.var(register).mul_assign(factor);
            }
        });
    }

    /// Scores become probabilities, where they are.
    #[track_caller]
    pub(super) fn exponentials(&self) {
        self.k.verb("exponentials", || {
            for register in 0..4 * self.scores.tiles() {
                let row = &self.rows[register as usize / 2 % 2];
                let score = self.scores.var(register);
                let p = row.reference.exp(score.get());
                self.store_probability(register, p);
                score.set(p);
            }
            for (half, row) in self.rows.iter().enumerate() {
                row.sum.add_assign(self.sum_of(half));
            }
        });
    }

    /// The sum of a lane's values in a row, in two chains so that they do not wait for each other.
    #[track_caller]
    fn sum_of(&self, half: usize) -> Val<'k, f32> {
        let mut chains: Vec<Val<'k, f32>> = Vec::new();
        for (i, (_, register)) in lane_columns(self.steps(), half).enumerate() {
            let value = self.scores.var(register).get();
            match chains.get_mut(i % 2) {
                Some(chain) => *chain = *chain + value,
                None => chains.push(value),
            }
        }
        chains[0] + chains[1]
    }

    /// Words of the operands that probabilities become.
    fn words(&self) -> u32 {
        4 * self.shared.levers.cols / step(E::BYTES)
    }

    /// Probabilities, rounded, become operands of the output.
    #[track_caller]
    pub(super) fn pack(&self) {
        self.k.verb("pack", || {
            for word in 0..self.words() {
                let values: Vec<_> = E::registers(word)
                    .into_iter()
                    .map(|register| self.scores.var(register).get())
                    .collect();
                self.p.word(word).set(E::pack(&values));
            }
        });
    }

    /// Exponentials relative to the references there are, without a look at the scores first; only if they come out
    /// large are the references raised and all computed again. Scores stay as they are until then.
    #[track_caller]
    pub(super) fn bold_softmax(&self) {
        let k = self.k;
        let sums = self.bold_exponentials().map(|sum| k.var(sum));
        let large = sums[0].get().gt(E::BOLD_MOST) | sums[1].get().gt(E::BOLD_MOST);
        k.if_(large.vote_any().uniform(), || {
            self.raise_references(0.0, true);
            for (sum, again) in sums.iter().zip(self.bold_exponentials()) {
                sum.set(again);
            }
        });
        for (row, sum) in self.rows.iter().zip(sums) {
            row.sum.add_assign(sum.get());
        }
    }

    /// Probabilities packed from scores that stay; what a lane's come to in each row.
    #[track_caller]
    fn bold_exponentials(&self) -> [Val<'k, f32>; 2] {
        let k = self.k;
        k.verb("exponentials", || {
            // Words 0 and 1 are of either row.
            let mut sums = [0, 1].map(|word| self.bold_word(word, None));
            for word in 2..self.words() {
                let sum = &mut sums[word as usize % 2];
                *sum = self.bold_word(word, Some(*sum));
            }
            sums
        })
    }

    /// Packs a word of probabilities, and adds them to a sum where there is one.
    #[track_caller]
    fn bold_word(&self, word: u32, before: Option<Val<'k, f32>>) -> Val<'k, f32> {
        let of = |register: u32| {
            let p = self.rows[word as usize % 2]
                .reference
                .exp(self.scores.var(register).get());
            self.store_probability(register, p);
            p
        };
        let values: Vec<_> = E::registers(word).into_iter().map(of).collect();
        let first = values[0] + values[1];
        let mut sum = before.map_or(first, |before| before + first);
        for pair in values[2..].chunks(2) {
            let pair = pair[0] + pair[1];
            sum = sum + pair;
        }
        self.p.word(word).set(E::pack(&values));
        sum
    }
}
