//! Family `wgmma`: attention on Hopper's asynchronous tensor cores, copies and products (sm_90a).
//!
//! The levers, and what each trades, are the fields of [`Config`]; the algorithm is `kernel.rs`.
//!
//! Sources: FlashAttention-3 (Shah et al. 2024) for the division of labour between warpgroups; the PTX ISA for
//! instructions and descriptors.

mod backward;
mod barriers;
mod config;
mod consumer;
mod defaults;
mod epilogue;
mod kernel;
mod producer;
mod q_consumer;
#[cfg(test)]
mod tests;
mod tiles;
mod transpose;
mod warp_scheduler;

use std::sync::Arc;

use flashcore_ir::{Arg, Chip, E4M3, Kernel, Launch, Table, Target, TensorBox};
use flashcore_problem::{DType, Direction, Layout, Problem};
use half::{bf16, f16};

use crate::Refusal;
use crate::attention::lengths::row_strides;
use crate::attention::params::{Shape, add_rows, check_problem, push_buffer};
use crate::attention::query_rows::{Packing, TileHeads};
use crate::attention::scheduler::{self, work_lists};
use crate::attention::score_mod::HeadScales;
use crate::attention::stream_k::{Pieces, Schedule};
use crate::attention::tap::{Tap, key_range};
use crate::attention::tensor_rows::{Flat, RowsOf, page_rows};
use crate::attention::{combine, split};
use crate::family::Values;
use crate::step::{Identity, KernelCache, Step};
use config::OUT_BYTES;
use transpose::Transposed;

pub use crate::attention::params::ALIGNMENT;
pub use backward::defaults as backward_defaults;
pub use config::{Config, FAMILY};
pub(crate) use defaults::each_proposal;
pub use defaults::{Proposal, defaults, proposals};
pub use transpose::gathers_keys;

/// The family's name in ids.
pub const NAME: &str = "wgmma";

/// The configs that are the default of some problem, not all of the tens of thousands.
pub(crate) fn listed() -> impl Iterator<Item = Config> {
    let forward = [DType::F16, DType::E4M3].into_iter().flat_map(defaults);
    let forward = forward.map(|(config, _)| config);
    forward.chain(backward_defaults().map(|(config, _)| config))
}

/// Warps of a block's producer, which are its first.
const PRODUCER_WARPS: u32 = 4;

pub(crate) fn plan(
    problem: &Problem,
    config: &Config,
    chip: Chip,
    kernels: &KernelCache,
    tap: Option<Tap>,
) -> Result<(Vec<Step>, Step, Vec<Step>), Refusal> {
    if problem.direction() == Direction::Backward {
        return backward::plan(problem, config, chip, kernels);
    }
    check(problem, config, chip)?;
    let gathered = transpose::gathered(problem)?;
    // All steps but the one that gathers K have it in a contiguous cache.
    let (given, problem) = (problem, gathered.as_ref().unwrap_or(problem));
    let packing = config.packing(problem, chip.sms);
    let listed = problem.has_lengths();
    let whole = Shape {
        listed,
        page_rows: page_rows(NAME, problem, config.cols)?,
        ..Shape::new(problem, ALIGNMENT, tap).overlapping(listed || config.splits > 1, chip.target)
    };
    let shape = Shape {
        packing,
        ..whole.in_splits(config.splits)
    };
    check_shape(problem, config, &shape)?;
    let kernel = build(config, shape, kernels)?;

    // For one tile a block, a caller passes `u32::MAX` SMs.
    let at_once = chip.sms.saturating_mul(config.min_blocks);
    let schedule = listed.then(|| schedule(problem, config, packing, at_once));
    let schedule = schedule.transpose()?;
    let (blocks, table) = match &schedule {
        Some(schedule) => (schedule.grid, None),
        None => {
            let (tiling, seen) = (config.tiling(packing), key_range(problem, tap));
            let (blocks, table) = work_lists(problem, tiling, &seen, at_once);
            (blocks, Some(Arg::Table(Table::new(table))))
        }
    };
    let mut launch = Launch::of(&kernel, [blocks, 1, 1]);
    let values = Transposed::new(given, gathered.as_ref(), config.cols, schedule.as_ref());
    add_tensors(&mut launch, &kernel, problem, &values, &shape)?;
    if shape.split {
        split::add_to_launch(&mut launch, problem, config.splits, true);
        launch.args.push(Arg::U32(config.splits));
    }
    if let Some(schedule) = &schedule {
        schedule.add_to_main(&mut launch);
    }
    add_rows(&mut launch, problem, &shape);
    if shape.is_fp8() {
        HeadScales::add_to_launch(&mut launch, problem);
    }
    launch.args.extend(table);

    let (mut before, mut then) = (Vec::new(), Vec::new());
    if shape.split {
        then.push(combine::step(problem, &whole, config.splits, kernels)?);
    }
    if let Some(schedule) = &schedule {
        before.push(schedule.step(problem, &shape, kernels)?);
        let shape = Shape { page_rows: 0, ..whole };
        then.push(combine::listed_step(problem, &shape, schedule, kernels)?);
    }
    // After the schedule, which serves other calls too.
    if shape.is_fp8() {
        before.push(values.step(given, &shape, kernels)?);
    }
    Ok((before, Step { kernel, launch }, then))
}

