//! The steps of a warp in a K block: `S = Q·Kᵀ`, softmax and `O += P·V`.
//!
//! Scores and probabilities never leave registers: the accumulators of S, rounded and packed, are operand A of
//! `O += P·V`.

use std::ops::{Deref, Range};

use flashcore_ir::fragment::{AOperand, BOperand, MmaElement};
use flashcore_ir::{Element, KernelBuilder, Val, Var};

use super::Config;
use super::producer::Block;
use crate::attention::mask::{mask_scores, warp_sees};
use crate::attention::row_tile::{self, ACC_COLS, RowTile, ScoreTiles, lane_column, lane_row};
use crate::attention::score_mod::TileBias;
use crate::attention::softmax::{Row, SixteenBits, raise_maxima};
use crate::attention::tap::Tap;
use crate::tiles::{Fragments, STEP, padded};

/// Steps of Q that registers hold at most: with all 16 of head_dim 256, ptxas 13 spills two registers on sm_80 to
/// sm_89.
const MAX_STEPS_HELD: u32 = 15;

/// Parts of a K block with speculative softmax. More parts need more votes, which cost more than the overlap gains.
const SPECULATIVE_PARTS: u32 = 2;

/// Set in a pair of 16-bit probabilities, of either format, if one of them is 2 or more, infinite, or NaN.
const TWO_OR_MORE: u32 = 0x4000_4000;

/// Adds products to step `columns` of 16 columns of the tiles: `a` by block of rows, and the two halves of the columns.
#[track_caller]
pub(super) fn multiply<'k, E: MmaElement, Rows: Copy>(
    k: &'k KernelBuilder,
    to: &[RowTile<'k, Rows>],
    columns: u32,
    a: &[AOperand<E>],
    [left, right]: [BOperand<E>; 2],
) {
    for (tile, &a) in to.iter().zip(a) {
        k.mma(tile.0, 2 * columns, a, left);
        k.mma(tile.0, 2 * columns + 1, a, right);
    }
}

/// A warp's part of the block's rows and of each K block's keys.
#[derive(Clone, Copy)]
pub(super) struct WarpPlace<'k> {
    /// Number of the warp along the keys.
    pub(super) kv_warp: Val<'k, u32>,
    pub(super) first_row: Val<'k, u32>,
    pub(super) first_key: Val<'k, u32>,
}

impl<'k> WarpPlace<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, levers: &Config) -> Self {
        let warp = k.warp_idx();
        if levers.kv_warps == 1 {
            return WarpPlace {
                kv_warp: k.constant(0),
                first_row: warp * levers.rows_per_warp(),
                first_key: k.constant(0),
            };
        }
        let (row_warp, kv_warp) = (warp % levers.warps, warp / levers.warps);
        WarpPlace {
            kv_warp,
            first_row: row_warp * levers.rows_per_warp(),
            first_key: kv_warp * levers.keys_per_warp(),
        }
    }
}

/// A warp of a block, which has 16 rows per row block, two of them in each lane.
pub(super) struct Warp<'k, 'b, E: Element> {
    pub(super) block: &'b Block<'k, 'b, E>,
    pub(super) place: WarpPlace<'k>,
    q_fragments: Fragments<'k, E>,
    /// Operands of Q that registers hold, by row block and step. The other steps are loaded in each K block.
    q_held: Vec<Vec<AOperand<E>>>,
    /// The lane's first row among those of the block's head or heads.
    pub(super) first_row: Val<'k, u32>,
    /// `S` and `O` by row block, and row state by row block and half.
    scores: ScoreTiles<'k>,
    /// Probabilities, rounded and packed as operands of `O += P·V`: `[row block][word]`.
    p: Vec<Vec<Var<'k, E::Word>>>,
    pub(super) out: Vec<RowTile<'k>>,
    pub(super) rows: Vec<Row<'k>>,
    /// ALiBi's biases by row block, if there are any.
    biases: Vec<[TileBias<'k>; 2]>,
    /// First key of the current K block, in builds with a tap.
    tapped_key: Option<Var<'k, u32>>,
}

impl<'k, 'b, E: Element> Deref for Warp<'k, 'b, E> {
    type Target = Block<'k, 'b, E>;

