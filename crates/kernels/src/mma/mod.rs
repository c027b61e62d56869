//! Family `mma`: FlashAttention on the tensor cores that every GPU since Ampere has (`mma.sync`).
//!
//! [`Config`] holds the levers; [`kernel`](self) reads top to bottom like the algorithm. Problems it does
//! not serve (f32, rows that do not start at multiples of 16 bytes) it refuses; family `scalar` serves those.

mod backward;
mod consumer;
mod defaults;
mod epilogue;
mod kernel;
mod producer;
#[cfg(test)]
mod tests;

use flashcore_ir::{Chip, KernelBuilder, Target};
use flashcore_problem::{DType, Direction, KvLengths, Problem, QLengths};

use crate::args::build;
use crate::attention::forward::{Forward, Sharing};
use crate::attention::params::{SIXTEEN_BITS, Shape, check_problem, grid};
use crate::attention::query_rows::TileHeads;
use crate::attention::scheduler::kv_heads_within;
use crate::attention::split;
use crate::attention::stream_k::{Pieces, Schedule};
use crate::family::{Family, Values, constraint, levers};
use crate::plan::Resolver;
use crate::size::is_one_cache;
use crate::step::Steps;
use crate::tiles::{padded, tile_bytes};
use crate::{Refusal, refuse};

pub use crate::attention::params::ALIGNMENT;
pub use crate::attention::softmax::Rescale;
pub(crate) use backward::BackwardRow;
pub use backward::defaults as backward_defaults;
pub use defaults::{defaults, proposals};

/// The family's name.
pub const NAME: &str = "mma";

/// The configs that are the default of some problem, not all of the tens of thousands.
pub(crate) fn listed() -> impl Iterator<Item = Config> {
    let forward = defaults().into_iter().map(|(config, ..)| config);
    forward.chain(backward_defaults().map(|(config, _)| config))
}

levers! {
    /// One choice of the family's levers.
    Config:
    rows: u32 = number("m", &[16, 32, 64, 128, 256]),
        "query rows per block (Q tile): more rows reuse each key more, fewer rows give more blocks";
    cols: u32 = number("n", &[16, 32, 64, 128, 256]),
        "keys per tile (K block): more keys need fewer barriers, fewer keys need less memory and registers";
    warps: u32 = number("-w", &[1, 2, 4, 8]),
        "warps that share the rows of the tile: more warps leave more registers to each";
    /// Each has its own output; they are merged at the end.
    kv_warps: u32 = number("x", &[1, 2, 4, 8]),
        "warps that share the keys of a tile: for problems with too few rows to fill a GPU";
    stages: u32 = number("-s", &[2, 3, 4, 5]),
        "tiles of K and V in shared memory: more tiles hide latency and take more memory";
    min_blocks: u32 = number("-b", &[1, 2, 3, 4]),
        "blocks per SM that the compiler leaves registers for";
    q_in_registers: bool = words(&[("false", "-qsh"), ("true", "-qreg")]),
        "whether Q stays in registers, or is read from shared memory for every tile";
    swizzled: bool = words(&[("false", "-lin"), ("true", "-xor")]),
        "whether shared memory is swizzled, so that accesses have no bank conflicts";
    rescale: Rescale = words(Rescale::WORDS).searched(Rescale::SEARCHED),
        "when O is rescaled to a new row maximum: at every tile, when it rises far, after the fact; never, in a \
         backward pass";
    pack_heads: bool = words(&[("false", ""), ("true", "-gqa")]),
        "whether query heads that share K and V share a block: for few queries per head";
    /// Partials go through memory, and `combine` merges them. The kernel is the same for all values above 1. Where few
    /// queries meet many keys, [`Config::split_for`] says how many.
    splits: u32 = optional("-k", &[1, 2, 3, 4, 8, 16]).up_to(split::MAX_SPLITS),
        "blocks that share the keys of a row (split-KV): more blocks, but a second launch";
    /// Scores have 11 bits then, and beyond 65,504 before the scale the output is NaN. `O += P·V` is accumulated in f32
    /// all the same. bf16 has no such instruction.
    f16_scores: bool = words(&[("false", ""), ("true", "-acc16")]).searched(1),
        "whether scores are accumulated in fp16: fast on consumer cards, not exact; never searched, named only";
    /// `.maxnreg`.
    max_registers: u32 = optional("-r", &[0, 96, 128, 168]).up_to(MAX_REGISTERS),
        "registers per thread at most, 0 for what min_blocks leaves: more blocks per SM than min_blocks can ask for";
}

