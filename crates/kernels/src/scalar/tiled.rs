//! K/V tiles in shared memory, register-blocked products, warp reductions.
//!
//! A block computes `rows` query rows of one head. Its threads form a grid of `2·warps` rows by 16 columns, so that a
//! row of scores lives in one half-warp: its maximum and sum are four shuffles away, and P passes through shared memory
//! without a block barrier. Thread (r, c) owns rows r, r + 2·warps, …; keys c, c + 16, … of each tile; and quads of
//! output columns c, c + 16, ….
//!
//! Two barriers a tile of keys: one before the tiles are overwritten, one after.

use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, SharedTile, TileShape, Val, Var, Widen};
use flashcore_problem::Problem;

use super::Config;
use super::common::{load_key, load4};
use crate::Refusal;
use crate::attention::lengths::TensorParam;
use crate::attention::params::{Params, Shape};
use crate::attention::score_mod::RowBias;
use crate::attention::softmax::RowMax;
use crate::attention::tap::{Place, Tap};

/// The levers of a config with tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levers {
    rows: u32,
    cols: u32,
    warps: u32,
}

/// Threads that share a row.
pub(super) const THREAD_COLS: u32 = 16;

/// Registers for addresses, counters and bounds, beside the values counted one by one.
const SCRATCH_REGISTERS: u32 = 40;

/// Elements that one thread copies at a time; `head_dim` is a multiple of it.
const CHUNK: u32 = 8;

/// Blocks of 64 rows from which on large tiles fill a GPU; below, more and smaller blocks do better.
const LARGE_TILE_BLOCKS: usize = 256;

/// Default (rows, cols, warps), best first. Measured on an H200
/// (`lab/check/data/scalar-times.txt`).
pub(super) fn preferred(problem: &Problem) -> &'static [(u32, u32, u32)] {
    let blocks = problem.seq_len_q().div_ceil(64) * problem.num_heads() * problem.batch();
    match problem.head_dim().max(problem.head_dim_v()) {
        ..=64 if blocks >= LARGE_TILE_BLOCKS => &[(64, 64, 4), (32, 32, 8)],
        ..=64 => &[(32, 32, 8), (32, 32, 4)],
        65..=128 => &[(32, 32, 4)],
        _ => &[(64, 64, 8), (32, 16, 4)],
    }
}

impl Levers {
    pub(super) fn new((rows, cols): (u32, u32), config: &Config) -> Levers {
        let warps = config.warps;
        Levers { rows, cols, warps }
    }

    fn thread_rows(&self) -> u32 {
        2 * self.warps
    }

    fn rows_per_thread(&self) -> u32 {
        self.rows / self.thread_rows()
    }

    pub(super) fn check(&self, shape: &Shape) -> Result<(), Refusal> {
        // What must be in registers at once in the inner loops.
        let (rows, cols) = (self.rows_per_thread(), self.cols / THREAD_COLS);
        let output = rows * 4 * quads_per_thread(shape);
        let scores = rows * cols;
        let operands = 4 * (rows + cols);
        let needed = output + scores + operands + 4 * rows + SCRATCH_REGISTERS;
        let allowed = 255.min(65_536 / (32 * self.warps));
        let remedy = "fewer rows a tile or more warps leave fewer rows a thread";
        Refusal::check_registers(needed, allowed, remedy, || {
            let state = 4 * rows;
            format!("output {output}, scores {scores}, operands {operands}, row state {state}")
        })
    }
}

/// Quads (four neighbouring columns) of the output that a thread owns.
fn quads_per_thread(shape: &Shape) -> u32 {
    (shape.head_dim_v / 4).div_ceil(THREAD_COLS)
}

