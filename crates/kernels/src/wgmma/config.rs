//! [`Config`]: the levers, their ids, and what they need of registers and shared memory.

use std::fmt;

use flashcore_ir::Target;
use flashcore_problem::{DType, Problem};
use serde::{Deserialize, Serialize};

use super::tiles::{self, padded, slab_cols, tile_bytes};
use crate::Refusal;
use crate::attention::params::{ALIGNMENT, Shape};
use crate::attention::scheduler::{MOST_SPLITS, Tiling};
use crate::attention::softmax::Rescale;
use crate::ids::Parts;

/// Query rows a block: 64 for each warpgroup that computes.
pub(super) const ROWS: [u32; 3] = [64, 128, 192];
/// Keys a tile.
pub(super) const COLS: std::ops::RangeInclusive<u32> = 32..=256;
/// Tiles of keys in shared memory.
pub(super) const STAGES: [u32; 3] = [2, 3, 4];

/// Blocks of a cluster, that share copies of K and V.
pub(super) const CLUSTERS: [u32; 2] = [1, 2];

/// Registers a thread that the loop needs beyond what is counted: addresses, descriptors, bounds.
const SCRATCH_REGISTERS: u32 = 16;

/// Registers a thread that operand A takes for each step of the tensor cores.
const REGISTERS_A_STEP: u32 = 4;

/// Registers that ptxas wants beyond what is counted where Q is held: without them 96 bytes spill (ptxas 13.0, where a part of
/// Q filled what there is).
const REGISTERS_BESIDE_Q: u32 = 4;

/// Registers that ptxas wants beside the sums of one product (12.4 to 13.5: 96 sums go with 128 registers, 100 do not).
const REGISTERS_BESIDE_A_PRODUCT: u32 = 30;

/// Bytes of an element of the output.
pub(super) const OUT_BYTES: u32 = 2;

/// Mbarriers, and what aligning the tiles may cost.
pub(super) const SLACK_BYTES: u32 = 1024;

/// Bytes of shared memory that a block may have.
const ROOM: u32 = Target::Sm90a.limits().shared_per_block;

/// The levers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// Query rows a block, 64 per warpgroup: more rows share each K block, with fewer registers each.
    pub rows: u32,
    /// Keys per K block: more keys need fewer iterations, and more registers and shared memory.
    pub cols: u32,
    /// K blocks, and as many of V, in flight or in use.
    pub stages: u32,
    /// Blocks that go through the same K blocks together: each copies its part to all of them (multicast), so that
    /// the L2 cache is read less. Rows that see fewer keys wait for those that see more.
    #[serde(default = "alone")]
    pub cluster: u32,
    /// Warpgroups hand the tensor cores over (`warp_scheduler_barrier`), so that the softmax of one falls among the
    /// products of others; otherwise chance decides.
    pub take_turns: bool,
    /// When the maxima of the rows are raised. With [`Rescale::Bold`] a warpgroup waits for its products before its
    /// softmax.
    pub rescale: Rescale,
    /// Splits of the keys of a Q tile, merged by `combine`; 1 for none. More work for every SM where there are few tiles
    /// and many keys, for a second launch and partials that go through memory. The kernel is the same for all values
    /// above 1.
    #[serde(default = "alone")]
    pub splits: u32,
    /// Q, or as many of its columns as fit, is loaded to registers once per Q tile, and not read from shared memory
    /// again for each K block.
    #[serde(default)]
    pub q_in_registers: bool,
}

/// For records from before there were clusters or splits.
fn alone() -> u32 {
    1
}

impl Config {
    /// The levers' part of the id, `m128n128-s2-turns-lazy`; in clusters of two `m128n128-s2-c2-turns-lazy`, with Q in
    /// registers `m128n128-s2-turns-lazy-qreg`, with keys in three splits `m128n128-s2-turns-lazy-k3`.
    pub(crate) fn id(&self) -> String {
        self.to_string()
    }

    /// Reads what [`id`](Self::id) writes.
    pub(crate) fn from_id(id: &str) -> Option<Config> {
        let mut parts = Parts::new(id);
        let config = Config {
            rows: parts.number("m")?,
            cols: parts.number("n")?,
            stages: parts.number("s")?,
            cluster: parts.number("c").unwrap_or(1),
            take_turns: parts.word(["free", "turns"])? == 1,
            rescale: Rescale::ALL[parts.word(Rescale::ALL.map(Rescale::name))?],
            q_in_registers: parts.word(["qreg"]).is_some(),
            splits: parts.number("k").unwrap_or(1),
        };
        (config.id() == id).then_some(config)
    }

