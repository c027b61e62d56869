//! What a warp does with a tile of keys: scores, their softmax, and the output they weigh.
//!
//! Scores and probabilities never leave registers: the accumulators of `S = Q·Kᵀ`, rounded and packed, are
//! the operand of `O += P·V`.

use std::ops::Range;

use flashcore_ir::fragment::{AOperand, Acc, MmaElement};
use flashcore_ir::{KernelBuilder, Val, Var};

use super::place::{Block, WarpPlace};
use super::stage::Stage;
use super::{Config, Rescale};
use crate::lanes::{ACC_COLS, QUAD, lane_columns, largest_of};
use crate::params::{Params, Shape};
use crate::softmax::Reference;
use crate::stage::StopAfter;
use crate::tiles::{Fragments, STEP, padded};

/// With lazy rescaling a row's reference stays until a score is this many powers of two above it.
/// Probabilities then reach 2⁸, which fp16 and the f32 sums hold with room to spare.
const LAZY_POWERS: f32 = 8.0;

/// With bold rescaling a row's reference is put this many powers of two above its largest score, so that
/// later scores may exceed that by as many and one more. Probabilities then lie about 2⁻⁶, where
/// fp16 still holds what is 2⁻⁸ of the largest to its full precision.
const BOLD_POWERS: f32 = 6.0;

/// Parts of a tile with bold rescaling. More cost more votes than they hide.
const BOLD_PARTS: u32 = 2;

/// Set in a pair of 16-bit probabilities, of either format, if one of them is 2 or more, infinite, or NaN.
const TWO_OR_MORE: u32 = 0x4000_4000;

/// What a warp carries from tile to tile.
pub(super) struct State<'k> {
    /// One for each 16 rows.
    pub(super) blocks: Vec<RowBlock<'k>>,
    /// The lane's first row, of the block's head or heads.
    first_row: Val<'k, u32>,
}

/// 16 rows: a lane holds parts of two, `lane / 4` and eight further down.
pub(super) struct RowBlock<'k> {
    pub(super) out: Acc<'k>,
    pub(super) rows: [Row<'k>; 2],
}

/// A row's running state. Its four lanes agree on the reference; `sum` is each lane's own part.
pub(super) struct Row<'k> {
    pub(super) reference: Reference<'k>,
    pub(super) sum: Var<'k, f32>,
}

impl<'k> State<'k> {
    #[track_caller]
    pub(super) fn new<E: MmaElement>(
        k: &'k KernelBuilder,
        params: &Params<'k, E>,
        block: &Block<'k>,
        warp: &WarpPlace<'k>,
        levers: &Config,
        shape: &Shape,
    ) -> Self {
        let mut blocks = Vec::new();
        for m in 0..levers.row_blocks() {
            blocks.push(RowBlock {
                out: k.acc(&format!("out{m}"), padded(shape.head_dim_v) / ACC_COLS),
                rows: [(); 2].map(|()| Row {
                    reference: Reference::new(k, params),
                    sum: k.var(0.0),
                }),
            });
        }
        State {
            blocks,
            first_row: block.first_row + warp.first_row + k.lane() / QUAD,
        }
    }

    /// The row that half `half` of block `m` of this lane is, of the block's head or heads.
    #[track_caller]
    pub(super) fn row(&self, m: usize, half: usize) -> Val<'k, u32> {
        self.first_row + (16 * m as u32 + 8 * half as u32)
    }

    fn rows(&self) -> impl Iterator<Item = &Row<'k>> {
        self.blocks.iter().flat_map(|block| &block.rows)
    }
}

/// Scores of a warp, an accumulator for each 16 rows. A lane's values of row half `h` of 8 columns `j` are
/// registers `4j + 2h` and the next.
pub(super) struct Scores<'k> {
    pub(super) blocks: Vec<Acc<'k>>,
}

/// Probabilities of a warp, rounded and packed as operands of `O += P·V`: `[row block][16 keys]`.
pub(super) struct Probabilities<'k, E: MmaElement> {
    words: Vec<Vec<[Var<'k, E::Word>; 4]>>,
}

/// Where Q's operands come from.
pub(super) enum Query<'k, E> {
    /// Loaded once: `[row block][step]`.
    Registers(Vec<Vec<AOperand<E>>>),
    /// Loaded again for each tile.
    Shared(Fragments<'k, E>),
}