pub(super) fn body<'k, E: Widen>(k: &'k KernelBuilder, levers: &Levers, shape: &Shape) {
    // Unasked, ptxas aims at an occupancy of its own and spills a few bytes to reach it.
    k.min_blocks_per_sm(1);
    let params = Params::<E>::declare(k, shape);

    // Rows padded by four elements start four banks apart, so reading a column of quads is conflict-free.
    let q_tile = k.shared_tile::<f32>("q_tile", TileShape::new(levers.rows, shape.head_dim).padded(4));
    let k_tile = k.shared_tile::<f32>("k_tile", TileShape::new(levers.cols, shape.head_dim).padded(4));
    let v_tile = k.shared_tile::<f32>("v_tile", TileShape::new(levers.cols, shape.head_dim_v).padded(4));
    // The two rows that a warp writes at once lie 16 banks apart.
    let p_pad = if levers.cols.is_multiple_of(32) { 16 } else { 0 };
    let p_tile = k.shared_tile::<f32>("p_tile", TileShape::new(levers.rows, levers.cols).padded(p_pad));

    let tiles = (params.seq_len_q + (levers.rows - 1)) / levers.rows;
    let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let kv_head = head / params.group_size;
    let params = params.of_sequence(batch);
    let first_row = tile * levers.rows;
    let (thread_row, thread_col) = (k.thread_idx() / THREAD_COLS, k.thread_idx() % THREAD_COLS);

    let compute = || {
        let q_head = params.q.head(batch, head);
        load_tile(k, shape, q_tile, &params.q, q_head, first_row, params.seq_len_q);

        // Row i of this thread is first_row + thread_row + i · thread_rows.
        let rows: Vec<_> = (0..levers.rows_per_thread())
            .map(|i| {
                let row = first_row + thread_row + i * levers.thread_rows();
                let keys = params.visible_keys(row);
                let max = RowMax::new(k, params.score_mod.exponent_scale);
                Row {
                    row,
                    keys,
                    bias: params.score_mod.bias(batch, head, row),
                    max,
                    sum: k.var(0.0),
                }
            })
            .collect();
        let acc = Output::zero(k, levers, shape);

        // The keys that any row of the block sees, from whole tiles: bounds grow with the row.
        let last_row = (first_row + (levers.rows - 1)).min(params.seq_len_q - 1);
        let first_key = params.visible_keys(first_row).0 / levers.cols as i32 * levers.cols as i32;
        let end_key = params.visible_keys(last_row).1;
        let (k_head, v_head) = (params.k.head(batch, kv_head), params.v.head(batch, kv_head));

        // Four neighbouring columns of each of this thread's rows.
        let my_rows = |tile: SharedTile<'k, f32>, column| -> Vec<_> {
            let first = tile.at(thread_row, column);
            (0..levers.rows_per_thread())
                .map(|i| load4(tile.down(first, i * levers.thread_rows())))
                .collect()
        };
        let cols_per_thread = (levers.cols / THREAD_COLS) as usize;

        k.for_uniform(first_key, end_key, levers.cols as i32, |key0| {
            let first = key0.reinterpret();
            k.barrier();
            load_tile(k, shape, k_tile, &params.k, k_head, first, params.seq_len_kv);
            load_tile(k, shape, v_tile, &params.v, v_head, first, params.seq_len_kv);
            k.barrier();

            let scores: Vec<_> = (0..rows.len() * cols_per_thread).map(|_| k.var(0.0)).collect();
            k.verb("scores = Q·Kᵀ", || {
                k.for_uniform(0u32, shape.head_dim, 4, |d| {
                    let q = my_rows(q_tile, d);
                    let first = k_tile.at(thread_col, d);
                    for j in 0..cols_per_thread {
                        let key = load4(k_tile.down(first, j as u32 * THREAD_COLS));
                        for (i, q) in q.iter().enumerate() {
                            let score = scores[i * cols_per_thread + j];
                            q.iter().zip(key).for_each(|(&q, key)| score.fma_assign(q, key));
                        }
                    }
                });
            });

            let mine = |j: usize| key0 + thread_col.reinterpret::<i32>() + j as i32 * THREAD_COLS as i32;
            let keys: Vec<_> = (0..cols_per_thread).map(mine).collect();
            let p_mine = p_tile.at(thread_row, thread_col);
            for (i, row) in rows.iter().enumerate() {
                let tap = |tap, j: usize, value| {
                    let key = keys[j].reinterpret();
                    let (row, max) = (row.row, row.max);
                    params.tap(tap, || (Place { batch_head, row, key }, value, max));
                };
                let mut masked = Vec::new();
                for (j, score) in scores[i * cols_per_thread..][..cols_per_thread].iter().enumerate() {
                    let sees = keys[j].ge(row.keys.0) & keys[j].lt(row.keys.1);
                    let score = params.score_mod.score(score.get());
                    let key = keys[j].reinterpret();
                    let score = row.bias.map_or(score, |bias| bias.subtract(score, key));
                    tap(Tap::Scores, j, score);
                    masked.push(sees.select(score, f32::NEG_INFINITY));
                }
                let (p, rescale) = row.softmax_step(&masked);
                p.iter().enumerate().for_each(|(j, &p)| tap(Tap::Probabilities, j, p));
                acc.row(i).iter().for_each(|acc| acc.mul_assign(rescale));
                let p_row = p_tile.down(p_mine, i as u32 * levers.thread_rows());
                for (j, &p) in p.iter().enumerate() {
                    p_row.plus((j as u32 * THREAD_COLS) as i32).store(p);
                }
            }
            // The sixteen threads that wrote a row of P are the ones that read it.
            k.sync_warp();

            k.verb("O += P·V", || {
                k.for_uniform(0u32, levers.cols, 4, |key| {
                    let p = my_rows(p_tile, key);
                    for j in 0..acc.quads {
                        let first = v_tile.at(key, quad_column(shape, thread_col, j as u32));
                        for n in 0..4 {
                            let v = load4(v_tile.down(first, n as u32));
                            for (i, p) in p.iter().enumerate() {
                                acc.quad(i, j)
                                    .iter()
                                    .zip(v)
                                    .for_each(|(acc, v)| acc.fma_assign(p[n], v));
                            }
                        }
                    }
                });
            });
        });

        let out_head = params.out.head(batch, head);
        for (i, row) in rows.iter().enumerate() {
            let sum = row.sum.get().reduce_sum(THREAD_COLS);
            let total = params.total(|| head, row.max.offset.get(), sum);
            let norm = total.norm();
            k.if_(row.row.lt(params.seq_len_q).divergent(), || {
                let out_row = params.out.row(out_head, row.row);
                for j in 0..acc.quads {
                    let column = (thread_col + j as u32 * THREAD_COLS) * 4u32;
                    let values: Vec<_> = acc.quad(i, j).iter().map(|&acc| acc * norm).collect();
                    k.if_(column.lt(shape.head_dim_v).divergent(), || {
                        // A quad of 16-bit elements is 8 bytes.
                        out_row
                            .offset(column)
                            .store_f32s(&values, shape.vector_bytes, Cache::Default);
                    });
                }
                k.if_(thread_col.eq(0).divergent(), || {
                    params.store_lse(batch_head, row.row, total.offset, total.sum)
                });
            });
        }
    };
    params.if_has_row(first_row, params.seq_len_q, compute);
}