/// The family's levers. It has tens of thousands of configs: a search draws from them.
pub const FAMILY: Family = Family {
    name: NAME,
    levers: &LEVERS,
    backward: Some(|_| &*backward::LEVERS),
    constraints: &[
        constraint!("warps", "16 rows a warp at least", Config { rows, warps, .. } => rows.is_multiple_of(16 * warps)),
        constraint!("kv_warps", "16 keys of a tile a warp of kv_warps at least",
            Config { cols, kv_warps, .. } => cols.is_multiple_of(16 * kv_warps)),
        constraint!("warps", "2 to 16 warps a block, with kv_warps",
            Config { warps, kv_warps, .. } => (2..=16).contains(&(warps * kv_warps))),
        constraint!("max_registers",
        "only with b1: a multiple of 8 below what a thread has without it, and that no min_blocks leaves",
        config => {
            let (most, left) = (config.max_registers, |blocks| registers_left(config.threads(), blocks));
            let is_new = most.is_multiple_of(8) && most < left(1) && !(2..=4).any(|blocks| left(blocks) == most);
            most == 0 || config.min_blocks == 1 && is_new
        }),
    ],
    tile: |&values| {
        let Config { rows, cols, .. } = values.into();
        rows * cols
    },
    repeated: None,
};

/// Registers for addresses, counters, bounds and operands on their way, in addition to those counted one by one.
const SCRATCH_REGISTERS: u32 = 16;

/// Blocks for the SMs, in per cent, that read as fast as more of them: 96 on 132 SMs took less time than in 2 to 8
/// splits, with 504 to 2,259 keys (run `short-splits-h200`).
const ENOUGH_BLOCKS_PERCENT: u64 = 70;

/// Keys up to which that holds; more were not timed.
const ENOUGH_BLOCKS_KEYS: u64 = 4096;

/// Elements of K that a block reads in the time of merging: of 44 decode steps with 67 to 2,259 keys, those whose
/// blocks save no more by splits took up to 1.4 times as long with them (the same run).
const MERGE_ELEMENTS: u64 = 28_000;

/// The largest cap that is one: a thread has 255 registers at most.
const MAX_REGISTERS: u32 = 248;

/// Registers per thread that the compiler may use if an SM is to hold `min_blocks` blocks of `threads` threads.
fn registers_left(threads: u32, min_blocks: u32) -> u32 {
    let blocks = (threads * min_blocks).max(1);
    (65_536 / blocks / 8 * 8).min(255)
}

impl Config {
    /// Threads a block.
    pub fn threads(&self) -> u32 {
        32 * self.warps * self.kv_warps
    }

    /// Registers a thread that the compiler may take.
    fn registers(&self) -> u32 {
        let left = registers_left(self.threads(), self.min_blocks);
        match self.max_registers {
            0 => left,
            most => left.min(most),
        }
    }

    /// Tells the compiler how many registers it may take.
    fn bound_registers(&self, k: &KernelBuilder) {
        k.min_blocks_per_sm(self.min_blocks);
        if self.max_registers > 0 {
            k.max_registers(self.max_registers);
        }
    }

    pub(crate) fn rows_per_warp(&self) -> u32 {
        self.rows / self.warps
    }

    /// Blocks of 16 rows of a warp.
    pub(crate) fn row_blocks(&self) -> u32 {
        self.rows_per_warp() / 16
    }

    pub(crate) fn keys_per_warp(&self) -> u32 {
        self.cols / self.kv_warps
    }

