//! Family `mma`: FlashAttention on the tensor cores that every GPU since Ampere has (`mma.sync`).
//!
//! [`Config`] holds the levers; [`kernel`](self) reads top to bottom like the algorithm. Problems it does
//! not serve (f32, rows that do not start at multiples of 16 bytes) it refuses; family `scalar` serves those.

mod defaults;
mod epilogue;
mod kernel;
mod place;
mod ring;
mod space;
mod stage;
mod warp;

use std::fmt;

use flashcore_ir::{Kernel, Target};
use flashcore_problem::{DType, Problem};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::Refusal;
use crate::params::{Shape, launch, row_strides};
use crate::plan::{KernelCache, Step};
use crate::stage::StopAfter;
use crate::tiles::{padded, tile_bytes};
use crate::{combine, parts};

pub use defaults::{Proposal, Size, defaults, proposals};
pub use space::SPACE;

/// What addresses and strides must be multiples of, bytes: what one asynchronous copy moves.
pub const ALIGNMENT: u32 = 16;

/// The family's name.
pub const NAME: &str = "mma";

/// Elements that `mma` multiplies on every target from sm_80 on.
pub(crate) const DTYPES: [DType; 2] = [DType::F16, DType::BF16];

/// One choice of the family's levers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// Query rows a block: more reuse each key more often, fewer give more blocks.
    pub rows: u32,
    /// Keys a tile: more are fewer barriers and longer runs of products, fewer need less of everything.
    pub cols: u32,
    /// Warps that share out the rows.
    pub warps: u32,
    /// Warps that share out the keys of a tile, each group with an output of its own, merged at the end:
    /// for problems with too few rows to fill a GPU.
    pub kv_warps: u32,
    /// Tiles of keys in flight or in use: more hide more latency, and take more shared memory.
    pub stages: u32,
    /// Q's operands stay in registers; otherwise they are read from shared memory for every tile.
    pub q_in_registers: bool,
    /// Shared memory is permuted so that no access conflicts with itself.
    pub swizzled: bool,
    /// When the references of the rows are raised.
    pub rescale: Rescale,
    /// Query heads that share K and V share a block: for few queries a head.
    pub pack_heads: bool,
    /// Blocks an SM that the compiler leaves registers for.
    pub min_blocks: u32,
    /// Blocks that share out the keys of a row, whose parts `combine` merges; 1 for none. More blocks for few
    /// queries and many keys, for a second launch and parts that go through memory. The kernel is the same
    /// for all values above 1: they are its grid's.
    pub splits: u32,
}

/// When the reference of a row, which its exponentials are relative to, follows its largest score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rescale {
    /// At every tile, as in the FlashAttention papers.
    Eager,
    /// When a score is far above it.
    Lazy,
    /// When a probability came out at 2 or more: nobody looks for the largest score before, and such
    /// a tile is computed again.
    Bold,
}

impl Rescale {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rescale::Eager => "eager",
            Rescale::Lazy => "lazy",
            Rescale::Bold => "bold",
        }
    }

    pub(crate) const ALL: [Rescale; 3] = [Rescale::Eager, Rescale::Lazy, Rescale::Bold];
}

/// Values of [`Config::rows`].
pub const ROWS: [u32; 5] = [16, 32, 64, 128, 256];
/// Values of [`Config::cols`].
pub const COLS: [u32; 5] = [16, 32, 64, 128, 256];
/// Values of [`Config::warps`].
pub const WARPS: [u32; 4] = [1, 2, 4, 8];
/// Values of [`Config::kv_warps`].
pub const KV_WARPS: [u32; 4] = [1, 2, 4, 8];
/// Values of [`Config::stages`].
pub const STAGES: [u32; 4] = [2, 3, 4, 5];
/// Values of [`Config::min_blocks`].
pub const MIN_BLOCKS: [u32; 4] = [1, 2, 3, 4];

/// Registers for addresses, counters, bounds and operands on their way, beside those counted one by one.
const SCRATCH_REGISTERS: u32 = 16;

impl Config {
    /// Threads a block.
    pub fn threads(&self) -> u32 {
        32 * self.warps * self.kv_warps
    }

