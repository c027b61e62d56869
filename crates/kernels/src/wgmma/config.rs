//! [`Config`]: the levers, their ids, and what they need of registers and shared memory.

use flashcore_ir::Target;
use flashcore_problem::{DType, Direction, Problem};

use super::backward;
use super::tiles::{self, padded, slab_cols, slab_count, tile_bytes};
use crate::attention::params::{ALIGNMENT, Shape};
use crate::attention::query_rows::Packing;
use crate::attention::scheduler::{MAX_ITEM_SPLITS, Tiling};
use crate::attention::softmax::Rescale;
use crate::family::{Family, Values, constraint, levers, with};
use crate::{Refusal, refuse};

const ROWS: [u32; 3] = [64, 128, 192];
const COLS: [u32; 15] = [32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256];
/// Tiles of keys in shared memory.
const STAGES: [u32; 3] = [2, 3, 4];

/// Registers a thread that the loop needs beyond what is counted: addresses, descriptors, bounds.
const SCRATCH_REGISTERS: u32 = 16;

/// Registers a thread that operand A takes for each step of the tensor cores.
const REGISTERS_A_STEP: u32 = 4;

/// Registers that ptxas wants beyond what is counted where Q is held: without them 96 bytes spill (ptxas 13.0, where a
/// part of Q filled what there is).
const REGISTERS_BESIDE_Q: u32 = 4;

/// Registers that the keys a sequence's rows see take where lengths are on the device: without them 8 bytes spill
/// (head_dim 256, ptxas 13.0).
const REGISTERS_OF_LENGTHS: u32 = 4;

/// Registers that ptxas wants in addition to the sums of one product (12.4 to 13.5: 96 sums fit 128 registers, 100 do
/// not).
const REGISTERS_BESIDE_A_PRODUCT: u32 = 30;

/// Bytes of an element of the output.
pub(super) const OUT_BYTES: u32 = 2;

/// Mbarriers, and what aligning the tiles may cost.
pub(super) const SLACK_BYTES: u32 = 1024;

levers! {
    /// One choice of the family's levers.
    Config:
    rows: u32 = number("m", &ROWS),
        "query rows per block (Q tile), 64 per warpgroup: more rows share each K block, with fewer registers each";
    cols: u32 = number("n", &COLS),
        "keys per tile (K block): more keys need fewer iterations, and more registers and shared memory";
    stages: u32 = number("-s", &STAGES),
        "tiles of K, and of V, in shared memory: more tiles hide latency and take more memory";
    /// Each copies its part to all of them, so that the L2 cache is read less. Rows that see fewer keys wait for those
    /// that see more.
    cluster: u32 = optional("-c", &[1, 2]),
        "blocks that share each copy of K and V (multicast): less traffic, but they wait for each other";
    /// The softmax of one then falls among the products of others; otherwise chance decides.
    pingpong: bool = words(&[("false", "-free"), ("true", "-pingpong")]),
        "whether warpgroups hand the tensor cores to each other (warp scheduler barrier)";
    /// With [`Rescale::Speculative`] a warpgroup waits for its products before its softmax.
    rescale: Rescale = words(Rescale::WORDS).searched(Rescale::SEARCHED),
        "when O is rescaled to a new row maximum: at every tile, when it rises far, after the fact; never, in a \
         backward pass";
    q_in_registers: bool = words(&[("false", ""), ("true", "-qreg")]),
        "whether Q, or a part of it, stays in registers, or is read from shared memory for every tile";
    /// The kernel is made for their number.
    pack_heads: bool = words(&[("false", ""), ("true", "-gqa")]),
        "whether query heads that share K and V share a Q tile: for few queries per head";
    /// More work for every SM where there are few tiles and many keys, for a second launch (`combine`) and partials
    /// that go through memory. The kernel is the same for all values above 1.
    splits: u32 = optional("-k", &[1, 2, 3, 4, 8]).up_to(MAX_ITEM_SPLITS),
        "blocks that share the keys of a Q tile (split-KV), backward the Q tiles of a tile of keys: more blocks, but sums \
         in memory";
    /// Two blocks of one warpgroup each overlap without waiting for each other.
    min_blocks: u32 = optional("-b", &[1, 2]),
        "blocks per SM that registers and shared memory are left for";
    /// The producer gets what is left, up to 56.
    max_registers: u32 = optional("-r", &[0, 152, 224]).up_to(240),
        "registers per consumer thread, 0 for as many as there are: what is left goes to the producer";
}