    /// The same levers with as many splits of the keys as a card of `sms` multiprocessors asks for on this problem
    /// ([`fewest_splits`](crate::fewest_splits)), [`Self::min_blocks`] blocks running on each, or one. No share is
    /// shorter than what a block has on its way at once: that takes as long as one tile. A batch-invariant problem says
    /// how long a split is.
    pub fn split_for(self, problem: &Problem, sms: u32) -> Config {
        let (heads, tiles) = self.heads_and_tiles(problem);
        let slots = u64::from(sms) * u64::from(self.min_blocks);
        if problem.has_lengths() && !is_one_cache(problem) {
            return Config { splits: 1, ..self };
        }
        if let Some(keys) = problem.batch_invariant() {
            let splits = most_keys(problem).div_ceil(keys.next_multiple_of(self.cols as usize) as u64);
            let splits = splits.clamp(1, u64::from(split::MAX_SPLITS)) as u32;
            return Config { splits, ..self };
        }
        let at_once = self.cols * self.stages.saturating_sub(1);
        let shares = most_keys(problem).div_ceil(u64::from(at_once.max(1)));
        let (blocks, sms) = ((heads * tiles) as u64, u64::from(sms));
        // Where two blocks fit an SM, one on nearly each reads as fast and leaves half as much to combine: seen with 1
        // to 66 splits, but not with wider heads (runs `decode-splits-h200` and `decode-splits-2-h200`), with tiles of
        // 32 rows or in pages (run `one-cache-h200`).
        let one_each = sms / blocks.max(1);
        let is_better = self.min_blocks > 1
            && self.rows == 16
            && !matches!(problem.kv_lengths(), KvLengths::Paged { .. })
            && problem.head_dim() <= 128
            && (1..=shares.min(u64::from(split::MAX_SPLITS))).contains(&one_each)
            && 100 * blocks * one_each >= 95 * sms;
        let fewest = || crate::fewest_splits(blocks, slots, shares);
        let splits = if is_better { one_each as u32 } else { fewest() };
        let saved = most_keys(problem) - most_keys(problem) / u64::from(splits);
        let are_enough = (ENOUGH_BLOCKS_PERCENT * sms..=100 * sms).contains(&(100 * blocks))
            && most_keys(problem) <= ENOUGH_BLOCKS_KEYS;
        let is_worse = self.rows == 16 && (are_enough || saved * problem.head_dim() as u64 <= MERGE_ELEMENTS);
        let splits = if is_worse { 1 } else { splits };
        Config { splits, ..self }
    }

    /// The work lists of a problem whose lengths are on the device, made there, where heads are packed: no other tile
    /// reads the same keys then, so it does not matter for the L2 cache which tiles run together. Other tiles have a
    /// block each.
    fn schedule(&self, problem: &Problem, chip: Chip) -> Result<Option<Schedule>, Refusal> {
        if !problem.has_lengths() || !self.pack_heads || self.splits > 1 {
            return Ok(None);
        }
        let pieces = Pieces {
            rows: self.rows,
            cols: self.cols,
            heads: self.tile_heads(),
            least: self.stages - 1,
        };
        Schedule::new(NAME, problem, pieces, chip.sms.saturating_mul(self.min_blocks)).map(Some)
    }

    /// Which heads share a tile.
    fn tile_heads(&self) -> TileHeads {
        if self.pack_heads {
            TileHeads::Dense
        } else {
            TileHeads::One
        }
    }

    /// Heads, packed or not, of all batches, and tiles of rows of each.
    fn heads_and_tiles(&self, problem: &Problem) -> (usize, usize) {
        let of_tiles = self.tile_heads();
        let rows = of_tiles.rows_of(problem, problem.seq_len_q());
        let heads = of_tiles.of_problem(problem) * problem.batch();
        (heads, rows.div_ceil(self.rows.max(1) as usize))
    }

    pub(crate) fn remedy_for_shared_memory(&self) -> String {
        match (self.stages, self.cols) {
            (stages @ 3.., _) => format!("stages {stages} to {} need less", stages - 1),
            (_, 16) => "family scalar needs less".to_string(),
            (_, cols) => format!("cols {cols} to {} needs about half", cols / 2),
        }
    }

    /// Refuses what cannot fit in registers, whatever the compiler does: what lives through the loop.
    fn check_registers(&self, shape: &Shape) -> Result<(), Refusal> {
        let blocks = self.row_blocks();
        let query = if self.q_in_registers {
            padded(shape.head_dim) / 4
        } else {
            4
        };
        let parts = [
            ("output", blocks * padded(shape.head_dim_v) / 2),
            ("scores", blocks * self.keys_per_warp() / 2),
            ("query", blocks * query),
            ("row state", 6 * blocks),
            ("addresses and operands", SCRATCH_REGISTERS),
        ];
        let remedy = "fewer rows a warp, fewer keys a tile, Q in shared memory or fewer blocks an SM need less";
        Refusal::check_register_parts(&parts, 0, self.registers(), remedy)
    }
}