    /// Query rows of a warp.
    pub(crate) fn rows_per_warp(&self) -> u32 {
        self.rows / self.warps
    }

    /// Blocks of 16 rows of a warp.
    pub(crate) fn row_blocks(&self) -> u32 {
        self.rows_per_warp() / 16
    }

    /// Keys of a tile that a warp computes with.
    pub(crate) fn keys_per_warp(&self) -> u32 {
        self.cols / self.kv_warps
    }

    /// The id within the family, such as `m128n64-w4x1-s2-b2-qreg-xor-lazy`.
    pub fn id(&self) -> String {
        self.to_string()
    }

    /// The config of an id, if it is one. Whether its levers are allowed is [`Plan::new`](crate::Plan::new)'s to say.
    pub fn from_id(id: &str) -> Option<Config> {
        let mut parts = id.split('-');
        let number = |part: &str, prefix: &str| part.strip_prefix(prefix)?.parse::<u32>().ok();
        let pair = |part: &str, prefix: &str, between: char| {
            let (a, b) = part.strip_prefix(prefix)?.split_once(between)?;
            Some((a.parse::<u32>().ok()?, b.parse::<u32>().ok()?))
        };
        let (rows, cols) = pair(parts.next()?, "m", 'n')?;
        let (warps, kv_warps) = pair(parts.next()?, "w", 'x')?;
        let stages = number(parts.next()?, "s")?;
        let min_blocks = number(parts.next()?, "b")?;
        let mut flag = |off: &str, on: &str| match parts.next()? {
            part if part == on => Some(true),
            part if part == off => Some(false),
            _ => None,
        };
        let config = Config {
            rows,
            cols,
            warps,
            kv_warps,
            stages,
            min_blocks,
            q_in_registers: flag("qsh", "qreg")?,
            swizzled: flag("lin", "xor")?,
            rescale: Rescale::Eager,
            pack_heads: false,
            splits: 1,
        };
        let rescale = parts.next()?;
        let config = Config {
            rescale: Rescale::ALL.into_iter().find(|rule| rule.name() == rescale)?,
            ..config
        };
        let mut rest = parts.peekable();
        let config = Config {
            pack_heads: rest.next_if_eq(&"gqa").is_some(),
            splits: match rest.next() {
                Some(part) => number(part, "k").filter(|&splits| splits != 1)?,
                None => 1,
            },
            ..config
        };
        rest.next().is_none().then_some(config)
    }

    /// The same levers with as many splits of the keys as a card of `sms` multiprocessors asks for on this problem
    /// ([`fewest_splits`](crate::fewest_splits)), [`Self::min_blocks`] blocks running on each. No share is shorter than
    /// what a block has on its way at once: that takes as long as one tile.
    pub fn split_for(self, problem: &Problem, sms: u32) -> Config {
        let (heads, tiles) = self.heads_and_tiles(problem);
        let slots = u64::from(sms) * u64::from(self.min_blocks);
        let at_once = self.cols * self.stages.saturating_sub(1);
        let shares = most_keys(problem).div_ceil(u64::from(at_once.max(1)));
        Config {
            splits: crate::fewest_splits((heads * tiles) as u64, slots, shares),
            ..self
        }
    }

    /// Heads, packed or not, of all batches, and tiles of rows of each.
    fn heads_and_tiles(&self, problem: &Problem) -> (usize, usize) {
        let (heads, rows) = match self.pack_heads {
            true => (problem.num_kv_heads(), problem.seq_len_q() * problem.group_size()),
            false => (problem.num_heads(), problem.seq_len_q()),
        };
        (heads * problem.batch(), rows.div_ceil(self.rows.max(1) as usize))
    }

    pub(crate) fn remedy_for_shared_memory(&self) -> String {
        if self.stages > 2 {
            return format!("stages {} to {} need less", self.stages, self.stages - 1);
        }
        match self.cols {
            16 => "family scalar needs less".to_string(),
            cols => format!("cols {cols} to {} needs about half", cols / 2),
        }
    }

