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
mod maps;
mod producer;
mod q_consumer;
#[cfg(test)]
mod tests;
mod tiles;
mod transpose;
mod warp_scheduler;

use flashcore_ir::{Chip, E4M3, Table, Target};
use flashcore_problem::{DType, Direction, Problem};

use crate::args::{Built, with_element};
use crate::attention::forward::{Forward, Sharing};
use crate::attention::params::{Shape, check_problem};
use crate::attention::query_rows::{Packing, TileHeads};
use crate::attention::scheduler::{self, work_lists};
use crate::attention::split;
use crate::attention::stream_k::{Pieces, Schedule};
use crate::attention::tap::key_range;
use crate::attention::tensor_rows::page_rows;
use crate::family::Values;
use crate::plan::Resolver;
use crate::step::Steps;
use crate::{Refusal, refuse};
use transpose::Transposed;

pub use crate::attention::params::ALIGNMENT;
pub use backward::defaults as backward_defaults;
pub use config::{Config, FAMILY};
pub(crate) use defaults::{Times, each_proposal};
pub use defaults::{defaults, most_ps, proposals, timed};
pub use transpose::gathers_keys;

/// The family's name in ids.
pub const NAME: &str = "wgmma";

/// The configs that are the default of some problem, not all of the tens of thousands.
pub(crate) fn listed() -> impl Iterator<Item = Config> {
    let forward = [DType::F16, DType::E4M3].into_iter().flat_map(defaults);
    let forward = forward.map(|(config, _)| config);
    forward.chain(backward_defaults().map(|(config, _)| config))
}

/// What a launch of the main kernel is made for.
type Request = Forward<Operands>;

/// What the main kernel reads in addition to the tensors of the problem.
struct Operands {
    values: Transposed,
    /// The work lists of the blocks, unless a schedule has them.
    table: Option<Table>,
}

/// Warps of a block's producer, which are its first.
const PRODUCER_WARPS: u32 = 4;

pub(crate) fn plan(problem: &Problem, config: &Config, with: Resolver<'_>) -> Result<Steps, Refusal> {
    let Resolver { chip, kernels, tap } = with;
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
    // How many splits there are is the table's to say.
    let kernel = kernels.get_or_build(Config { splits: 1, ..*config }, shape, |config, shape| {
        let name = shape.kernel_name(&format!("{NAME}/{config}"));
        Built::build(name, config.threads(), |k| match shape.dtype {
            DType::E4M3 => kernel::body::<E4M3>(k, &config, shape),
            dtype => with_element!(sixteen_bits dtype => kernel::body(k, &config, shape)),
        })
    })?;

    let at_once = chip.sms.saturating_mul(config.min_blocks);
    let pieces = || Pieces {
        rows: config.rows,
        cols: config.cols,
        heads: TileHeads::of_warpgroups(packing),
        least: config.stages,
    };
    let schedule = listed.then(|| Schedule::new(NAME, problem, pieces(), at_once));
    let schedule = schedule.transpose()?;
    let (blocks, table) = match &schedule {
        Some(schedule) => (schedule.grid, None),
        None => {
            let (tiling, seen) = (config.tiling(packing), key_range(problem, tap));
            let (blocks, table) = work_lists(problem, tiling, &seen, at_once);
            (blocks, Some(Table::new(table)))
        }
    };
    let sharing = Sharing::new(schedule, config.splits);
    let bytes = schedule.map_or(0, |schedule| schedule.bytes());
    let values = Transposed::new(given, gathered.as_ref(), config.cols, bytes);
    let request = Forward {
        problem: problem.clone(),
        sharing,
        more: Operands { values, table },
    };
    let main = kernel.step([blocks, 1, 1], &request)?;

    let whole = Shape { page_rows: 0, ..whole };
    let mut steps = Forward::new(problem, sharing).steps(main, &whole, kernels)?;
    // After the schedule, which serves other calls too.
    if shape.is_fp8() {
        steps.before.push(values.step(given, &shape, kernels)?);
    }
    Ok(steps)
}

/// Refuses what the family does not serve, whatever its kernel.
fn check(problem: &Problem, config: &Config, chip: Chip) -> Result<(), Refusal> {
    check_problem(problem, NAME, &[DType::F16, DType::BF16, DType::E4M3])?;
    let remedy = match problem.dtype() {
        DType::E4M3 => "no family serves e4m3 there: use the CPU",
        _ => "family mma does",
    };
    refuse!(chip.target != Target::Sm90a => NAME, remedy, "{}", chip.target);
    FAMILY.check(&Values::from(*config))?;
    config.rescale.check_forward(NAME)?;
    split::check(problem, config.splits)?;
    let (heads, most) = (problem.group_size(), Packing::MAX_HEADS);
    refuse!(config.pack_heads && heads > most =>
        NAME, "leave out -gqa", "{heads} packed heads: a warpgroup has {most} rows");
    Ok(())
}

/// Refuses what a kernel of this shape does not serve.
fn check_shape(problem: &Problem, config: &Config, shape: &Shape) -> Result<(), Refusal> {
    if shape.listed {
        refuse!(config.cluster > 1 => lever "cluster" = config.cluster,
            "1 with lengths: neighbours may have different keys");
        refuse!(config.splits > 1 => lever "splits" = config.splits,
            "1 with lengths: the schedule splits keys where blocks would idle");
    }
    if shape.is_fp8() {
        refuse!(!config.cols.is_multiple_of(tiles::step(1)) => lever "cols" = config.cols, "multiples of 32 for e4m3");
        refuse!(!shape.head_dim_v.is_multiple_of(16) =>
            NAME, "a multiple of 16 can be served", "e4m3 values with head_dim {}", shape.head_dim_v);
        refuse!(shape.split => lever "splits" = config.splits, "1 for e4m3");
    }
    let queries = shape.packing.queries_in(config.rows) as usize;
    let tiles = problem.seq_len_q().div_ceil(queries);
    let key_tiles = problem.seq_len_kv().div_ceil(config.cols as usize);
    let (batch, heads) = (problem.batch(), problem.num_heads());
    refuse!(batch.max(heads).max(tiles).max(key_tiles) >= scheduler::COUNT_LIMIT =>
        NAME, "split the problem: it counts to 65535 of each",
        "{batch} batches of {heads} heads of {tiles} by {key_tiles} tiles");
    config.check_registers(shape)?;
    config.check_blocks(shape)
}