    fn deref(&self) -> &Self::Target {
        self.block
    }
}

impl<'k, 'b, E: SixteenBits> Warp<'k, 'b, E> {
    #[track_caller]
    pub(super) fn new(block: &'b Block<'k, 'b, E>, place: WarpPlace<'k>, q_fragments: Fragments<'k, E>) -> Self {
        let Block { k, levers, shape, .. } = *block;
        let score_mod = &block.params.score_mod;
        let (mut out, mut rows) = (Vec::new(), Vec::new());
        for m in 0..levers.row_blocks() {
            let tiles = padded(shape.head_dim_v) / ACC_COLS;
            out.push(RowTile::new(k.acc(&format!("out{m}"), tiles)));
            rows.extend([(); 2].map(|()| Row::new(k, score_mod.exponent_scale, shape.dtype)));
        }
        let tiles = levers.keys_per_warp() / ACC_COLS;
        let words = || (0..2 * tiles).map(|_| k.var_unwritten("p")).collect();
        let mut warp = Warp {
            block,
            first_row: block.first_row + place.first_row + lane_row(k),
            place,
            q_fragments,
            q_held: Vec::new(),
            scores: ScoreTiles::new(k, levers.row_blocks(), tiles, levers.f16_scores),
            p: (0..levers.row_blocks()).map(|_| words()).collect(),
            out,
            rows,
            biases: Vec::new(),
            tapped_key: shape.tap.map(|_| k.var_unwritten("tapped_key")),
        };
        if shape.alibi {
            let rows = &block.rows;
            warp.biases = TileBias::of_lane(levers.row_blocks(), levers.pack_heads, |m, half| {
                let row = warp.row(m, half);
                score_mod.bias(rows.batch, rows.head_of(row), rows.query(row))
            });
        }
        warp
    }

    /// Sets ALiBi's biases, and the key of a tap, for the K block that begins at `first_key`.
    #[track_caller]
    pub(super) fn begin_score_mod(&self, first_key: impl FnOnce() -> Val<'k, u32>) {
        if self.tapped_key.is_none() && self.biases.is_empty() {
            return;
        }
        let first_key = first_key();
        if let Some(key) = self.tapped_key {
            key.set(first_key);
        }
        let mine = || first_key + self.place.first_key + lane_column(self.k);
        for bias in self.biases.iter().flatten() {
            bias.begin(mine());
        }
    }

    /// Loads Q's operands into registers, at most [`MAX_STEPS_HELD`] steps of them.
    #[track_caller]
    pub(super) fn load_q(&mut self) {
        for m in 0..self.levers.row_blocks() {
            let steps = 0..(padded(self.shape.head_dim) / STEP).min(MAX_STEPS_HELD);
            let operand = |step| self.q_fragments.a(self.k, 16 * m, step * STEP);
            self.q_held.push(steps.map(operand).collect());
        }
    }

    /// This lane's row in half `half` of row block `m`, counted through the block's head or heads.
    #[track_caller]
    pub(super) fn row(&self, m: usize, half: usize) -> Val<'k, u32> {
        self.first_row + (16 * m as u32 + 8 * half as u32)
    }

    /// First key that a row sees, counted as [`Self::row`], and one past the last.
    #[track_caller]
    pub(super) fn visible(&self, row: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        self.params.visible_keys(self.block.rows.query(row))
    }

    /// Steps of 16 keys in the warp's part of a K block.
    pub(super) fn steps(&self) -> Range<u32> {
        0..self.levers.keys_per_warp() / STEP
    }

    /// Raises the maxima, then computes exponentials and `O += P·V` for 16 keys at a time.
    pub(super) fn softmax_and_output(&self, v_fragments: &Fragments<'k, E>) {
        self.raise_maxima(self.steps());
        for step in self.steps() {
            self.exponentials(step);
            self.accumulate(v_fragments, step);
        }
    }