/// A warp at work.
pub(super) struct Warp<'k, 'p, E> {
    pub(super) k: &'k KernelBuilder,
    pub(super) params: &'p Params<'k, E>,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    pub(super) place: &'p WarpPlace<'k>,
    pub(super) state: &'p State<'k>,
    pub(super) query: Query<'k, E>,
    pub(super) scores: Scores<'k>,
    /// In builds that stop after a stage.
    pub(super) stage: Option<Stage<'k, 'p>>,
}

impl<'k> Scores<'k> {
    pub(super) fn new(k: &'k KernelBuilder, levers: &Config) -> Self {
        let tiles = levers.keys_per_warp() / ACC_COLS;
        Scores {
            blocks: (0..levers.row_blocks())
                .map(|m| k.acc_unwritten(&format!("s{m}"), tiles))
                .collect(),
        }
    }
}

impl<'k, E: MmaElement> Query<'k, E> {
    /// Loads Q's operands, if they stay in registers.
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, levers: &Config, shape: &Shape, place: Fragments<'k, E>) -> Self {
        if !levers.q_in_registers {
            return Query::Shared(place);
        }
        let mut operands = Vec::new();
        for m in 0..levers.row_blocks() {
            let mut steps = Vec::new();
            for step in 0..padded(shape.head_dim) / STEP {
                steps.push(place.a(k, 16 * m, step * STEP));
            }
            operands.push(steps);
        }
        Query::Registers(operands)
    }

    #[track_caller]
    fn operands(&self, k: &'k KernelBuilder, row_blocks: u32, step: u32) -> Vec<AOperand<E>> {
        match self {
            Query::Registers(operands) => operands.iter().map(|block| block[step as usize]).collect(),
            Query::Shared(place) => {
                let mut operands = Vec::new();
                for m in 0..row_blocks {
                    operands.push(place.a(k, 16 * m, step * STEP));
                }
                operands
            }
        }
    }
}