/// The family's levers.
pub const FAMILY: Family = Family {
    name: super::NAME,
    levers: &LEVERS,
    backward: Some(backward::levers),
    constraints: &[
        constraint!("pingpong",
            "with rows of 128 or more (two warpgroups), or without a rescale policy (the backward pass)",
            config => !config.pingpong || config.rows > 64 || config.rescale == Rescale::Never),
        constraint!("min_blocks", "two blocks per SM have 64 rows each: more warpgroups have too few registers",
            config => config.min_blocks == 1 || config.rows == 64),
        constraint!("max_registers", "a multiple of 8, less than a consumer thread has without it, by 56 at most", config => {
            let (most, (_, usual)) = (config.max_registers, role_registers(config.rows, config.min_blocks));
            most == 0 || most.is_multiple_of(8) && (usual - usual.min(56)..usual).contains(&most)
        }),
    ],
    tile: |&values| {
        let Config { rows, cols, .. } = values.into();
        rows * cols
    },
    repeated: None,
};

/// Registers of a producer thread and of a consumer thread, for blocks of `rows` rows and `min_blocks` blocks per SM.
const fn role_registers(rows: u32, min_blocks: u32) -> (u32, u32) {
    match (rows, min_blocks) {
        (64, 1) => (56, 240),
        (64, _) => (40, 216),
        (128, _) => (40, 232),
        _ => (32, 160),
    }
}

/// Registers that a producer thread has use for.
const PRODUCER_REGISTERS: u32 = 56;

impl Config {
    /// Warpgroups that compute.
    pub fn warpgroups(&self) -> u32 {
        self.rows / 64
    }

    /// Threads a block: those that compute, and a warpgroup that copies.
    pub fn threads(&self) -> u32 {
        128 * (self.warpgroups() + 1)
    }

    /// Registers of a producer thread, and of a consumer thread.
    pub(super) fn registers(&self) -> (u32, u32) {
        let (producer, consumer) = role_registers(self.rows, self.min_blocks);
        match self.max_registers {
            0 => (producer, consumer),
            most => {
                let left = producer + self.warpgroups() * (consumer - most.min(consumer));
                (left.min(PRODUCER_REGISTERS), most)
            }
        }
    }

    /// How the heads of a problem share tiles on `sms` SMs. More than [`Packing::MAX_HEADS`] per K/V head are refused.
    pub(super) fn packing(&self, problem: &Problem, sms: u32) -> Packing {
        let packed = || Packing::for_tiles(problem, self.rows, self.splits, sms);
        if self.pack_heads { packed() } else { Packing::NONE }
    }

    /// What the tile scheduler needs to know.
    pub(super) fn tiling(&self, packing: Packing) -> Tiling {
        Tiling {
            rows: self.rows,
            cols: self.cols,
            cluster: self.cluster,
            splits: self.splits,
            packing,
        }
    }

    /// Slabs of output in shared memory at a time: one is written while the other is copied.
    pub(super) fn out_slabs(&self, shape: &Shape) -> u32 {
        slab_count(shape.head_dim_v, OUT_BYTES).min(2)
    }

    /// Tiles of Q: two where there is room, so that the next is there when it is wanted.
    pub(super) fn q_stages(&self, shape: &Shape) -> u32 {
        let has_room = self.shared_bytes(shape, 2) <= self.room();
        if has_room { 2 } else { 1 }
    }

    /// Bytes of shared memory that a block may have.
    fn room(&self) -> u32 {
        Target::Sm90a.limits().shared_per_block_of(self.min_blocks)
    }

    /// Refuses more blocks an SM than its shared memory has room for.
    pub(super) fn check_blocks(&self, shape: &Shape) -> Result<(), Refusal> {
        let (needed, room) = (self.shared_bytes(shape, 1), self.room());
        refuse!(self.min_blocks > 1 && !self.fits_shared_memory(shape) => lever "min_blocks" = self.min_blocks,
            "1: a block needs {needed} B of shared memory, and of two each may have {room}");
        Ok(())
    }

    /// Whether a block has room for its tiles.
    pub(super) fn fits_shared_memory(&self, shape: &Shape) -> bool {
        self.shared_bytes(shape, 1) <= self.room()
    }

    fn shared_bytes(&self, shape: &Shape, q_stages: u32) -> u32 {
        let bytes = shape.dtype.size_bytes() as u32;
        let query = tile_bytes(self.rows, shape.head_dim, bytes, q_stages);
        let keys = tile_bytes(self.cols, shape.head_dim, bytes, self.stages);
        let values = match shape.dtype {
            DType::E4M3 => tile_bytes(padded(shape.head_dim_v, OUT_BYTES), self.cols, bytes, self.stages),
            _ => tile_bytes(self.cols, shape.head_dim_v, bytes, self.stages),
        };
        let out_slabs = if shape.split { 0 } else { self.out_slabs(shape) };
        let output = OUT_BYTES * self.rows * slab_cols(shape.head_dim_v, OUT_BYTES) * out_slabs;
        query + keys + values + output + SLACK_BYTES
    }