    /// A K block that every row sees whole, with speculative softmax: exponentials are taken against the maxima as they
    /// are. Only if one comes out large are the maxima raised and the exponentials computed again.
    ///
    /// The block is done in parts, so that the exponentials of a part overlap with products that do not depend on them:
    /// those of scores, or of the part before with V. `refill` is called once the first products are under way.
    #[track_caller]
    pub(super) fn speculative_block(
        &self,
        k_fragments: &Fragments<'k, E>,
        v_fragments: &Fragments<'k, E>,
        refill: impl Fn(),
    ) {
        let all = self.steps();
        self.scores.clear(all.clone());
        if self.levers.q_in_registers {
            // Q's operands are in registers, so scores are completed 16 keys at a time.
            for step in all.clone() {
                self.score_steps(k_fragments, step..step + 1);
                if step == 0 {
                    refill();
                }
            }
        } else {
            // To load Q's operands once per K block, all its scores are completed together.
            self.score_steps(k_fragments, all.clone());
            refill();
        }
        let part = all.end.div_ceil(SPECULATIVE_PARTS);
        let mut before = 0..0;
        for start in all.clone().step_by(part as usize) {
            let steps = start..(start + part).min(all.end);
            let sums: Vec<_> = self.rows.iter().map(|row| row.sum.get()).collect();
            for step in steps.clone() {
                if let Some(before) = before.next() {
                    self.accumulate(v_fragments, before);
                }
                self.apply_score_mod(step);
                self.exponentials(step);
            }
            // The part before may have a step more, which must be added before the maxima are raised.
            before.for_each(|step| self.accumulate(v_fragments, step));
            self.redo_if_large(k_fragments, steps.clone(), &sums);
            before = steps;
        }
        before.for_each(|step| self.accumulate(v_fragments, step));
    }