/// Refuses what the family does not serve, whatever its kernel.
fn check(problem: &Problem, config: &Config, chip: Chip) -> Result<(), Refusal> {
    check_problem(problem, NAME, &[DType::F16, DType::BF16, DType::E4M3])?;
    if chip.target != Target::Sm90a {
        let remedy = match problem.dtype() {
            DType::E4M3 => "no family serves e4m3 there: use the CPU",
            _ => "family mma does",
        };
        return Err(Refusal::unsupported(NAME, chip.target.to_string(), remedy));
    }
    FAMILY.check(&Values::from(*config))?;
    config.rescale.check_forward(NAME)?;
    split::check(problem, config.splits)?;
    if config.pack_heads && problem.group_size() > Packing::MAX_HEADS {
        let (heads, most) = (problem.group_size(), Packing::MAX_HEADS);
        let what = format!("{heads} packed heads: a warpgroup has {most} rows");
        return Err(Refusal::unsupported(NAME, what, "leave out -gqa"));
    }
    Ok(())
}

/// Refuses what a kernel of this shape does not serve.
fn check_shape(problem: &Problem, config: &Config, shape: &Shape) -> Result<(), Refusal> {
    if shape.listed {
        check_listed(config)?;
    }
    if shape.is_fp8() {
        if !config.cols.is_multiple_of(tiles::step(1)) {
            return Err(Refusal::lever("cols", config.cols, "multiples of 32 for e4m3"));
        }
        if !shape.head_dim_v.is_multiple_of(16) {
            let what = format!("e4m3 values with head_dim {}", shape.head_dim_v);
            return Err(Refusal::unsupported(NAME, what, "a multiple of 16 can be served"));
        }
        if shape.split {
            return Err(Refusal::lever("splits", config.splits, "1 for e4m3"));
        }
    }
    let queries = shape.packing.queries_in(config.rows) as usize;
    let tiles = problem.seq_len_q().div_ceil(queries);
    let key_tiles = problem.seq_len_kv().div_ceil(config.cols as usize);
    let (batch, heads) = (problem.batch(), problem.num_heads());
    if batch.max(heads).max(tiles).max(key_tiles) >= scheduler::COUNT_LIMIT {
        let what = format!("{batch} batches of {heads} heads of {tiles} by {key_tiles} tiles");
        let remedy = "split the problem: it counts to 65535 of each";
        return Err(Refusal::unsupported(NAME, what, remedy));
    }
    config.check_registers(shape)?;
    config.check_blocks(shape)
}

fn build(config: &Config, shape: Shape, kernels: &KernelCache) -> Result<Arc<Kernel>, Refusal> {
    // How many splits there are is the table's to say.
    let (family, levers) = (NAME, Values::from(Config { splits: 1, ..*config }));
    kernels.get_or_build(Identity { family, levers, shape }, |levers, shape| {
        let (name, config) = (shape.kernel_name(&FAMILY.id(levers)), &Config::from(*levers));
        Kernel::build(name, config.threads(), |k| match shape.dtype {
            DType::F16 => kernel::body::<f16>(k, config, shape),
            DType::E4M3 => kernel::body::<E4M3>(k, config, shape),
            _ => kernel::body::<bf16>(k, config, shape),
        })
    })
}

/// Adds Q, K, V, and the output unless it is split.
fn add_tensors(
    launch: &mut Launch,
    kernel: &Kernel,
    problem: &Problem,
    values: &Transposed,
    shape: &Shape,
) -> Result<(), Refusal> {
    let dtype = problem.dtype();
    let queries = RowsOf::queries(&shape.lengths, shape.packing);
    let keys = RowsOf::keys(&shape.lengths, shape.page_rows);
    add_tensor(launch, kernel, dtype, "q", problem.q_layout(), queries)?;
    match values.push_keys(launch) {
        Some(place) => add_map(launch, kernel, dtype, ("k", place), problem.k_layout(), keys)?,
        None => add_tensor(launch, kernel, dtype, "k", problem.k_layout(), keys)?,
    }
    match dtype {
        DType::E4M3 => values.add_to_main(launch, boxes(kernel, "v")?),
        _ => add_tensor(launch, kernel, dtype, "v", problem.v_layout(), keys)?,
    }
    match shape.split {
        true => Ok(()),
        false => add_tensor(launch, kernel, dtype, "out", problem.o_layout(), queries),
    }
}

