//! The backward pass on Hopper: [preprocess], the [main kernel](kernel), and [postprocess], which rounds dQ, and dK and
//! dV where several blocks [share a tile](split).
//!
//! Tests: `tests.rs`; against float64 in the simulator `-p flashcore-check --test it -- backward wgmma_ huge_scores::
//! cost::`; what is refused, `-p flashcore-cli --test it -- backward::`; registers and spills, `bash .ci/run 'assemble
//! kernels'`; on a GPU `backward::` of the crate flashcore.

mod ahead;
mod consumer;
mod dq;
mod epilogue;
mod exchange;
mod kernel;
mod pingpong;
mod postprocess;
mod producer;
mod scheduler;
mod split;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use flashcore_ir::{Chip, Target};
use flashcore_problem::{Name, Problem, QLengths};

use self::ahead::{heads_ahead, prepares_ahead};
use super::maps::check_repeated;
use super::{ALIGNMENT, Config, FAMILY, NAME};
use crate::args::{build, layout_of};
use crate::attention::gradients::{Backward, PADDING, Workspace};
use crate::attention::params::{SIXTEEN_BITS, Shape, check_problem, grid};
use crate::attention::preprocess;
use crate::attention::scheduler::MAX_ITEM_SPLITS;
use crate::attention::softmax::Rescale;
use crate::card::{Card, Proposal, Row, Score};
use crate::family::{Lever, Values};
use crate::step::{KernelCache, Steps};
use crate::{Refusal, refuse};

/// Rows of a `wgmma`: the keys of a warpgroup, and the query rows of its part of dQ.
const WGMMA_M: u32 = 64;

/// Columns of a slab of K, the most that a warpgroup's part of dQ has.
const SLAB_COLS: u32 = 64;

/// Elements of an accumulator in the sums of dQ, dK and dV: four of each lane of a warp.
const ACC_ELEMENTS: u32 = 4 * 32;

/// Stages of dS in shared memory.
const DS_STAGES: u32 = 2;

/// Stages of dO. Above 192 columns, the dS that blocks exchange leaves room for one.
fn dout_stages(config: &Config, width: u32) -> u32 {
    if width > 192 { 1 } else { config.stages }
}

/// Widths of tiles: head sizes are padded with zeros to the next one.
const WIDTHS: [u32; 4] = [64, 128, 192, 256];

/// What to use where this has no kernel.
const REMEDY: &str = "families mma and scalar do";

/// The levers as the backward pass has them: K and V stay in shared memory, and there is no maximum to rescale to.
/// Splits are blocks that share a tile of keys. Which values go together depends on the head size. Then those of a
/// deterministic pass: without shared tiles, whose dK and dV are added in any order.
static LEVERS: LazyLock<[Levers; 2]> = LazyLock::new(|| {
    let shared = with_splits(|lever| lever.only(&[1, 2, 4, 8]).up_to(MAX_ITEM_SPLITS));
    [shared, with_splits(|lever| lever.only(&[1]))]
});

type Levers = [Lever; super::config::LEVERS.len()];

pub(super) fn levers(deterministic: bool) -> &'static [Lever] {
    &LEVERS[usize::from(deterministic)]
}

fn with_splits(splits: fn(Lever) -> Lever) -> Levers {
    super::config::LEVERS.map(|lever| match lever.name {
        "rows" | "cols" => lever.only(&[64, 128]),
        "rescale" => lever.only(&[Rescale::Never as u32]),
        "q_in_registers" | "pack_heads" | "max_registers" => lever.only(&[0]),
        "splits" => splits(lever),
        "min_blocks" => lever.only(&[1]),
        // As forward; a lever that is named nowhere here would change ids of one code.
        "stages" | "cluster" | "pingpong" => lever,
        new => unreachable!("lever `{new}` has no values in the backward pass"),
    })
}

