//! The step that makes dQ of its sums: scaled, rounded, and in rows. Those of family `mma` have another order
//! (`mma/backward/dq_sums.rs`).
//!
//! The main kernel adds tile by tile of query rows, in the order of its accumulators: warp after warp, of a warp one
//! accumulator of 8 columns after the other, of an accumulator lane after lane, four registers each. A warpgroup has 64
//! rows and 64 columns; warpgroups, and blocks of a cluster, go along the columns first.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Arg, BuildErrors, Cache, Kernel, KernelBuilder, Launch, TileShape, Widen};
use flashcore_problem::{DType, Problem};
use half::{bf16, f16};

use super::{Shares, UNIT, first_stores, named, width};
use crate::Refusal;
use crate::attention::gradients::{DqSemaphore, Workspace, add_gradients, head_row};
use crate::attention::lengths::TensorParam;
use crate::attention::params::{RowParams, Shape, add_rows, grid};
use crate::attention::row_tile::ACC_COLS;
use crate::family::Values;
use crate::step::{Identity, KernelCache, Step};
use crate::wgmma::{ALIGNMENT, Config, NAME};

const THREADS: u32 = 256;

/// Elements of a row that a lane stores at a time: 16 bytes.
const COLUMNS: u32 = 8;

pub(super) fn step(
    problem: &Problem,
    config: &Config,
    shape: &Shape,
    workspace: Workspace,
    kernels: &KernelCache,
) -> Result<Step, Refusal> {
    let (levers, shape) = (Values::from(*config), *shape);
    let (ordered, width) = (problem.deterministic(), width(&shape));
    let (family, build): (_, fn(&Values, &Shape) -> _) = match first_stores(ordered, width) {
        true => ("wgmma stored dq", kernel::<true>),
        false => ("wgmma dq", kernel::<false>),
    };
    let kernel = kernels.get_or_build(Identity { family, levers, shape }, build)?;
    let tiles = problem.seq_len_q().div_ceil(config.rows as usize);
    let blocks = tiles * problem.batch() * problem.num_heads();
    let mut launch = Launch::of(&kernel, grid(NAME, [blocks, 1, 1])?);
    add_gradients(&mut launch, problem, ALIGNMENT, &["dq"]);
    let slot = workspace.push(&mut launch, false);
    workspace.add_dq_sums(&mut launch, slot);
    workspace.add_dq_semaphore(&mut launch, slot);
    launch.args.push(Arg::U32(workspace.stride as u32));
    launch.args.push(Arg::F32(problem.softmax_scale()));
    add_rows(&mut launch, problem, &shape);
    Ok(Step { kernel, launch })
}

/// `STORED`: tiles that no block has come to were not zeroed.
fn kernel<const STORED: bool>(levers: &Values, shape: &Shape) -> Result<Kernel, BuildErrors> {
    let name = named(levers, shape, if STORED { "dq_stored" } else { "dq" });
    Kernel::build(name, THREADS, |k| match shape.dtype {
        DType::F16 => body::<f16>(k, &Config::from(*levers), shape, STORED),
        _ => body::<bf16>(k, &Config::from(*levers), shape, STORED),
    })
}

fn body<E: MmaElement + Widen>(k: &KernelBuilder, config: &Config, shape: &Shape, stored: bool) {
    let (rows, Shares { width, .. }) = (config.rows, Shares::new(config, shape));
    let dq = TensorParam::<E>::declare(k, "dq", k.param_ptr_mut("dq"));
    let sums = k.param_ptr::<f32>("dq_sums");
    let semaphore = stored.then(|| DqSemaphore::to_read(k));
    let stride = k.param::<u32>("sums_stride");
    let softmax_scale = k.param::<f32>("softmax_scale");
    let params = RowParams::declare(k, shape);

    let tiles = (params.seq_len_q + (rows - 1)) / rows;
    // The last sums that were added to are in the L2 cache.
    let block = k.grid_dim(0) - 1 - k.block_idx(0);
    let (tile, batch_head) = (block % tiles, block / tiles);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let first_row = tile * rows;
    let (params, first) = params.of_sequence(batch);
    let sums_row = head_row(stride, params.num_heads, batch, head, first) + first_row;
    let sums = sums.offset_strided(sums_row, width);
    // Padded, so that neither its rows nor its columns fall into one bank.
    let rounded = k.shared_tile::<E>("rounded", TileShape::new(rows, width).padded(16 / E::BYTES));
    let (accumulators, units) = (UNIT / ACC_COLS, width / UNIT);
    params.if_has_row(first_row, params.seq_len_q, || {
        let any = semaphore.map(|semaphore| semaphore.counts.offset(sums_row).load().gt(0));
        for first in (0..rows * width / 4).step_by(THREADS as usize) {
            // Four registers of a lane.
            let four = k.thread_idx() + first;
            let load = || sums.offset(four * 4).load_words(4, Cache::Default);
            let values = match any {
                None => load(),
                Some(any) => {
                    let values = [0; 4].map(|_| k.var(0.0));
                    k.if_(any.uniform(), || {
                        values.iter().zip(load()).for_each(|(to, sum)| to.set(sum))
                    });
                    values.iter().map(|value| value.get()).collect()
                }
            };
            let (lane, i, warp) = (four % 32, four / 32 % accumulators, four / (32 * accumulators));
            let warpgroup = warp / 4;
            let row = warpgroup / units * UNIT + warp % 4 * 16 + lane / 4;
            let column = warpgroup % units * UNIT + i * ACC_COLS + lane % 4 * 2;
            let at = rounded.at(row, column);
            for half in 0..2 {
                let [a, b] = [0, 1].map(|e| values[2 * half + e] * softmax_scale);
                rounded
                    .down(at, 8 * half as u32)
                    .store_words(&[E::pack(a, b)], Cache::Default);
            }
        }
        k.barrier();
        let dq = dq.starting_at(first.q);
        let to = dq.head(batch, head);
        let lanes = width / COLUMNS;
        for first in (0..rows).step_by((THREADS / lanes) as usize) {
            let (row, column) = (k.thread_idx() / lanes + first, k.thread_idx() % lanes * COLUMNS);
            let is_there = (first_row + row).lt(params.seq_len_q) & column.lt(shape.head_dim);
            k.if_(is_there.divergent(), || {
                let words = rounded.at(row, column).load_words(4, Cache::Default);
                dq.row(to, first_row + row)
                    .offset(column)
                    .store_words(&words, Cache::Default);
            });
        }
    });
}
