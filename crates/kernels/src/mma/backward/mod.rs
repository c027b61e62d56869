//! The backward pass on `mma.sync` tensor cores: [preprocess], the [main kernel](kernel), and [postprocess], which
//! rounds dQ.
//!
//! Of a deterministic problem the main kernel leaves dQ out, and a second one computes it: seven products in place of
//! five, but no order among blocks to wait for, and no sums of dQ in memory.

mod kernel;
mod postprocess;
mod warp;

use std::sync::LazyLock;

use flashcore_ir::{Chip, Target};
use flashcore_problem::{Name, Problem};
use serde::Deserialize;

use super::{Config, FAMILY, NAME, SCRATCH_REGISTERS};
use crate::args::build;
use crate::attention::gradients::{Backward, Workspace};
use crate::attention::params::{ALIGNMENT, SIXTEEN_BITS, Shape, check_problem, grid, key_blocks, query_blocks};
use crate::attention::preprocess;
use crate::attention::softmax::Rescale;
use crate::card::{Card, Proposal, Score};
use crate::family::{Lever, Values};
use crate::step::{KernelCache, Steps};
use crate::tiles::{STEP, padded, tile_bytes};
use crate::{Refusal, refuse};
use postprocess::SumTiles;

/// Registers of a thread for the part of dQ that is computed at a time.
const DQ_REGISTERS: u32 = 64;

/// Rows and keys of a tile: [`PADDING`](crate::attention::gradients::PADDING) is a multiple.
const TILES: &[u32] = &[16, 32, 64, 128];

/// The levers as the backward pass has them: K and V stay in shared memory, there is no maximum to rescale to, heads of
/// a group share a block whether or not there are few rows, and a block has all rows that see its keys.
pub(super) static LEVERS: LazyLock<[Lever; super::LEVERS.len()]> = LazyLock::new(|| {
    super::LEVERS.map(|lever| match lever.name {
        "rows" | "cols" => lever.only(TILES),
        "stages" => lever.only(&[1, 2, 3]),
        "q_in_registers" | "pack_heads" | "f16_scores" => lever.only(&[0]),
        "rescale" => lever.only(&[Rescale::Never as u32]),
        "splits" => lever.only(&[1]),
        // As forward; a lever that is named nowhere here would change ids of one code.
        "warps" | "kv_warps" | "min_blocks" | "swizzled" | "max_registers" => lever,
        new => unreachable!("lever `{new}` has no values in the backward pass"),
    })
});

/// A config to try, and the head sizes that it is for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackwardRow {
    /// Largest head_dim it is for, of Q and K and of V.
    head_dim: usize,
    /// The same where scores have a soft cap, where lengths are on the device, and in order: all take registers.
    softcap: usize,
    lengths: usize,
    in_order: usize,
    /// Its id is without the family's name.
    config: Config,
    why: &'static str,
    #[serde(skip)]
    pub(crate) place: &'static str,
}

impl BackwardRow {
    fn serves(&self, problem: &Problem) -> bool {
        let head_dim = problem.head_dim().max(problem.head_dim_v());
        head_dim <= self.head_dim
            && (problem.softcap().is_none() || head_dim <= self.softcap)
            && (!problem.has_lengths() || head_dim <= self.lengths)
            && (!problem.deterministic() || head_dim <= self.in_order)
    }
}

/// Rows for a problem, best first; some may be refused. Where a tile has no room in shared memory, the next one is for
/// cards with less.
pub(super) fn proposals(problem: &Problem, card: &'static Card) -> impl Iterator<Item = Proposal<Config>> {
    let rows = card.mma_backward.iter().filter(|row| row.serves(problem));
    rows.map(|row| Proposal::new(row.config, row.why, Some(row.place), Score::Order))
}

/// The defaults of the backward pass, each with the largest head size that it is for.
///
/// ```
/// let ids = flashcore_kernels::mma::backward_defaults().map(|(config, head_dim)| (config.to_string(), head_dim));
/// assert_eq!(ids.last().map(|(_, head_dim)| head_dim), Some(256));
/// ```
pub fn defaults() -> impl Iterator<Item = (Config, usize)> {
    let rows = Card::all().iter().flat_map(|card| &card.mma_backward);
    rows.map(|row| (row.config, row.head_dim))
}