/// What is proposed for a problem on Hopper, best first; [`plan`] refuses what has no kernel, and says why.
pub(super) fn proposals(problem: &Problem, chip: Chip) -> Vec<Proposal<Config>> {
    let rows = &Card::nearest(chip).wgmma_backward;
    // `plan` refuses heads that are wider than all rows.
    let Some(&Row { config, why, place, .. }) = rows.iter().find(|row| row.fits(problem)).or(rows.last()) else {
        return Vec::new();
    };
    let splits = match check_served(problem, chip) {
        Ok(()) => split::blocks_of_tile(problem, &config, chip.sms),
        Err(_) => 1, // for `plan` to refuse
    };
    let in_order = |config, why| Proposal::new(config, why, Some(place), Score::Order);
    let shared_why = "tiles of keys leave SMs idle, so that blocks share them";
    let shared = (splits > 1).then(|| in_order(Config { splits, ..config }, shared_why));
    // A driver without PTX 8.1 has no kernel that shares them.
    shared.into_iter().chain([in_order(config, why)]).collect()
}

/// The defaults of the backward pass, each with the head size that it is for.
///
/// ```
/// let ids = flashcore_kernels::wgmma::backward_defaults();
/// let ids = ids.map(|(config, head_dim)| (config.to_string(), head_dim)).collect::<Vec<_>>();
/// assert_eq!(ids[1], ("m64n128-s2-pingpong".to_string(), 128));
/// assert_eq!(ids[4], ("m64n128-s2-pingpong-k4".to_string(), 128));
/// ```
pub fn defaults() -> impl Iterator<Item = (Config, usize)> {
    // Where there are few tiles, blocks share them; how many depends on the problem.
    [1, 4].into_iter().flat_map(|splits| {
        let rows = Card::all().iter().flat_map(|card| &card.wgmma_backward);
        rows.map(move |row| (Config { splits, ..row.config }, row.head_dim))
    })
}

/// Preprocess, the main kernel and postprocess.
pub(super) fn plan(problem: &Problem, config: &Config, chip: Chip, kernels: &KernelCache) -> Result<Steps, Refusal> {
    check_problem(problem, NAME, &SIXTEEN_BITS)?;
    check_served(problem, chip)?;
    FAMILY.check(&Values::from(*config))?;
    let shape = Shape::new(problem, ALIGNMENT, None);
    check_levers(config, &shape)?;
    refuse!(problem.deterministic() && config.splits > 1 => lever "splits" = config.splits,
        "1 for a deterministic problem: blocks that share a tile add to dK and dV in any order");

    let first_stores = first_stores(problem.deterministic(), width(&shape));
    let kv_heads = problem.batch() * problem.num_kv_heads();
    let tiles = key_tiles(problem, config);
    let at_once = heads_at_once(problem, width(&shape));
    let may_prepare = config.splits == 1 && prepares_ahead(problem, config, width(&shape), at_once);
    let ahead = heads_ahead(tiles, at_once, chip.sms, kv_heads).filter(|_| may_prepare);
    let dq_columns = Partition::new(config, &shape).dq_cols();
    let workspace = Workspace::new(NAME, problem, dq_columns)?.first_stores(first_stores);
    let (variant, workspace) = match ahead {
        Some(heads) => (Variant::Ahead, workspace.prepared_ahead(kv_heads, heads as usize)),
        None if config.splits > 1 => (Variant::Split, workspace.sums_of_keys(NAME, problem, width(&shape))?),
        None if problem.deterministic() => (Variant::Ordered, workspace),
        None => (Variant::Plain, workspace),
    };
    // How many blocks share a tile is the launch's to say.
    let key = (Config { splits: 1, ..*config }, variant);
    let kernel = kernels.get_or_build(key, shape, |(config, variant), shape| {
        let threads = 128 * (1 + Partition::new(&config, shape).warpgroups);
        let name = named(&config, shape, variant.name());
        build!(name, threads, sixteen_bits shape.dtype => kernel::body(k, &config, shape, variant))
    })?;
    let blocks = tiles * kv_heads * (config.cluster * config.splits) as usize;
    let request = Backward {
        splits: config.splits,
        ..Backward::new(problem, workspace)
    };
    Ok(Steps {
        before: vec![preprocess::step(&request, &shape, kernels)?],
        main: kernel.step(grid(NAME, [blocks, 1, 1])?, &request)?,
        then: vec![postprocess::step(&request, config, &shape, kernels)?],
    })
}

