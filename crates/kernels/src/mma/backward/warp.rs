//! What a warp computes: scores of some of the owned rows with some of the walked ones, their gradients, and what these
//! add to dK, dV and dQ.
//!
//! Warps along the owned rows have different ones. Warps along the walked rows share the columns of the sums, so that
//! what they sum over passes through shared memory; a single one has P and dS in its registers as operands.

use flashcore_ir::fragment::{AOperand, AVars, MmaElement};
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedPtr, SharedTile, Val, Var};

use super::kernel::{Context, Pair};
use crate::attention::lengths::TensorParam;
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::mma::consumer::multiply;
use crate::tiles::{Fragments, HeadTile, STEP, StagedFragments, a_lane, b_lane, padded};

/// Rows of most accumulators: keys, or queries where [`Outputs::Dq`](super::Outputs::Dq) is computed.
#[derive(Clone, Copy)]
struct Owned;

pub(super) struct Warp<'k, 'c, E> {
    k: &'k KernelBuilder,
    context: &'c Context<'k, 'c, E>,
    /// The warp's number among those that share the columns of the sums.
    column_warp: Val<'k, u32>,
    /// The lane's first owned row and first walked row, within the tiles.
    lane_owned: Val<'k, u32>,
    lane_walked: Val<'k, u32>,
    /// Operands of scores and of dP, and of the sums over walked rows.
    owned: Pair<Fragments<'k, E>>,
    walked_rows: Pair<StagedFragments<'k, E>>,
    walked_columns: Pair<StagedFragments<'k, E>>,
    scores: Vec<RowTile<'k, Owned>>,
    dp: Vec<RowTile<'k, Owned>>,
    /// dK and dV, or dQ and nothing.
    sums: Pair<Vec<RowTile<'k, Owned>>>,
    p: Exchanged<'k, E>,
    ds: Exchanged<'k, E>,
    dq: Option<Dq<'k, E>>,
    /// The log-sum-exp and Δ of owned query rows.
    numbers: Vec<Pair<Var<'k, f32>>>,
}

/// Rounded scores by owned rows: in registers, in shared memory, or in both.
struct Exchanged<'k, E> {
    words: Vec<AVars<'k, E>>,
    /// The tile, where the lane's first pair goes, and its operands of owned rows.
    shared: Option<(HeadTile<'k, E>, SharedPtr<'k, E>, Fragments<'k, E>)>,
}

/// The warp's part of a tile's dQ.
struct Dq<'k, E> {
    ds: Fragments<'k, E>,
    keys: Fragments<'k, E>,
    sums: Vec<RowTile<'k>>,
    /// Elements before the lane's first.
    first: Val<'k, u32>,
}

/// The warp, its number among those that share the columns of the sums, and its first owned row.
#[track_caller]
fn place<'k, E>(context: &Context<'k, '_, E>) -> (Val<'k, u32>, Val<'k, u32>, Val<'k, u32>) {
    let Context { k, levers, tiling, .. } = *context;
    let warp = k.warp_idx();
    match levers.warps {
        1 => (warp, k.constant(0), warp * tiling.owned_rows),
        warps => (warp, warp % warps, warp / warps * tiling.owned_rows),
    }
}