    /// The levers that alone bring its shared memory within [`Self::room`], each by the least change that does, and
    /// what it saves.
    pub(crate) fn remedy_for_shared_memory(&self, problem: &Problem) -> String {
        if problem.direction() == Direction::Backward {
            return backward::remedy_for_shared_memory(self, problem);
        }
        let shape = &Shape::new(problem, ALIGNMENT, None).in_splits(self.splits);
        let bytes = |config: &Config| config.shared_bytes(shape, 1);
        let saved = |other: &Config| bytes(self).saturating_sub(bytes(other));
        let step = if shape.is_fp8() { tiles::step(1) } else { 16 };
        let fits = |config: &Config| {
            let is_allowed = FAMILY.allows(&Values::from(*config)) && config.cols.is_multiple_of(step);
            is_allowed && bytes(config) <= config.room()
        };
        let (values, mut remedies) = (Values::from(*self), Vec::new());
        for lever in ["stages", "cols", "rows"] {
            let mut levers = LEVERS.iter().zip(values).enumerate();
            let Some((at, (lever, from))) = levers.find(|(_, (known, _))| known.name == lever) else {
                continue;
            };
            let lower = lever.values.iter().rev().filter(|to| **to < from);
            let mut lower = lower.map(|&to| (to, Config::from(with(&values, at, to))));
            if let Some((to, config)) = lower.find(|(_, config)| fits(config)) {
                remedies.push(format!("{} {from} to {to} saves {} B", lever.name, saved(&config)));
            }
        }
        if remedies.is_empty() {
            let (stages, cols) = (STAGES[0], COLS[0]);
            let least = Config { stages, cols, ..*self };
            return format!("stages {stages} with cols {cols} saves {} B", saved(&least));
        }
        remedies.join(", or ")
    }

    /// What lives through the loop in a thread's registers, but for Q: how many, and for what.
    fn registers_in_use(&self, shape: &Shape) -> [(&'static str, u32); 5] {
        [
            ("output", padded(shape.head_dim_v, OUT_BYTES) / 2),
            ("scores", self.cols / 2),
            ("probabilities", self.cols * shape.dtype.size_bytes() as u32 / 8),
            // Scales are kept as rows are.
            ("row state", if shape.is_fp8() { 9 } else { 6 }),
            ("addresses and descriptors", SCRATCH_REGISTERS),
        ]
    }

    /// Steps of the tensor cores whose part of Q is held in registers, from the first column on.
    pub(super) fn q_steps_held(&self, shape: &Shape) -> u32 {
        let bytes = shape.dtype.size_bytes() as u32;
        let lengths = if shape.listed { REGISTERS_OF_LENGTHS } else { 0 };
        let in_use = self.registers_in_use(shape).map(|(_, registers)| registers);
        let in_use = in_use.iter().sum::<u32>() + REGISTERS_BESIDE_Q + lengths;
        let room = self.registers().1.saturating_sub(in_use);
        let steps = (padded(shape.head_dim, bytes) / tiles::step(bytes)).min(room / REGISTERS_A_STEP);
        if self.q_in_registers { steps } else { 0 }
    }

    /// Refuses what cannot fit in registers, whatever the compiler does: what lives through the loop.
    pub(super) fn check_registers(&self, shape: &Shape) -> Result<(), Refusal> {
        let mut parts = Vec::new();
        if self.q_in_registers && self.q_steps_held(shape) == 0 {
            parts.push(("a step of Q", REGISTERS_A_STEP));
            parts.push(("what holding it takes in addition", REGISTERS_BESIDE_Q));
        }
        parts.extend(self.registers_in_use(shape));
        let remedy = "fewer keys a tile or fewer rows need less";
        Refusal::check_register_parts(&parts, 0, self.registers().1, remedy)?;
        // Of a product that ptxas finds no registers for (C7600, C7602): it knows of the registers at launch only, not
        // of those that warpgroups take from the producer.
        let sums = (padded(shape.head_dim_v, OUT_BYTES) / 2).max(self.cols / 2);
        let parts = [
            ("the larger product's sums", sums),
            ("everything else during it", REGISTERS_BESIDE_A_PRODUCT),
        ];
        let allowed = (65_536 / (self.threads() * self.min_blocks)).min(255);
        Refusal::check_register_parts(&parts, 0, allowed, "fewer rows a tile leave more to a thread")
    }
}