/// Main kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    /// Blocks add to dQ in the same order in all runs.
    Ordered,
    /// Blocks [prepare rows](ahead) of later heads.
    Ahead,
    /// Several blocks [share a tile](split).
    Split,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Plain => "backward",
            Variant::Ordered => "backward_ordered",
            Variant::Ahead => "backward_ahead",
            Variant::Split => "backward_split",
        }
    }
}

fn named(config: &Config, shape: &Shape, what: &str) -> String {
    shape.kernel_name(&format!("{NAME}/{config}-{what}"))
}

/// Refuses problems that have no kernel.
fn check_served(problem: &Problem, chip: Chip) -> Result<(), Refusal> {
    let target = chip.target;
    refuse!(target != Target::Sm90a => NAME, REMEDY, "the backward pass on {target}");
    refuse!(problem.softcap().is_some() => NAME, REMEDY, "the backward pass of scores with a soft cap");
    // Those that the main kernel reads, and those that it writes.
    for tensor in [Name::Q, Name::K, Name::V, Name::Dout, Name::Dk, Name::Dv] {
        let layout = layout_of(problem, tensor)?;
        check_repeated(tensor.as_str(), layout, "copy them, or use family mma")?;
    }
    Ok(())
}

/// Refuses levers that the backward pass does not have, and tiles that do not go together.
fn check_levers(config: &Config, shape: &Shape) -> Result<(), Refusal> {
    let width = width(shape);
    let exchanges = exchanges_ds(width);
    // 64 keys for each of one or two warpgroups, which compute 64 rows and 64 columns of dQ each, or share the products
    // of 64 x 64 scores.
    let cols = match width {
        128 => 128,
        64 if config.cols == 128 => 128,
        _ => 64,
    };
    // Only cols, stages and splits can be chosen.
    let usual = Config {
        rows: if exchanges { WGMMA_M } else { WGMMA_M * cols / width },
        cols,
        cluster: if exchanges { 2 } else { 1 },
        pingpong: !exchanges && cols > WGMMA_M,
        rescale: Rescale::Never,
        q_in_registers: false,
        min_blocks: 1,
        max_registers: 0,
        pack_heads: false,
        stages: config.stages,
        splits: config.splits,
    };
    let levers = FAMILY.levers.iter().zip(Values::from(*config));
    for ((lever, given), allowed) in levers.zip(Values::from(usual)) {
        if given != allowed {
            let allowed = lever.print(allowed);
            let allowed = format!("{allowed} in the backward pass of head_dim {width}: write {NAME}/{usual}");
            return Err(Refusal::lever(lever.name, lever.print(given), allowed));
        }
    }
    Ok(())
}

/// Width of a shape's tiles.
fn width(shape: &Shape) -> u32 {
    width_of(shape.head_dim.max(shape.head_dim_v))
}

fn width_of(head_dim: u32) -> u32 {
    WIDTHS.into_iter().find(|width| head_dim <= *width).unwrap_or(head_dim)
}

/// Tiles of keys of a head.
fn key_tiles(problem: &Problem, config: &Config) -> usize {
    problem.seq_len_kv().div_ceil(tile_keys(config) as usize)
}

/// Keys of a tile: of one block, or of the two that exchange dS.
fn tile_keys(config: &Config) -> u32 {
    config.cols * config.cluster
}

/// Whether one warpgroup computes dV and another dK of the same keys, and two blocks [exchange dS](exchange). Otherwise
/// each warpgroup computes both, which takes as many registers of a thread as both have columns, and a thread has 240.
fn exchanges_ds(width: u32) -> bool {
    width > 128
}

/// Whether the first block at a tile of dQ stores its part, so that the sums need no zeros. The other blocks wait for
/// that, so it needs a warp besides the consumers that adds dQ.
fn first_stores(ordered: bool, width: u32) -> bool {
    ordered || !exchanges_ds(width)
}