    fn check_levers(&self) -> Result<(), Refusal> {
        let listed: [(&str, u32, &[u32]); 6] = [
            ("rows", self.rows, &ROWS),
            ("cols", self.cols, &COLS),
            ("warps", self.warps, &WARPS),
            ("kv_warps", self.kv_warps, &KV_WARPS),
            ("stages", self.stages, &STAGES),
            ("min_blocks", self.min_blocks, &MIN_BLOCKS),
        ];
        for (lever, given, values) in listed {
            if !values.contains(&given) {
                let values: Vec<String> = values.iter().map(u32::to_string).collect();
                return Err(Refusal::Lever {
                    lever,
                    given,
                    allowed: values.join(", "),
                });
            }
        }
        let lever = |lever, given, allowed: String| Err(Refusal::Lever { lever, given, allowed });
        if !self.rows.is_multiple_of(16 * self.warps) {
            return lever("warps", self.warps, format!("each needs 16 of the {} rows", self.rows));
        }
        if !self.cols.is_multiple_of(16 * self.kv_warps) {
            return lever(
                "kv_warps",
                self.kv_warps,
                format!("each needs 16 of the {} keys of a tile", self.cols),
            );
        }
        if !(64..=512).contains(&self.threads()) {
            return lever(
                "warps x kv_warps",
                self.threads() / 32,
                "2 to 16 warps a block".to_string(),
            );
        }
        Ok(())
    }