    /// Warpgroups that compute.
    pub fn warpgroups(&self) -> u32 {
        self.rows / 64
    }

    /// Threads a block: those that compute, and a warpgroup that copies.
    pub fn threads(&self) -> u32 {
        128 * (self.warpgroups() + 1)
    }

    /// Registers of a thread that copies, and of one that computes.
    pub(super) fn registers(&self) -> (u32, u32) {
        match self.warpgroups() {
            1 => (56, 240),
            2 => (40, 232),
            _ => (32, 160),
        }
    }

    /// What the tile scheduler needs to know.
    pub(super) fn tiling(&self) -> Tiling {
        Tiling {
            rows: self.rows,
            cols: self.cols,
            cluster: self.cluster,
            splits: self.splits,
        }
    }

    /// Slabs of output in shared memory at a time: one is written while the other is copied.
    pub(super) fn out_slabs(&self, shape: &Shape) -> u32 {
        (padded(shape.head_dim_v, OUT_BYTES) / slab_cols(shape.head_dim_v, OUT_BYTES)).min(2)
    }

    /// Tiles of Q: two where there is room, so that the next is there when it is wanted.
    pub(super) fn q_stages(&self, shape: &Shape) -> u32 {
        if self.shared_bytes(shape, 2) <= ROOM { 2 } else { 1 }
    }

    fn shared_bytes(&self, shape: &Shape, q_stages: u32) -> u32 {
        let bytes = shape.dtype.size_bytes() as u32;
        let query = tile_bytes(self.rows, shape.head_dim, bytes, q_stages);
        let keys = tile_bytes(self.cols, shape.head_dim, bytes, self.stages);
        let values = match shape.dtype {
            DType::E4M3 => tile_bytes(padded(shape.head_dim_v, OUT_BYTES), self.cols, bytes, self.stages),
            _ => tile_bytes(self.cols, shape.head_dim_v, bytes, self.stages),
        };
        let output = match shape.split {
            true => 0,
            false => OUT_BYTES * self.rows * slab_cols(shape.head_dim_v, OUT_BYTES) * self.out_slabs(shape),
        };
        query + keys + values + output + SLACK_BYTES
    }

    /// The levers that alone bring its shared memory within [`ROOM`], each by the least change that does, and what it
    /// saves.
    pub(crate) fn remedy_for_shared_memory(&self, problem: &Problem) -> String {
        let shape = &Shape::new(problem, ALIGNMENT, None).in_splits(self.splits);
        let bytes = |config: &Config| config.shared_bytes(shape, 1);
        let saved = |other: &Config| bytes(self).saturating_sub(bytes(other));
        let step = if shape.dtype == DType::E4M3 { tiles::step(1) } else { 16 };
        let cols = (*COLS.start()..self.cols)
            .rev()
            .filter(|cols| cols.is_multiple_of(step));
        let rows = ROWS.into_iter().rev().filter(|&rows| rows < self.rows);
        let stages = STAGES.into_iter().rev().filter(|&stages| stages < self.stages);
        let mut remedies = Vec::new();
        let mut offer = |lever, from, mut lower: Vec<(u32, Config)>| {
            lower.retain(|(_, config)| config.check_levers().is_ok() && bytes(config) <= ROOM);
            if let Some((to, config)) = lower.first() {
                remedies.push(format!("{lever} {from} to {to} saves {} B", saved(config)));
            }
        };
        offer(
            "stages",
            self.stages,
            stages.map(|n| (n, Config { stages: n, ..*self })).collect(),
        );
        offer(
            "cols",
            self.cols,
            cols.map(|n| (n, Config { cols: n, ..*self })).collect(),
        );
        offer(
            "rows",
            self.rows,
            rows.map(|n| (n, Config { rows: n, ..*self })).collect(),
        );
        if remedies.is_empty() {
            let (stages, cols) = (STAGES[0], *COLS.start());
            let least = Config { stages, cols, ..*self };
            return format!("stages {stages} with cols {cols} saves {} B", saved(&least));
        }
        remedies.join(", or ")
    }