/// How the warpgroups of a tile divide its products.
#[derive(Clone, Copy)]
struct Partition {
    /// Columns of Q, K, V and dO in shared memory.
    width: u32,
    /// Columns of a warpgroup's part of dQ, and how many such parts there are. Slabs of K begin as many columns apart,
    /// so that each part has a slab.
    dq_part_cols: u32,
    dq_col_parts: u32,
    /// Consumer warpgroups.
    warpgroups: u32,
    /// [`exchanges_ds`].
    exchanges_ds: bool,
    /// Whether V, operand A of dP, is held in registers, which reads less shared memory, where there is room for it.
    /// Not where it takes as many registers as P: ptxas 12.0 to 13.0 then wrote P over it in the loop of
    /// [`Variant::Ordered`] (`scripts/held_operands.py`).
    holds_v: bool,
    /// Whether dS, operand A of dK, is held in registers, too: above 64 columns that is slower.
    holds_ds: bool,
}

impl Partition {
    fn new(config: &Config, shape: &Shape) -> Partition {
        let width = width(shape);
        let exchanges_ds = exchanges_ds(width);
        let dq_col_parts = if exchanges_ds { 4 } else { width / SLAB_COLS };
        let like_p = shape.head_dim_v.div_ceil(16) == config.rows / 16;
        Partition {
            width,
            dq_part_cols: shape.head_dim.div_ceil(dq_col_parts).next_multiple_of(16),
            dq_col_parts,
            warpgroups: if exchanges_ds { 2 } else { config.cols / WGMMA_M },
            exchanges_ds,
            holds_v: shape.head_dim.max(shape.head_dim_v) <= 96 && !like_p || width == 192,
            holds_ds: width == 64,
        }
    }

    /// Columns of dQ's sums.
    fn dq_cols(&self) -> u32 {
        self.dq_col_parts * self.dq_part_cols
    }
}

/// Registers of a producer thread, and of a consumer thread.
fn registers(partition: &Partition) -> (u32, u32) {
    match (partition.warpgroups, partition.width) {
        (1, _) => (56, 248),
        // dK or dV take fewer registers than with 256 columns, and a producer thread with two stages of dO needs more.
        (_, 192) => (40, 232),
        _ => (24, 240),
    }
}

/// Bytes of Q, dO and dQ's sums that stay in the L2 cache while blocks of several heads read and add to them.
const HEADS_BYTES: usize = 16 << 20;

/// Most K/V heads whose tiles run at the same time; in order, there are more.
const MAX_HEADS: usize = 8;
const MAX_HEADS_IN_ORDER: usize = 32;

/// K/V heads of all batches whose tiles run at the same time, but not of more than the L2 cache holds. Where tiles
/// differ in their work, the longest of several heads go first. In order, those that start together then belong to
/// several heads, and do not wait for each other.
fn heads_at_once(problem: &Problem, width: u32) -> u32 {
    let (range, rows, keys) = (problem.key_range(), problem.seq_len_q(), problem.seq_len_kv());
    let all_alike = i64::from(range.hi) >= keys as i64 - 1 && i64::from(range.lo) <= 1 - rows as i64;
    // The rows of a sequence on average, where the longest says little. In order this was not tried.
    let rows = match problem.q_lengths() {
        QLengths::Packed { total, .. } if !problem.deterministic() => rows.min(total.div_ceil(problem.batch())),
        _ => rows,
    };
    let head_bytes = 8 * rows.next_multiple_of(PADDING as usize) * width as usize;
    let most = match (problem.deterministic(), all_alike && !problem.has_lengths()) {
        (true, _) => MAX_HEADS_IN_ORDER,
        (false, true) => 1,
        (false, false) => MAX_HEADS,
    };
    (HEADS_BYTES / head_bytes).clamp(1, most) as u32
}

/// What makes its shared memory smaller, for a refusal.
pub(super) fn remedy_for_shared_memory(config: &Config, problem: &Problem) -> String {
    let width = width_of(problem.head_dim().max(problem.head_dim_v()) as u32);
    // Stages of Q and dO, and with them of the other block's dS; or of Q alone.
    let staged = if width > 192 { 1 } else { 2 };
    let exchanged = if width == 192 { 2 * config.rows * config.cols } else { 0 };
    let saved = (config.stages - 2) * (config.rows * 2 * staged * (width + 2) + exchanged);
    format!("stages {} to 2 saves {saved} B", config.stages)
}