    /// Refuses what cannot fit in registers, whatever the compiler does: what lives through the loop.
    fn check_registers(&self, shape: &Shape) -> Result<(), Refusal> {
        let blocks = self.row_blocks();
        let output = blocks * padded(shape.head_dim_v) / 2;
        let scores = blocks * self.keys_per_warp() / 2;
        let query = match self.q_in_registers {
            true => blocks * padded(shape.head_dim) / 4,
            false => 4 * blocks,
        };
        let state = 6 * blocks;
        let needed = output + scores + query + state + SCRATCH_REGISTERS;
        let allowed = (65_536 / (self.threads() * self.min_blocks) / 8 * 8).min(255);
        if needed <= allowed {
            return Ok(());
        }
        Err(Refusal::Registers {
            needed,
            what: format!(
                "output {output}, scores {scores}, query {query}, row state {state}, addresses and operands \
                 {SCRATCH_REGISTERS}"
            ),
            allowed,
            remedy: "fewer rows a warp, fewer keys a tile, Q in shared memory or fewer blocks an SM need less",
        })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let either = |lever, on, off| if lever { on } else { off };
        write!(
            f,
            "m{}n{}-w{}x{}-s{}-b{}-{}-{}-{}{}{}",
            self.rows,
            self.cols,
            self.warps,
            self.kv_warps,
            self.stages,
            self.min_blocks,
            either(self.q_in_registers, "qreg", "qsh"),
            either(self.swizzled, "xor", "lin"),
            self.rescale.name(),
            either(self.pack_heads, "-gqa", ""),
            match self.splits {
                1 => String::new(),
                splits => format!("-k{splits}"),
            },
        )
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

/// Kernels and launches for a problem, or why not.
pub(crate) fn plan(
    problem: &Problem,
    config: &Config,
    target: Target,
    kernels: &KernelCache,
    stop_after: Option<StopAfter>,
) -> Result<(Step, Vec<Step>), Refusal> {
    check_problem(problem, NAME, &DTYPES)?;
    config.check_levers()?;
    parts::check(problem, config.splits)?;
    let answer = Shape::new(problem, 16, stop_after);
    let split = config.splits > 1;
    let shape = Shape {
        split,
        lse: answer.lse && !split,
        ..answer
    };
    config.check_registers(&shape)?;
    check_shared_memory(config, &shape, target)?;

    // How many splits there are is the grid's to say.
    let name = shape.kernel_name(&crate::Config::Mma(Config { splits: 1, ..*config }));
    let kernel = kernels.get_or_build(&name, |name| {
        Kernel::build(name, config.threads(), |k| match shape.dtype {
            DType::F16 => kernel::body::<f16>(k, config, &shape),
            _ => kernel::body::<bf16>(k, config, &shape),
        })
    })?;

    let (heads, tiles) = config.heads_and_tiles(problem);
    let shared_bytes = kernel.ledger().total_bytes();
    let mut launch = launch(problem, &shape, 0, config.threads(), shared_bytes);
    if split {
        launch.grid = [heads as u32, tiles as u32, config.splits];
        let mut then = Vec::new();
        if stop_after.is_none() {
            parts::add_to_launch(&mut launch, problem, config.splits, true);
            then.push(combine::step(problem, &answer, config.splits, kernels)?);
        }
        return Ok((Step { kernel, launch }, then));
    }
    let together = heads_together(problem, config, heads);
    launch.grid = [together as u32, tiles as u32, (heads / together) as u32];
    Ok((Step { kernel, launch }, Vec::new()))
}

/// K and V of as many heads as run at a time should fit into this share of an L2 cache: half of an H200's.
const L2_BYTES: usize = 24 << 20;

/// How many heads run at a time: a divisor of all of them, with K and V within [`L2_BYTES`] if they can be.
fn heads_together(problem: &Problem, config: &Config, heads: usize) -> usize {
    let row_bytes = problem.dtype().size_bytes() * (problem.head_dim() + problem.head_dim_v());
    let group = if config.pack_heads { 1 } else { problem.group_size() };
    let head_bytes = problem.seq_len_kv() * row_bytes;
    let most = (L2_BYTES / head_bytes.max(1)).max(1) * group;
    (1..=heads)
        .rev()
        .find(|n| heads.is_multiple_of(*n) && *n <= most)
        .unwrap_or(1)
}

/// Refuses what kernels on 16-bit tensor-core operands and 16-byte copies do not serve.
pub(crate) fn check_problem(problem: &Problem, family: &'static str, serves: &[DType]) -> Result<(), Refusal> {
    let unsupported = |what: &str, remedy| Refusal::Unsupported {
        family,
        what: what.to_string(),
        remedy,
    };
    if !serves.contains(&problem.dtype()) {
        let (what, remedy) = match problem.dtype() {
            DType::E4M3 => ("e4m3 tensors", "family wgmma does, on Hopper"),
            DType::F32 => ("f32 tensors", "family scalar does"),
            DType::F16 => ("fp16 tensors", "family mma does"),
            DType::BF16 => ("bf16 tensors", "family mma does"),
        };
        return Err(unsupported(what, remedy));
    }
    if problem.var_len().is_some() {
        return Err(unsupported(
            "variable-length batches (cu_seqlens)",
            "no family serves it yet",
        ));
    }
    let layouts = [
        problem.q_layout(),
        problem.k_layout(),
        problem.v_layout(),
        problem.o_layout(),
    ];
    let bytes = problem.dtype().size_bytes() as u32;
    let odd = layouts
        .iter()
        .flat_map(|layout| row_strides(layout))
        .find(|stride| !(stride * bytes).is_multiple_of(16));
    if let Some(stride) = odd {
        return Err(Refusal::Unsupported {
            family,
            what: format!(
                "rows that start at multiples of {} B (it copies 16 B at a time)",
                bytes * (stride & stride.wrapping_neg())
            ),
            remedy: match problem.dtype() {
                DType::E4M3 => "no family does for e4m3: pad them to multiples of 16 B, or use the CPU",
                _ => "family scalar does",
            },
        });
    }
    Ok(())
}

/// Refuses what does not fit before the kernel is written down. The plan checks again against the ledger.
fn check_shared_memory(config: &Config, shape: &Shape, target: Target) -> Result<(), Refusal> {
    let keys = tile_bytes(config.cols, shape.head_dim, config.stages)
        + tile_bytes(config.cols, shape.head_dim_v, config.stages);
    let needed = tile_bytes(config.rows, shape.head_dim, 1) + keys;
    let allowed = target.limits().shared_per_block;
    if needed <= allowed {
        return Ok(());
    }
    Err(Refusal::SharedMemory {
        needed,
        kind: "dynamic",
        target,
        allowed,
        static_limit: None,
        remedy: config.remedy_for_shared_memory(),
    })
}