    pub(super) fn check_levers(&self) -> Result<(), Refusal> {
        let lever = |lever, given, allowed: String| Err(Refusal::Lever { lever, given, allowed });
        if !ROWS.contains(&self.rows) {
            return lever("rows", self.rows, "64, 128, 192".to_string());
        }
        if !COLS.contains(&self.cols) || !self.cols.is_multiple_of(16) {
            return lever("cols", self.cols, "multiples of 16 from 32 to 256".to_string());
        }
        if !STAGES.contains(&self.stages) {
            return lever("stages", self.stages, "2, 3, 4".to_string());
        }
        if !CLUSTERS.contains(&self.cluster) {
            return lever("cluster", self.cluster, "1, 2".to_string());
        }
        if self.take_turns && self.warpgroups() == 1 {
            return lever("turns", 1, "with rows 128 or 192: one warpgroup takes none".to_string());
        }
        if !(1..=MOST_SPLITS).contains(&self.splits) {
            return lever("splits", self.splits, format!("1 to {}", MOST_SPLITS));
        }
        Ok(())
    }

    /// What lives through the loop in a thread's registers, but for Q: how many, and for what.
    fn registers_in_use(&self, shape: &Shape) -> (u32, String) {
        let (scores, output) = (self.cols / 2, padded(shape.head_dim_v, OUT_BYTES) / 2);
        let probabilities = self.cols * shape.dtype.size_bytes() as u32 / 8;
        // Scales are kept as rows are.
        let state = if shape.dtype == DType::E4M3 { 9 } else { 6 };
        let what = format!(
            "output {output}, scores {scores}, probabilities {probabilities}, row state {state}, addresses and descriptors \
             {SCRATCH_REGISTERS}"
        );
        (scores + output + probabilities + state + SCRATCH_REGISTERS, what)
    }

    /// Steps of the tensor cores whose part of Q is held in registers, from the first column on.
    pub(super) fn q_steps_held(&self, shape: &Shape) -> u32 {
        let bytes = shape.dtype.size_bytes() as u32;
        let in_use = self.registers_in_use(shape).0 + REGISTERS_BESIDE_Q;
        let room = self.registers().1.saturating_sub(in_use);
        match self.q_in_registers {
            true => (padded(shape.head_dim, bytes) / tiles::step(bytes)).min(room / REGISTERS_A_STEP),
            false => 0,
        }
    }

    /// Refuses what cannot fit in registers, whatever the compiler does: what lives through the loop.
    pub(super) fn check_registers(&self, shape: &Shape) -> Result<(), Refusal> {
        let (mut needed, mut what) = self.registers_in_use(shape);
        let allowed = self.registers().1;
        if self.q_in_registers && self.q_steps_held(shape) == 0 {
            needed += REGISTERS_A_STEP + REGISTERS_BESIDE_Q;
            what = format!("a step of Q {REGISTERS_A_STEP}, what holding it takes beside {REGISTERS_BESIDE_Q}, {what}");
        }
        if needed <= allowed {
            return self.check_product(padded(shape.head_dim_v, OUT_BYTES) / 2);
        }
        Err(Refusal::Registers {
            needed,
            what,
            allowed,
            remedy: "fewer keys a tile or fewer rows need less",
        })
    }

    /// Refuses a product that ptxas finds no registers for (C7600, C7602): it knows of the registers at launch only,
    /// not of those that warpgroups take from the producer.
    fn check_product(&self, output: u32) -> Result<(), Refusal> {
        let needed = output + REGISTERS_BESIDE_A_PRODUCT;
        let allowed = (65_536 / self.threads()).min(255);
        if needed <= allowed {
            return Ok(());
        }
        Err(Refusal::Registers {
            needed,
            what: format!("output {output}, beside a product's sums {REGISTERS_BESIDE_A_PRODUCT}"),
            allowed,
            remedy: "fewer rows a tile leave more to a thread",
        })
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turns = if self.take_turns { "turns" } else { "free" };
        write!(f, "m{}n{}-s{}-", self.rows, self.cols, self.stages)?;
        if self.cluster > 1 {
            write!(f, "c{}-", self.cluster)?;
        }
        write!(f, "{turns}-{}", self.rescale.name())?;
        if self.q_in_registers {
            f.write_str("-qreg")?;
        }
        if self.splits != 1 {
            write!(f, "-k{}", self.splits)?;
        }
        Ok(())
    }
}