    /// If a probability of some steps is too large, raises the maxima and computes these steps again, with the sums
    /// from before them.
    #[track_caller]
    fn redo_if_large(&self, k_fragments: &Fragments<'k, E>, steps: Range<u32>, sums: &[Val<'k, f32>]) {
        let k = self.k;
        let words = 4 * steps.start as usize..4 * steps.end as usize;
        let words = self.p.iter().flat_map(|p| &p[words.clone()]);
        let any = words.fold(k.constant(0u32), |any, word| any | word.get().reinterpret::<u32>());
        k.if_((any & TWO_OR_MORE).ne(0).vote_any().uniform(), || {
            for (row, sum) in self.rows.iter().zip(sums) {
                row.sum.set(*sum);
            }
            self.scores(k_fragments, steps.clone());
            self.raise_maxima(steps.clone());
            steps.for_each(|step| self.exponentials(step));
        });
    }

    /// Computes the scores of some steps, with soft cap and ALiBi.
    #[track_caller]
    pub(super) fn scores(&self, k_fragments: &Fragments<'k, E>, steps: Range<u32>) {
        self.scores.clear(steps.clone());
        if self.levers.q_in_registers {
            steps
                .clone()
                .for_each(|step| self.score_steps(k_fragments, step..step + 1))
        } else {
            self.score_steps(k_fragments, steps.clone())
        }
        for step in steps {
            self.apply_score_mod(step);
        }
    }

    /// Adds `Q·Kᵀ` to the scores of some steps of 16 keys, which must be zero.
    #[track_caller]
    fn score_steps(&self, k_fragments: &Fragments<'k, E>, keys: Range<u32>) {
        self.k.verb("S += Q*K", || {
            for step in 0..padded(self.shape.head_dim) / STEP {
                let operand = |m: u32| match self.q_held.get(m as usize).and_then(|held| held.get(step as usize)) {
                    Some(held) => *held,
                    None => self.q_fragments.a(self.k, 16 * m, step * STEP),
                };
                let q: Vec<_> = (0..self.levers.row_blocks()).map(operand).collect();
                for keys in keys.clone() {
                    let columns = k_fragments.b_rows(self.k, keys * STEP, step * STEP);
                    self.scores.add(keys, &q, columns);
                }
            }
        });
        self.scores.widen(keys);
    }

    /// Applies soft cap and ALiBi to the scores of a step, and stores them if they are tapped.
    #[track_caller]
    fn apply_score_mod(&self, step: u32) {
        for (m, scores) in self.scores.iter().enumerate() {
            let (registers, biases) = (row_tile::registers(step..step + 1), self.biases.get(m));
            self.params.score_mod.apply(scores, registers.clone(), None, biases);
            self.tap(Tap::Scores, m, registers, |register| scores.var(register).get());
        }
    }

    /// Whether any of the warp's rows sees any of its keys in the K block that begins at `first_key`.
    #[track_caller]
    pub(super) fn sees(&self, first_key: Val<'k, u32>) -> Val<'k, bool> {
        let rows = (0..self.scores.len()).flat_map(|m| [0, 1].map(|half| (m, half)));
        let queries = rows.map(|(m, half)| self.block.rows.query(self.row(m, half)));
        let first_key = first_key + self.place.first_key;
        warp_sees(&self.params.band, queries, first_key, self.levers.keys_per_warp())
    }

    /// Scores that a row does not see become −∞.
    #[track_caller]
    pub(super) fn mask(&self, first_key: Val<'k, u32>) {
        let sees = |m, half| self.visible(self.row(m, half));
        mask_scores(self.k, &self.scores, sees, first_key + self.place.first_key);
    }

    /// Raises the maxima of the rows to the scores of some steps, where the lever says so, and rescales sums and
    /// output.
    #[track_caller]
    pub(super) fn raise_maxima(&self, steps: Range<u32>) {
        self.k.verb("raise_maxima", || {
            let halves = self.scores.iter().flat_map(|scores| [(scores, 0), (scores, 1)]);
            let largest: Vec<_> = halves.map(|(scores, half)| scores.max(steps.clone(), half)).collect();
            let rescale_output = |row: usize, factor| self.out[row / 2].scale_row(row % 2, factor);
            raise_maxima(&self.rows, &largest, self.levers.rescale.mma_policy(), rescale_output);
        });
    }

    /// Turns the scores of a step into probabilities, packed as operands, and adds them to the sums.
    #[track_caller]
    fn exponentials(&self, step: u32) {
        self.k.verb("exponentials", || {
            for (m, words) in self.p.iter().enumerate() {
                for word in 4 * step..4 * step + 4 {
                    // Words go row, row + 8, then the same of the next 8 keys: as accumulators do.
                    let row = &self.rows[2 * m + word as usize % 2];
                    let pair = row.exp_word::<E>(&self.scores[m], word);
                    row.sum.add_assign(pair[0] + pair[1]);
                    words[word as usize].set(E::narrow(&pair));
                    let registers = E::registers(word);
                    let (first, end) = (registers[0], registers[0] + 2);
                    self.tap(Tap::Probabilities, m, first..end, |register| {
                        pair[(register - first) as usize]
                    });
                }
            }
        });
    }

    /// `O += P·V` for the 16 keys of a step.
    #[track_caller]
    fn accumulate(&self, v_fragments: &Fragments<'k, E>, step: u32) {
        self.k.verb("O += P*V", || {
            let operand = |words: &Vec<Var<'k, E::Word>>| {
                let words = [0, 1, 2, 3].map(|word| words[4 * step as usize + word].get());
                self.k.a_operand::<E>(&words)
            };
            let operands: Vec<_> = self.p.iter().map(operand).collect();
            for column in 0..padded(self.shape.head_dim_v) / STEP {
                let columns = v_fragments.b_cols(self.k, step * STEP, column * STEP);
                multiply(self.k, &self.out, column, &operands, columns);
            }
        });
    }

    /// Stores some registers of row block `m`, if this tap is requested.
    #[track_caller]
    fn tap(&self, tap: Tap, m: usize, registers: Range<u32>, value: impl Fn(u32) -> Val<'k, f32>) {
        let Some(tapped_key) = self.tapped_key else { return };
        let of_half = |half| {
            let row = self.row(m, half);
            self.block.rows.batch_head_and_query(self.params.num_heads, row)
        };
        let first_key = || tapped_key + self.place.first_key;
        for register in registers {
            let (rows, value) = (&self.rows[2 * m..], || value(register));
            self.params.tap_register(tap, register, rows, of_half, first_key, value);
        }
    }
}