impl<'k, E: MmaElement> Warp<'k, '_, E> {
    /// Steps of 16 keys in the warp's part of a tile.
    pub(super) fn key_steps(&self) -> u32 {
        self.levers.keys_per_warp() / STEP
    }

    /// All of them.
    pub(super) fn steps(&self) -> Range<u32> {
        0..self.key_steps()
    }

    /// Room for the probabilities of a tile.
    pub(super) fn probabilities(&self, name: &str) -> Probabilities<'k, E> {
        let word = |_| self.k.var_unwritten(name);
        let step = |_| [0; 4].map(word);
        let block = |_| (0..self.key_steps()).map(step).collect();
        Probabilities {
            words: (0..self.levers.row_blocks()).map(block).collect(),
        }
    }

    // ---- A tile's probabilities -----------------------------------------------------------------------

    /// Scores of some steps become probabilities, 16 keys at a time; `then` is called as soon as those of a step are
    /// known.
    #[track_caller]
    pub(super) fn softmax_steps(&self, p: &Probabilities<'k, E>, steps: Range<u32>, then: impl Fn(u32)) {
        for step in steps {
            self.exponentials(p, step);
            then(step);
        }
    }

    /// A tile that every row sees whole, without a look at its scores first: exponentials are taken relative to
    /// the references there are, and only if one comes out large are they computed again with references raised.
    ///
    /// It is done in parts, so that the exponentials of each are worked out among products that do not wait for
    /// them: of scores, or of the part before with V. `refill` is called once the first products are under way.
    #[track_caller]
    pub(super) fn bold_tile(
        &self,
        k_place: &Fragments<'k, E>,
        v_place: &Fragments<'k, E>,
        p: &Probabilities<'k, E>,
        refill: impl Fn(),
    ) {
        self.clear_scores(self.steps());
        match &self.query {
            // Q's operands are at hand, so scores are finished 16 keys at a time.
            Query::Registers(_) => {
                for step in self.steps() {
                    self.score_steps(k_place, step..step + 1);
                    if step == 0 {
                        refill();
                    }
                }
            }
            // Loading Q's operands once a tile means finishing all scores at once.
            Query::Shared(_) => {
                self.score_steps(k_place, self.steps());
                refill();
            }
        }
        let part = (self.key_steps() / BOLD_PARTS).max(1);
        let mut before = None::<Range<u32>>;
        for start in self.steps().step_by(part as usize) {
            let steps = start..(start + part).min(self.key_steps());
            let sums: Vec<_> = self.state.rows().map(|row| row.sum.get()).collect();
            for step in steps.clone() {
                if before.is_some() {
                    self.accumulate(p, v_place, step - part);
                }
                self.cap(step);
                self.exponentials(p, step);
            }
            self.redo_if_large(k_place, p, steps.clone(), &sums);
            before = Some(steps);
        }
        for step in before.into_iter().flatten() {
            self.accumulate(p, v_place, step);
        }
    }

    /// If a probability of some steps came out large, raises the references and computes these steps again, from
    /// the sums as they were before.
    #[track_caller]
    fn redo_if_large(
        &self,
        k_place: &Fragments<'k, E>,
        p: &Probabilities<'k, E>,
        steps: Range<u32>,
        sums: &[Val<'k, f32>],
    ) {
        let k = self.k;
        let mut any = k.constant(0u32);
        for words in &p.words {
            for word in words[steps.start as usize..steps.end as usize].iter().flatten() {
                any = any | word.get().reinterpret::<u32>();
            }
        }
        k.if_((any & TWO_OR_MORE).ne(0).vote_any().uniform(), || {
            for (row, sum) in self.state.rows().zip(sums) {
                row.sum.set(*sum);
            }
            self.scores(k_place, steps.clone());
            self.raise_references(steps.clone());
            self.softmax_steps(p, steps, |_| ());
        });
    }

    // ---- S = Q·Kᵀ -------------------------------------------------------------------------------------

    /// Scores of some steps, capped if need be.
    #[track_caller]
    pub(super) fn scores(&self, k_place: &Fragments<'k, E>, steps: Range<u32>) {
        self.clear_scores(steps.clone());
        match &self.query {
            Query::Registers(_) => steps.clone().for_each(|step| self.score_steps(k_place, step..step + 1)),
            Query::Shared(_) => self.score_steps(k_place, steps.clone()),
        }
        for step in steps {
            self.cap(step);
        }
    }

    #[track_caller]
    fn clear_scores(&self, steps: Range<u32>) {
        for block in &self.scores.blocks {
            for register in 8 * steps.start..8 * steps.end {
                block.var(register).set(0.0);
            }
        }
    }

    /// Scores of some steps of 16 keys.
    #[track_caller]
    fn score_steps(&self, k_place: &Fragments<'k, E>, keys: Range<u32>) {
        self.k.verb("S += Q*K", || {
            for step in 0..padded(self.shape.head_dim) / STEP {
                let q = self.query.operands(self.k, self.levers.row_blocks(), step);
                for keys in keys.clone() {
                    let [left, right] = k_place.b_rows(self.k, keys * STEP, step * STEP);
                    for (scores, &q) in self.scores.blocks.iter().zip(&q) {
                        self.k.mma(*scores, 2 * keys, q, left);
                        self.k.mma(*scores, 2 * keys + 1, q, right);
                    }
                }
            }
        });
    }

    /// With soft cap: scores of 16 keys, not yet scaled, are capped.
    #[track_caller]
    fn cap(&self, step: u32) {
        if !self.shape.softcap {
            return;
        }
        for block in &self.scores.blocks {
            for register in 8 * step..8 * step + 8 {
                let score = block.var(register);
                score.set(self.params.score(score.get()));
            }
        }
    }

    // ---- Softmax --------------------------------------------------------------------------------------

    /// Whether any of the warp's rows sees any of its keys in the tile that begins at `key0`.
    #[track_caller]
    pub(super) fn sees(&self, key0: Val<'k, u32>) -> Val<'k, bool> {
        let key0 = (key0 + self.place.first_key).reinterpret::<i32>();
        let mut sees = None::<Val<'k, bool>>;
        for m in 0..self.state.blocks.len() {
            for half in 0..2 {
                let (first, end) = self.params.visible_keys(self.query_row(m, half));
                let mine = end.gt(key0) & first.lt(key0 + self.levers.keys_per_warp() as i32);
                sees = Some(sees.map_or(mine, |sees| sees | mine));
            }
        }
        sees.unwrap_or(key0.lt(0)).vote_any()
    }

    /// The query row that half `half` of row block `m` of this lane is.
    #[track_caller]
    fn query_row(&self, m: usize, half: usize) -> Val<'k, u32> {
        let row = self.state.row(m, half);
        match self.levers.pack_heads {
            true => row / self.params.group_size,
            false => row,
        }
    }

    /// Scores that a row does not see become −∞.
    #[track_caller]
    pub(super) fn mask(&self, key0: Val<'k, u32>) {
        self.k.verb("mask", || {
            let first = (key0 + self.place.first_key + self.k.lane() % QUAD * 2u32).reinterpret::<i32>();
            for (m, scores) in self.scores.blocks.iter().enumerate() {
                for half in 0..2 {
                    let (low, end) = self.params.visible_keys(self.query_row(m, half));
                    // Relative to this lane's first key, so that the columns are constants.
                    let (low, end) = (low - first, end - first);
                    for (column, register) in lane_columns(self.steps(), half) {
                        let score = scores.var(register);
                        let sees = low.le(column) & end.gt(column);
                        score.set(sees.select(score, f32::NEG_INFINITY));
                    }
                }
            }
        });
    }

    /// Raises the references of the rows to the scores of some steps, where they ask for it, and brings what was summed
    /// before to the new ones.
    ///
    /// Unless eager, that is only where a score is far above its row's reference: any reference gives the same
    /// quotients, and most tiles then need neither exchange between lanes nor rescaling.
    #[track_caller]
    pub(super) fn raise_references(&self, steps: Range<u32>) {
        if self.shape.stops_after(StopAfter::Scores) {
            return;
        }
        let k = self.k;
        k.verb("raise_references", || {
            let mut largest = Vec::new();
            for (scores, block) in self.scores.blocks.iter().zip(&self.state.blocks) {
                for (half, row) in block.rows.iter().enumerate() {
                    largest.push((block.out, half, row, largest_of(scores, steps.clone(), half)));
                }
            }
            // How far above its reference a score may be, and how far above itself it puts it then.
            let (slack, margin) = match self.levers.rescale {
                Rescale::Eager => (0.0, 0.0),
                Rescale::Lazy => (LAZY_POWERS, 0.0),
                Rescale::Bold => (0.0, BOLD_POWERS),
            };
            let raise = || {
                for (out, half, row, largest) in &largest {
                    let factor = row.reference.raise(largest.reduce_max(QUAD), margin);
                    row.sum.mul_assign(factor);
                    for (_, register) in lane_columns(0..out.tiles() / 2, *half) {
                        out.var(register).mul_assign(factor);
                    }
                }
            };
            if self.levers.rescale == Rescale::Eager {
                raise();
                return;
            }
            let mut above = k.constant(0u32).ne(0);
            for (_, _, row, largest) in &largest {
                above = above | row.reference.exponent(*largest).gt(slack);
            }
            k.if_(above.vote_any().uniform(), raise);
        });
    }

    /// Scores of 16 keys become probabilities.
    #[track_caller]
    fn exponentials(&self, p: &Probabilities<'k, E>, step: u32) {
        self.k.verb("exponentials", || {
            for (m, words) in p.words.iter().enumerate() {
                let (scores, block) = (&self.scores.blocks[m], &self.state.blocks[m]);
                for (i, word) in words[step as usize].iter().enumerate() {
                    // Words go row, row + 8, then the same of the next 8 keys: as accumulators do.
                    let row = &block.rows[i % 2];
                    let register = 8 * step + 2 * i as u32;
                    if self.shape.stops_after(StopAfter::Scores) {
                        self.store_scores(m, step, i);
                        word.set(self.k.constant(0u32).reinterpret::<E::Word>());
                        continue;
                    }
                    let pair = [register, register + 1].map(|register| row.reference.exp(scores.var(register).get()));
                    row.sum.add_assign(pair[0] + pair[1]);
                    word.set(E::pack(pair[0], pair[1]));
                    self.store_probabilities(m, step, i, pair);
                }
            }
        });
    }

    // ---- O += P·V -------------------------------------------------------------------------------------

    /// Adds what 16 keys weigh to the output.
    #[track_caller]
    pub(super) fn accumulate(&self, p: &Probabilities<'k, E>, v_place: &Fragments<'k, E>, step: u32) {
        if self.shape.stop_after.is_some() {
            return;
        }
        self.k.verb("O += P*V", || {
            let mut operands = Vec::new();
            for words in &p.words {
                let words = words[step as usize].map(|word| word.get());
                operands.push(self.k.a_operand::<E>(&words));
            }
            for column in 0..padded(self.shape.head_dim_v) / STEP {
                let [left, right] = v_place.b_cols(self.k, step * STEP, column * STEP);
                for (block, &p) in self.state.blocks.iter().zip(&operands) {
                    self.k.mma(block.out, 2 * column, p, left);
                    self.k.mma(block.out, 2 * column + 1, p, right);
                }
            }
        });
    }
}