/// Which gradients a main kernel computes.
#[derive(Clone, Copy, PartialEq)]
enum Outputs {
    /// dK and dV of the keys that a block owns, and what these add to dQ.
    All,
    /// The same without dQ.
    DkDv,
    /// dQ of the query rows that a block owns.
    Dq,
}

impl Outputs {
    fn owns_keys(self) -> bool {
        self != Outputs::Dq
    }

    fn adds_dq(self) -> bool {
        self == Outputs::All
    }

    /// The gradients that it stores.
    fn written(self) -> &'static [Name] {
        match self {
            Outputs::All | Outputs::DkDv => &[Name::Dk, Name::Dv],
            Outputs::Dq => &[Name::Dq],
        }
    }

    /// What findings call its products: the scores, their gradients, and the one with dS.
    fn products(self) -> [&'static str; 3] {
        match self {
            Outputs::All | Outputs::DkDv => ["S = K*Q", "dP = V*dO", "dK += dS*Q"],
            Outputs::Dq => ["S = Q*K", "dP = dO*V", "dQ += dS*K"],
        }
    }

    /// Names of the tiles of the side that is owned, and of the one that is walked.
    fn tile_names(self) -> [[&'static str; 2]; 2] {
        let (keys, rows) = (["k_tile", "v_tile"], ["q_tile", "dout_tile"]);
        if self.owns_keys() { [keys, rows] } else { [rows, keys] }
    }
}

/// How the warps of a block share its products.
#[derive(Clone, Copy)]
struct Tiling {
    /// Rows of the owned tile that a warp has, and of the walked one.
    owned_rows: u32,
    walked_rows: u32,
    /// Columns of Q and K in shared memory, and of V and dO: a step for each warp that shares them.
    columns: u32,
    columns_v: u32,
    /// dQ's tile, and the warps that share it.
    dq: SumTiles,
}

impl Tiling {
    fn new(levers: &Config, shape: &Shape) -> Tiling {
        let (rows, warps) = (levers.rows, levers.warps);
        let (all, blocks, steps) = (warps * levers.kv_warps, rows / STEP, padded(shape.head_dim) / STEP);
        // Few products a warp, and then few operands for each.
        let splits = [1, 2, 4, 8, 16].into_iter();
        let splits = splits.filter(|along| blocks % along == 0 && all % along == 0);
        let cost = |along: u32| {
            let (rows, columns) = (blocks / along, steps.div_ceil(all / along));
            (rows * columns, rows + columns)
        };
        let along = splits.min_by_key(|along| cost(*along)).unwrap_or(1);
        let shared = |head_dim: u32, by: u32| padded(head_dim).next_multiple_of(STEP * by);
        let columns = shared(shape.head_dim, warps.max(all / along));
        Tiling {
            owned_rows: levers.cols / levers.kv_warps,
            walked_rows: rows / warps,
            columns,
            columns_v: shared(shape.head_dim_v, warps),
            dq: SumTiles {
                rows,
                columns,
                warps: [along, all / along],
            },
        }
    }

    /// Whether P and dS pass through shared memory.
    fn shares_columns(&self) -> bool {
        self.walked_rows < self.dq.rows
    }

    /// Blocks of 16 rows of a warp's part of dQ that are computed at a time: what takes up to [`DQ_REGISTERS`].
    fn dq_blocks_at_once(&self) -> u32 {
        let (blocks, most) = (self.dq.row_blocks(), DQ_REGISTERS / (self.dq.steps() * STEP / 2));
        let fits = |at_once: &u32| *at_once <= most && blocks.is_multiple_of(*at_once);
        (1..=blocks).rev().find(fits).unwrap_or(1)
    }
}