/// The most keys that the rows of a head see together.
fn most_keys(problem: &Problem) -> u64 {
    let keys = problem.seq_len_kv() as u64;
    match (problem.mask().window_left, problem.mask().window_right) {
        (Some(left), Some(right)) => keys.min(u64::from(left) + u64::from(right) + problem.seq_len_q() as u64),
        _ => keys,
    }
}

pub(crate) fn plan(problem: &Problem, config: &Config, with: Resolver<'_>) -> Result<Steps, Refusal> {
    let Resolver { chip, kernels, tap } = with;
    if problem.direction() == Direction::Backward {
        return backward::plan(problem, config, chip, kernels);
    }
    check_problem(problem, NAME, &SIXTEEN_BITS)?;
    FAMILY.check(&Values::from(*config))?;
    config.rescale.check_forward(NAME)?;
    split::check(problem, config.splits)?;
    refuse!(config.f16_scores && problem.dtype() != DType::F16 =>
        NAME, "fp16 problems have it; leave acc16 out of the id", "accumulation in fp16 (acc16) for {}", problem.dtype());
    // Each split of a row that exists stores a partial, which `combine` takes.
    let has_all_rows = problem.q_lengths() == QLengths::Equal && problem.batch_invariant().is_none();
    refuse!(problem.has_lengths() && config.splits > 1 && !has_all_rows => lever "splits" = config.splits,
        "1 where sequences have different numbers of queries, and for batch-invariant caches");
    let schedule = config.schedule(problem, chip)?;
    let several = schedule.is_some() || config.splits > 1;
    let whole = Shape {
        listed: schedule.is_some(),
        ..Shape::new(problem, ALIGNMENT, tap).overlapping(several, chip.target)
    };
    let shape = whole.in_splits(config.splits);
    config.check_registers(&shape)?;
    check_shared_memory(config, &shape, chip.target)?;

    // How many splits there are is the grid's to say.
    let kernel = kernels.get_or_build(Config { splits: 1, ..*config }, shape, |config, shape| {
        let name = shape.kernel_name(&format!("{NAME}/{config}"));
        build!(name, config.threads(), sixteen_bits shape.dtype => kernel::body(k, &config, shape))
    })?;

    let request = Forward::new(problem, Sharing::new(schedule, config.splits));
    let blocks = match (schedule, config.heads_and_tiles(problem)) {
        (Some(schedule), _) => [schedule.grid, 1, 1],
        (None, (heads, tiles)) if shape.split => grid(NAME, [heads, tiles, config.splits as usize])?,
        (None, (heads, tiles)) => {
            let together = heads_together(problem, config, heads);
            grid(NAME, [together, tiles, heads / together])?
        }
    };
    request.steps(kernel.step(blocks, &request)?, &whole, kernels)
}

/// K and V of as many heads as run at a time should fit into this share of an L2 cache: half of an H200's.
const L2_BYTES: usize = 24 << 20;

/// Blocks of a grid's third dimension.
const MAX_GRID_Z: usize = 65_535;

/// How many heads run at a time: a divisor of all of them, with K and V within [`L2_BYTES`] if they can be; all of them
/// if a grid cannot count the groups otherwise.
fn heads_together(problem: &Problem, config: &Config, heads: usize) -> usize {
    let group = if config.pack_heads { 1 } else { problem.group_size() };
    let most = (kv_heads_within(problem, L2_BYTES) * group).max(heads.div_ceil(MAX_GRID_Z));
    let dividing = (1..=heads.min(most)).rev().find(|n| heads.is_multiple_of(*n));
    dividing.filter(|n| heads / n <= MAX_GRID_Z).unwrap_or(heads)
}

/// Refuses what does not fit before the kernel is written down. The plan checks again against the ledger.
fn check_shared_memory(config: &Config, shape: &Shape, target: Target) -> Result<(), Refusal> {
    let keys = tile_bytes(config.cols, shape.head_dim, config.stages)
        + tile_bytes(config.cols, shape.head_dim_v, config.stages);
    let needed = tile_bytes(config.rows, shape.head_dim, 1) + keys;
    Refusal::check_shared_memory(needed, target, || config.remedy_for_shared_memory())
}