/// A thread's part of the output: for each of its rows, its quads of columns.
struct Output<'k> {
    quads: usize,
    values: Vec<Var<'k, f32>>,
}

impl<'k> Output<'k> {
    #[track_caller]
    fn zero(k: &'k KernelBuilder, levers: &Levers, shape: &Shape) -> Self {
        let quads = quads_per_thread(shape) as usize;
        let count = 4 * quads * levers.rows_per_thread() as usize;
        let values = (0..count).map(|_| k.var(0.0)).collect();
        Output { quads, values }
    }

    fn row(&self, i: usize) -> &[Var<'k, f32>] {
        &self.values[4 * self.quads * i..][..4 * self.quads]
    }

    fn quad(&self, i: usize, j: usize) -> &[Var<'k, f32>] {
        &self.row(i)[4 * j..][..4]
    }
}

/// First column of quad `j` of a thread. Threads past the last quad repeat it, and store nothing.
#[track_caller]
fn quad_column<'k>(shape: &Shape, thread_col: Val<'k, u32>, j: u32) -> Val<'k, u32> {
    let column = (thread_col + j * THREAD_COLS) * 4u32;
    match (shape.head_dim_v / 4).is_multiple_of(THREAD_COLS) {
        true => column,
        false => column.min(shape.head_dim_v - 4),
    }
}

/// The running state of a query row, a copy in each of its sixteen threads; `sum` is each thread's own part.
struct Row<'k> {
    row: Val<'k, u32>,
    /// First that it sees, and one past the last.
    keys: (Val<'k, i32>, Val<'k, i32>),
    bias: Option<RowBias<'k>>,
    max: RowMax<'k>,
    sum: Var<'k, f32>,
}

impl<'k> Row<'k> {
    /// One step of the online softmax: probabilities relative to the new maximum, and the factor for what was summed
    /// before.
    #[track_caller]
    fn softmax_step(&self, scores: &[Val<'k, f32>]) -> (Vec<Val<'k, f32>>, Val<'k, f32>) {
        let mine = scores[1..].iter().fold(scores[0], |max, &score| max.max(score));
        let rescale = self.max.raise(mine.reduce_max(THREAD_COLS), 0.0);
        let p: Vec<_> = scores.iter().map(|&score| self.max.exp(score)).collect();
        self.sum.mul_assign(rescale);
        p.iter().for_each(|&p| self.sum.add_assign(p));
        (p, rescale)
    }
}

/// Copies rows `first..` of a head into a tile as f32; rows past `len` become zero.
#[track_caller]
pub(super) fn load_tile<'k, E: Widen>(
    k: &'k KernelBuilder,
    shape: &Shape,
    tile: SharedTile<'k, f32>,
    tensor: &TensorParam<'k, E>,
    head: GlobalPtr<'k, E>,
    first: Val<'k, u32>,
    len: Val<'k, u32>,
) {
    k.verb("load_tile", || {
        let chunks_per_row = tile.cols() / CHUNK;
        let chunks = tile.rows() * chunks_per_row;
        k.for_divergent(k.thread_idx(), chunks, k.threads(), |chunk| {
            let (row, column) = (chunk / chunks_per_row, chunk % chunks_per_row * CHUNK);
            let dst = tile.at(row, column);
            k.if_else(
                (first + row).lt(len).divergent(),
                || {
                    let (src, on_page) = tensor.key_row(head, first + row);
                    dst.store_f32s(&load_key(src.offset(column), on_page, CHUNK, shape), 16, Cache::Default);
                },
                || dst.store_f32s(&[k.constant(0.0); CHUNK as usize], 16, Cache::Default),
            );
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_fit_in_registers() {
        let problem = Problem::builder()
            .heads(1, 1)
            .seq_len(128)
            .head_dim(256)
            .build()
            .unwrap();
        let levers = Levers {
            rows: 64,
            cols: 64,
            warps: 4,
        };
        let message = levers.check(&Shape::new(&problem, 16, None)).unwrap_err().to_string();
        assert!(message.contains("output 128"), "{message}");
    }
}