impl<'k, 'c, E: MmaElement> Warp<'k, 'c, E> {
    pub(super) fn new(context: &'c Context<'k, 'c, E>) -> Self {
        let Context { k, levers, tiling, .. } = *context;
        let (outputs, owned, walked) = (context.outputs, context.owned, context.walked);
        let (warp, column_warp, first_owned) = place(context);
        let first_walked = column_warp * tiling.walked_rows;
        let (lane_owned, lane_walked) = (first_owned + lane_row(k), first_walked + lane_column(k));
        let ((a_row, a_col), (b_row, b_col)) = (a_lane(k.lane()), b_lane(k.lane()));
        let zero = k.constant(0u32);

        let blocks = 0..tiling.owned_rows / STEP;
        let tiles = |name: &str, columns: u32| -> Vec<_> {
            let tile = |m| RowTile::new(k.acc_unwritten(&format!("{name}{m}"), columns / ACC_COLS));
            blocks.clone().map(tile).collect()
        };
        let zeros = |name: &str, columns: u32| -> Vec<_> {
            let tile = |m| RowTile::new(k.acc(&format!("{name}{m}"), columns / ACC_COLS));
            blocks.clone().map(tile).collect()
        };
        let exchanged = |name: &str, in_registers: bool, in_memory: bool| {
            let words = |m| k.a_vars(&format!("{name}{m}"), tiling.walked_rows / STEP);
            let tile = in_memory.then(|| {
                let name = format!("{name}_tile");
                HeadTile::declare(k, &name, levers.cols, levers.rows, 1, levers.swizzled)
            });
            Exchanged {
                words: blocks.clone().filter(|_| in_registers).map(words).collect(),
                shared: tile.map(|tile| {
                    let rows = tile.staged_fragments(first_owned + a_row, a_col).at(zero);
                    (tile, tile.place(lane_owned, lane_walked), rows)
                }),
            }
        };
        let shared = tiling.shares_columns();
        let p = exchanged("p", outputs.owns_keys() && !shared, outputs.owns_keys() && shared);
        let ds = exchanged("ds", !shared, shared || outputs.adds_dq());
        let dq = ds.shared.as_ref().filter(|_| outputs.adds_dq()).map(|(ds_tile, ..)| {
            let (row_warp, column_warp) = (warp / tiling.dq.warps[1], warp % tiling.dq.warps[1]);
            let first_row = row_warp * (STEP * tiling.dq.row_blocks());
            let keys = owned[0].shared_columns((a_row, a_col), (column_warp, tiling.dq.warps[1]));
            let sums = |m| RowTile::new(k.acc_unwritten(&format!("dq{m}"), 2 * tiling.dq.steps()));
            Dq {
                ds: ds_tile.shared_columns((b_row, first_row + b_col), (zero, 1)).at(zero),
                keys: keys.at(zero),
                sums: (0..tiling.dq_blocks_at_once()).map(sums).collect(),
                first: warp * (4 * 32 * tiling.dq.accumulators()) + k.lane(),
            }
        });
        let both = [0, 1];
        let [columns, columns_v] = [tiling.columns, tiling.columns_v].map(|columns| columns / levers.warps);
        let numbers = blocks.clone().filter(|_| !outputs.owns_keys()).flat_map(|_| both);
        let number = |_| ["row_lse", "row_delta"].map(|name| k.var_unwritten(name));
        Warp {
            k,
            context,
            column_warp,
            lane_owned,
            lane_walked,
            owned: both.map(|i| owned[i].fragments(first_owned + a_row, a_col)),
            walked_rows: both.map(|i| walked[i].staged_fragments(first_walked + b_row, b_col)),
            walked_columns: both.map(|i| walked[i].shared_columns((a_row, a_col), (column_warp, levers.warps))),
            scores: tiles("scores", tiling.walked_rows),
            dp: tiles("dp", tiling.walked_rows),
            sums: if outputs.owns_keys() {
                [zeros("dk", columns), zeros("dv", columns_v)]
            } else {
                [zeros("dq", columns), Vec::new()]
            },
            p,
            ds,
            dq,
            numbers: numbers.map(number).collect(),
        }
    }

    /// The numbers of the lane's query rows, where those are owned. They are defined up to the end of the tile.
    pub(super) fn load_numbers(&self, head_row: Val<'k, u32>) {
        for (i, numbers) in self.numbers.iter().enumerate() {
            let row = head_row + self.context.first + self.lane_owned + 8 * i as u32;
            for (number, value) in numbers.iter().zip(self.context.params.statistics.load(row)) {
                number.set(value);
            }
        }
    }

    // ---- Scores and their gradients -------------------------------------------------------------------

    /// Products of the owned rows with the walked ones.
    #[track_caller]
    pub(super) fn scores(&self, stage: Val<'k, u32>) {
        self.products(&self.scores, 0, stage);
    }

    /// The same of the other two tensors.
    #[track_caller]
    pub(super) fn dp(&self, stage: Val<'k, u32>) {
        self.products(&self.dp, 1, stage);
    }