/// Preprocess, the main kernel, and what makes dQ of its sums or computes it.
pub(super) fn plan(problem: &Problem, config: &Config, chip: Chip, kernels: &KernelCache) -> Result<Steps, Refusal> {
    check_problem(problem, NAME, &SIXTEEN_BITS)?;
    check_levers(config)?;
    let shape = Shape::new(problem, ALIGNMENT, None);
    let tiling = Tiling::new(config, &shape);
    check_registers(config, &tiling, problem.deterministic())?;
    check_shared_memory(config, &tiling, problem.deterministic(), chip.target)?;

    let dq_columns = if problem.deterministic() { 0 } else { tiling.columns };
    let request = Backward::new(problem, Workspace::new(NAME, problem, dq_columns)?);
    let step = |outputs: Outputs| {
        let blocks = if outputs.owns_keys() { key_blocks } else { query_blocks };
        let kernel = kernels.get_or_build((*config, outputs), shape, |(config, outputs), shape| {
            let what = match outputs {
                Outputs::All => "backward",
                Outputs::DkDv => "dkdv",
                Outputs::Dq => "dq",
            };
            let name = shape.kernel_name(&format!("{NAME}/{config}-{what}"));
            build!(name, config.threads(), sixteen_bits shape.dtype => kernel::body(k, &config, shape, outputs))
        })?;
        kernel.step(grid(NAME, [blocks(problem, config.cols), 1, 1])?, &request)
    };
    let (main, then) = if problem.deterministic() {
        (step(Outputs::DkDv)?, step(Outputs::Dq)?)
    } else {
        let sums = postprocess::step(&request, &shape, tiling.dq, kernels)?;
        (step(Outputs::All)?, sums)
    };
    let before = vec![preprocess::step(&request, &shape, kernels)?];
    let then = vec![then];
    Ok(Steps { before, main, then })
}

/// Refuses levers that the backward pass does not have, and tiles that are too large.
fn check_levers(config: &Config) -> Result<(), Refusal> {
    for (lever, given) in LEVERS.iter().zip(Values::from(*config)) {
        if !lever.allows(given) {
            let values: Vec<_> = lever.values.iter().map(|value| lever.print(*value)).collect();
            let allowed = format!("{} in the backward pass", values.join(", "));
            return Err(Refusal::lever(lever.name, lever.print(given), allowed));
        }
    }
    FAMILY.of_backward(false).check(&Values::from(*config))
}

/// Refuses what cannot fit in registers: the sums, with scores and their gradients or with dQ's tile.
fn check_registers(config: &Config, tiling: &Tiling, deterministic: bool) -> Result<(), Refusal> {
    let blocks = tiling.owned_rows / STEP;
    let sums = blocks * (tiling.columns + tiling.columns_v) / config.warps / 2;
    let scores = blocks * tiling.walked_rows;
    let at_once = if deterministic { 0 } else { tiling.dq_blocks_at_once() };
    let dq = at_once * tiling.dq.steps() * STEP / 2;
    let needed = sums + scores.max(dq) + SCRATCH_REGISTERS;
    let remedy = "fewer keys a warp (kv_warps), more warps that share the rows, fewer rows a tile or fewer blocks an SM \
                  need less";
    Refusal::check_registers(needed, config.registers(), remedy, || {
        format!(
            "dK and dV {sums}, scores and their gradients {scores}, dQ {dq} in their place, addresses and operands \
             {SCRATCH_REGISTERS}"
        )
    })
}

/// Refuses what does not fit, or not as often as min_blocks says, before the kernel is written down. The plan checks
/// again against the ledger.
fn check_shared_memory(config: &Config, tiling: &Tiling, deterministic: bool, target: Target) -> Result<(), Refusal> {
    let (rows, cols, stages) = (config.rows, config.cols, config.stages);
    let owned = tile_bytes(cols, tiling.columns, 1) + tile_bytes(cols, tiling.columns_v, 1);
    let walked =
        tile_bytes(rows, tiling.columns, stages) + tile_bytes(rows, tiling.columns_v, kernel::second_stages(config));
    let exchanged = match (tiling.shares_columns(), deterministic) {
        (true, _) => 2,
        (false, false) => 1,
        (false, true) => 0,
    };
    let (q_tile, of_stage) = (tile_bytes(rows, tiling.columns, 1), walked / (2 * stages - 1) * 2);
    let needed = owned + walked + tile_bytes(cols, rows, exchanged) + 8 * rows * stages;
    let limits = target.limits();
    let (room, most) = (limits.shared_per_block_of(config.min_blocks), limits.shared_per_block);
    refuse!((room + 1..=most).contains(&needed) => lever "min_blocks" = config.min_blocks,
        "fewer: a block needs {needed} B of shared memory, and each may have {room}");
    Refusal::check_shared_memory(needed, target, || match (stages, rows) {
        (3.., _) => format!("stages {stages} to {} saves {of_stage} B", stages - 1),
        (2, _) if needed - q_tile <= most => format!("stages 2 to 1 saves {q_tile} B"),
        (_, 32..) => format!("rows {rows} to {} saves {} B", rows / 2, walked / 2),
        _ => format!("cols {cols} to {} saves {} B", cols / 2, owned / 2),
    })
}
