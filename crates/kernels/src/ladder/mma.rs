//! Rung `mma`: tensor cores for both products.
//!
//! What is new to `hybrid`: scores stay where the tensor cores leave them. A lane holds two rows of eight-column
//! pieces, four lanes a row, so that maximum and sum are two shuffles away; and the accumulators of S, rounded
//! and packed in pairs, are operand A of `O += P·V` as they stand (FlashAttention-2). What is still missing:
//! copies that overlap with computing, and tiles laid out so that `ldmatrix` meets no bank conflicts.

use flashcore_ir::fragment::{AOperand, MmaElement};
use flashcore_ir::{Cache, KernelBuilder, Val, Var, Widen};

use super::common::{Block, ScoreOperands, WARP_ROWS};
use super::{Config, P};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::masked_row::MaskedRow;
use crate::attention::params::Shape;
use crate::attention::row_tile::{ACC_COLS, QUAD, RowTile, lane_column, lane_row};
use crate::attention::tap::{Place, Tap};
use crate::tiles::{Fragments, STEP, a_lane, padded};

pub(super) fn body<'k, E: MmaElement + Widen>(k: &'k Args<'k, Forward>, levers: &Config, shape: &Shape) {
    let block = Block::<E>::new(k, levers, shape);
    let params = &block.params;
    let warp = k.thread_idx() / 32u32;
    let operands = ScoreOperands::new(k, block.q.tile, block.k.tile, warp);
    let (row, column) = a_lane(k.lane());
    let v_place = block.v.tile.fragments(row, column);
    let scores = RowTile::new(k.acc("s", levers.cols / ACC_COLS));
    let out = RowTile::new(k.acc("out", padded(shape.head_dim_v) / ACC_COLS));

    // This lane's rows: halves 0 and 1 of the accumulators.
    let first_row = block.first_row + warp * WARP_ROWS + lane_row(k);
    let rows = [0, 8].map(|down| MaskedRow::new(k, params, block.batch, block.head, first_row + down));
    let column = lane_column(k);

    block.for_each_tile(|key0| {
        operands.multiply(k, scores.0, shape.head_dim);
        let tap = |tap, row: &MaskedRow<'_>, column_of: i32, value: Var<'_, f32>| {
            params.tap(tap, || {
                let (batch_head, row, max) = (block.batch_head, row.row, row.max);
                let key = key0 + column + column_of as u32;
                (Place { batch_head, row, key }, value.get(), max)
            });
        };
        for (half, row) in rows.iter().enumerate() {
            for (key, score) in scores.of_row(scores.steps(), half) {
                score.set(row.score(params, || key0 + column + key as u32, score.get()));
                tap(Tap::Scores, row, key, score);
            }
        }
        for (half, row) in rows.iter().enumerate() {
            let rescale = softmax(row, scores, half, key0 + column);
            out.scale_row(half, rescale);
            for (key, p) in scores.of_row(scores.steps(), half) {
                tap(Tap::Probabilities, row, key, p);
            }
        }
        accumulate(k, out, scores, levers.p, &v_place);
    });

    for (half, row) in rows.iter().enumerate() {
        let sum = row.sum.get().reduce_sum(QUAD);
        let total = params.total(|| block.head, row.max.offset.get(), sum, row.keys);
        let norm = total.norm();
        k.if_(row.row.lt(params.seq_len_q).divergent(), || {
            let out_row = params.out.row(block.out_head, row.row).offset(column);
            let values: Vec<_> = out.of_row(out.steps(), half).map(|(_, out)| out * norm).collect();
            for (tile, pair) in (0..shape.head_dim_v / ACC_COLS).zip(values.chunks(2)) {
                let place = out_row.plus((ACC_COLS * tile) as i32);
                place.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
            }
            k.if_((k.lane() % QUAD).eq(0).divergent(), || {
                params.store_lse(block.batch_head, row.row, &total);
            });
        });
    }
}

/// `O += P·V`: P is rounded where it stands. For f32, what rounding took away is another operand.
#[track_caller]
fn accumulate<'k, E: MmaElement>(
    k: &'k KernelBuilder,
    out: RowTile<'k>,
    p: RowTile<'k>,
    precision: P,
    v_place: &Fragments<'k, E>,
) {
    k.verb("O += P*V", || {
        for step in p.steps() {
            let mut terms = vec![p.to_a_step(step)];
            if precision == P::F32 {
                terms.push(rest(k, p, step));
            }
            for column in 0..out.tiles() / 2 {
                let [left, right] = v_place.b_cols(k, step * STEP, column * STEP);
                for &term in &terms {
                    k.mma(out.0, 2 * column, term, left);
                    k.mma(out.0, 2 * column + 1, term, right);
                }
            }
        }
    });
}

/// What rounding to `E` takes away of columns `16·step` to `16·step + 15`, rounded itself, as an operand A.
#[track_caller]
fn rest<'k, E: MmaElement>(k: &'k KernelBuilder, p: RowTile<'k>, step: u32) -> AOperand<E> {
    let words = [0, 1, 2, 3].map(|word| {
        let first = 8 * step + 2 * word;
        let pair = [first, first + 1].map(|register| p.var(register).get());
        let rounded = E::widen(E::pack(pair[0], pair[1]));
        E::pack(pair[0] - rounded[0], pair[1] - rounded[1])
    });
    k.a_operand(&words)
}

/// One step of the online softmax: this lane's scores of the row become probabilities in place. Returns the factor for
/// what was summed before.
#[track_caller]
fn softmax<'k>(row: &MaskedRow<'k>, scores: RowTile<'k>, half: usize, first_key: Val<'k, u32>) -> Val<'k, f32> {
    let mut largest = first_key.builder().constant(f32::NEG_INFINITY);
    for (key, score) in scores.of_row(scores.steps(), half) {
        score.set(row.sees(first_key + key as u32).select(score.get(), f32::NEG_INFINITY));
        largest = largest.max(score);
    }
    let rescale = row.raise(largest, QUAD);
    for (_, score) in scores.of_row(scores.steps(), half) {
        score.set(row.exp(score.get()));
    }
    rescale
}