    #[track_caller]
    fn products(&self, to: &[RowTile<'k, Owned>], which: usize, stage: Val<'k, u32>) {
        let (k, context) = (self.k, self.context);
        k.verb(context.outputs.products()[which], || {
            let (owned, walked) = (&self.owned[which], self.walked_rows[which].at(stage));
            to.iter().for_each(|tile| tile.zero());
            for column in (0..padded(context.head_dims()[which])).step_by(STEP as usize) {
                let owned: Vec<_> = (0..to.len() as u32).map(|m| owned.a(k, STEP * m, column)).collect();
                for rows in 0..context.tiling.walked_rows / STEP {
                    let columns = walked.b_rows(k, STEP * rows, column);
                    multiply(k, to, rows, &owned, columns);
                }
            }
        });
    }

    /// P and dS, rounded. `masked` is the first walked row where some rows may not see each other.
    #[track_caller]
    pub(super) fn differentiate(&self, numbers_at: Val<'k, u32>, masked: Option<Val<'k, u32>>) {
        let context = self.context;
        self.k.verb("differentiate", || {
            let seen: Option<Vec<_>> = masked.map(|first_walked| {
                let first_walked = (first_walked + self.lane_walked).reinterpret::<i32>();
                let of = |i: u32| {
                    let (first, end) = context.seen_by_any(context.first + self.lane_owned + 8 * i);
                    // Relative to this lane's first one, so that the columns are constants.
                    (first - first_walked, end - first_walked)
                };
                (0..2 * self.scores.len() as u32).map(of).collect()
            });
            let at_stage = |tile: SharedTile<'k, f32>| tile.at_stage(numbers_at, 0, self.lane_walked);
            let numbers = context.numbers.map(at_stage);
            for tile in 0..context.tiling.walked_rows / ACC_COLS {
                let column = ACC_COLS * tile;
                let load = || numbers.map(|at| at.plus(column as i32).load_words(2, Cache::Default));
                let of_walked = context.outputs.owns_keys().then(load);
                for m in 0..self.scores.len() {
                    for half in 0..2 {
                        let (scores, dp) = (self.scores[m].pair(tile, half), self.dp[m].pair(tile, half));
                        let mut pairs = [Vec::new(), Vec::new()];
                        for e in 0..2 {
                            let numbers = match &of_walked {
                                Some(numbers) => [numbers[0][e], numbers[1][e]],
                                None => self.numbers[2 * m + half].map(|number| number.get()),
                            };
                            let (mut p, mut ds) = context.params.differentiate(scores[e].get(), dp[e].get(), numbers);
                            if let Some(seen) = &seen {
                                let ((first, end), column) = (seen[2 * m + half], column as i32 + e as i32);
                                let sees = first.le(column) & end.gt(column);
                                (p, ds) = (sees.select(p, 0.0), sees.select(ds, 0.0));
                            }
                            pairs[0].push(p);
                            pairs[1].push(ds);
                        }
                        for (pair, to) in pairs.iter().zip([&self.p, &self.ds]) {
                            to.keep(m, tile, half, E::pack(pair[0], pair[1]));
                        }
                    }
                }
            }
        });
    }

    // ---- Gradients ------------------------------------------------------------------------------------

    /// `dV += Pᵀ·dO`.
    #[track_caller]
    pub(super) fn add_second(&self, stage: Val<'k, u32>) {
        self.k.verb("dV += P*dO", || self.add(1, &self.p, stage));
    }

    /// `dK += dSᵀ·Q`, or `dQ += dS·K` where query rows are owned.
    #[track_caller]
    pub(super) fn add_first(&self, stage: Val<'k, u32>) {
        let verb = self.context.outputs.products()[2];
        self.k.verb(verb, || self.add(0, &self.ds, stage));
    }

    #[track_caller]
    fn add(&self, which: usize, factors: &Exchanged<'k, E>, stage: Val<'k, u32>) {
        let (levers, walked) = (self.context.levers, self.walked_columns[which].at(stage));
        // Where registers hold them, a warp has all rows of the walked tile.
        let factor = |step: u32, m: u32| match &factors.shared {
            Some((.., rows)) if factors.words.is_empty() => rows.a(self.k, STEP * m, STEP * step),
            _ => factors.words[m as usize].operands()[step as usize],
        };
        self.accumulate(&self.sums[which], levers.rows / STEP, factor, &walked, levers.warps);
    }

    /// Adds the product of factors, by step and block of rows, with rows of a tile, of whose columns the warp has one
    /// step in `shared_by`.
    #[track_caller]
    fn accumulate<Rows: Copy>(
        &self,
        to: &[RowTile<'k, Rows>],
        steps: u32,
        factor: impl Fn(u32, u32) -> AOperand<E>,
        from: &Fragments<'k, E>,
        shared_by: u32,
    ) {
        for step in 0..steps {
            let factors: Vec<_> = (0..to.len()).map(|m| factor(step, m as u32)).collect();
            for column in 0..to[0].tiles() / 2 {
                let columns = from.b_cols(self.k, STEP * step, STEP * shared_by * column);
                multiply(self.k, to, column, &factors, columns);
            }
        }
    }

    /// Adds `dS·K` to the sums of the tile's query rows, as many at a time as registers hold.
    #[track_caller]
    pub(super) fn add_dq(&self, sums: GlobalPtr<'k, f32>) {
        let Some(dq) = &self.dq else { return };
        let (k, tiling) = (self.k, self.context.tiling);
        k.verb("dQ += dS*K", || {
            for first in (0..tiling.dq.row_blocks()).step_by(dq.sums.len()) {
                if first > 0 {
                    k.scheduling_fence();
                }
                dq.sums.iter().for_each(|tile| tile.zero());
                let factor = |step, m| dq.ds.a_transposed(k, STEP * step, STEP * (first + m));
                let steps = self.context.levers.cols / STEP;
                self.accumulate(&dq.sums, steps, factor, &dq.keys, tiling.dq.warps[1]);
                let mut at = sums.offset(dq.first);
                if first > 0 {
                    at = at.plus((first * tiling.dq.steps() * STEP * STEP) as i32);
                }
                for tile in &dq.sums {
                    for register in 0..4 * tile.tiles() {
                        at.reduce_add(tile.var(register));
                        at = at.plus(32);
                    }
                }
            }
        });
    }

    /// Stores the sums, rounded, through the bytes of the owned tiles. No warp may still read these.
    pub(super) fn store(&self, written: &[TensorParam<'k, E>]) {
        let (k, context) = (self.k, self.context);
        let (owned, scale) = (context.owned, context.params.softmax_scale);
        let (column_warp, lane_owned) = match context.tiling.columns {
            ..=128 => (self.column_warp, self.lane_owned),
            // Anew, so that they take no registers in the loop, which has none left.
            _ => {
                let (_, column_warp, first_owned) = place(context);
                (column_warp, first_owned + lane_row(k))
            }
        };
        for (i, tile) in owned.iter().enumerate().take(written.len()) {
            let scaled = |value: Var<'k, f32>| if i == 0 { value * scale } else { value.get() };
            let column = column_warp.fma(STEP, lane_column(k));
            let place = tile.place(lane_owned, column);
            for (m, sum) in self.sums[i].iter().enumerate() {
                for acc in 0..sum.tiles() {
                    let at = tile.across(place, STEP * context.levers.warps * (acc / 2) + ACC_COLS * (acc % 2));
                    for half in 0..2 {
                        let pair = sum.pair(acc, half).map(scaled);
                        let at = tile.tile.down(at, 16 * m as u32 + 8 * half as u32);
                        at.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
                    }
                }
            }
        }
        k.barrier();
        let (first, owns_keys) = (context.params.first, context.outputs.owns_keys());
        let first = if owns_keys { first.k } else { first.q };
        for (i, (tile, tensor)) in owned.iter().zip(written).enumerate() {
            let tensor = tensor.starting_at(first);
            let head = tensor.head(context.batch, context.head);
            let head_dim = context.head_dims()[i];
            tile.chunks(k).for_each(|row, column, place| {
                let row = context.first + row;
                let exists = row.lt(context.owned_len) & column.lt(head_dim);
                k.if_(exists.divergent(), || {
                    let words = place.load_words(4, Cache::Default);
                    tensor.row(head, row).offset(column).store_words(&words, Cache::Default);
                });
            });
        }
    }
}

impl<'k, E: MmaElement> Exchanged<'k, E> {
    /// Keeps the pair that a lane has in one half of an accumulator.
    #[track_caller]
    fn keep(&self, m: usize, tile: u32, half: usize, word: Val<'k, E::Word>) {
        if let Some(words) = self.words.get(m) {
            words.word(2 * tile + half as u32).set(word);
        }
        if let Some((to, place, _)) = &self.shared {
            let at = to.across(*place, ACC_COLS * tile);
            let at = to.tile.down(at, 16 * m as u32 + 8 * half as u32);
            at.store_words(&[word], Cache::Default);
        }
    }
}