/// Refuses what no work lists made on the device serve.
fn check_listed(config: &Config) -> Result<(), Refusal> {
    let neighbours = "1 with lengths: neighbours may have different keys";
    let scheduled = "1 with lengths: the schedule splits keys where blocks would idle";
    match (config.cluster, config.splits) {
        (1, 1) => Ok(()),
        (1, splits) => Err(Refusal::lever("splits", splits, scheduled)),
        (cluster, _) => Err(Refusal::lever("cluster", cluster, neighbours)),
    }
}

/// The schedule of a problem with lengths, for as many blocks as run at a time.
fn schedule(problem: &Problem, config: &Config, packing: Packing, at_once: u32) -> Result<Schedule, Refusal> {
    let pieces = Pieces {
        rows: config.rows,
        cols: config.cols,
        heads: TileHeads::of_warpgroups(packing),
        least: config.stages,
    };
    Schedule::new(NAME, problem, pieces, at_once)
}

fn boxes(kernel: &Kernel, name: &str) -> Result<TensorBox, Refusal> {
    let boxes = kernel.tensor_box(name);
    boxes.ok_or_else(|| Refusal::Build(format!("the kernel has no tensor map `{name}`")))
}

/// Adds a tensor `[batch, seq, heads, head_dim]` and its tensor map, whose dimensions are (head_dim, seq, heads,
/// batch) or (head_dim, rows, heads) of a ragged one; with packed heads, heads come before rows.
fn add_tensor(
    launch: &mut Launch,
    kernel: &Kernel,
    dtype: DType,
    name: &'static str,
    layout: &Layout,
    of: RowsOf,
) -> Result<(), Refusal> {
    let bytes = layout.span() * element_bytes(dtype, name);
    let slot = push_buffer(launch, name, bytes, ALIGNMENT, matches!(name, "out" | "dk" | "dv"));
    add_map(launch, kernel, dtype, (name, (slot, 0)), layout, of)
}

fn element_bytes(dtype: DType, name: &str) -> usize {
    match name {
        "out" => OUT_BYTES as usize,
        _ => dtype.size_bytes(),
    }
}

/// Adds the tensor map of a tensor that begins so many bytes after the start of a buffer.
fn add_map(
    launch: &mut Launch,
    kernel: &Kernel,
    dtype: DType,
    (name, (slot, byte_offset)): (&'static str, (usize, u64)),
    layout: &Layout,
    of: RowsOf,
) -> Result<(), Refusal> {
    let boxes = boxes(kernel, name)?;
    let bytes = element_bytes(dtype, name);
    let [batch, seq, head] = row_strides(layout);
    let [batches, rows, heads, columns] = layout.shape.map(|n| n as u64);
    let remedy = match dtype {
        DType::E4M3 => "no other family serves e4m3: copy them, or use the CPU",
        _ => "family mma does",
    };
    check_repeated(name, layout, remedy)?;
    // A stride that is never taken must be one that could be.
    let stride = |stride: u32| match stride {
        0 => (columns * bytes as u64).next_multiple_of(16),
        stride => u64::from(stride) * bytes as u64,
    };
    let flat = match of {
        RowsOf::Batch(_) => None,
        _ => Some(Flat::new(NAME, name, layout, remedy)?),
    };
    let (mut sizes, mut strides) = match &flat {
        None => (
            vec![columns, rows, heads, batches],
            vec![stride(seq), stride(head), stride(batch)],
        ),
        Some(flat) => (
            vec![columns, flat.count, heads],
            vec![stride(flat.stride), stride(head)],
        ),
    };
    if of.heads_first() {
        sizes.swap(1, 2);
        strides.swap(0, 1);
    }
    let map = boxes.recipe(slot, byte_offset, sizes, strides);
    launch.args.push(Arg::TensorMap(map));
    if let (RowsOf::Cache | RowsOf::Pages(_), Some(flat)) = (of, flat) {
        launch.args.push(Arg::U32(flat.batch_rows));
    }
    Ok(())
}

/// Refuses strides of 0, which tensor maps do not have.
fn check_repeated(name: &str, layout: &Layout, remedy: &'static str) -> Result<(), Refusal> {
    let counts = layout.shape.into_iter().take(3);
    let repeats = counts
        .zip(row_strides(layout))
        .any(|(count, stride)| count > 1 && stride == 0);
    if !repeats {
        return Ok(());
    }
    let what = format!("rows of `{name}` that repeat (a stride of 0)");
    Err(Refusal::unsupported(NAME, what, remedy))
}
