//! Family `wgmma`: attention on Hopper's asynchronous tensor cores, copies and products (sm_90a).
//!
//! The levers, and what each trades, are the fields of [`Config`]; the algorithm is `kernel.rs`.
//!
//! Sources: FlashAttention-3 (Shah et al. 2024) for the division of labour between warpgroups; the PTX ISA for
//! instructions and descriptors.

mod copies;
mod deal;
mod defaults;
mod epilogue;
mod input;
mod kernel;
mod math;
mod scales;
mod schedule;
mod softmax;
mod space;
mod stage;
mod tiles;
mod transpose;
mod turns;

use std::fmt;

use flashcore_ir::{Arg, BufferSpec, Chip, E4M3, Kernel, Launch, Table, Target, TensorBox};
use flashcore_problem::{DType, Layout, Problem};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::Refusal;
use crate::mma::{Rescale, check_problem};
use crate::params::{Shape, add_rows, row_strides};
use crate::plan::{KernelCache, Step};
use crate::stage::{StopAfter, key_range};
use crate::{combine, parts};
use tiles::{padded, slab_cols, tile_bytes};
use transpose::Transposed;

pub use defaults::{Proposal, defaults, proposals};
pub use space::SPACE;

/// The family's name in ids.
pub const NAME: &str = "wgmma";

/// Bytes that every tensor must start at a multiple of.
pub const ALIGNMENT: u32 = 16;

/// Query rows a block: 64 for each warpgroup that computes.
const ROWS: [u32; 3] = [64, 128, 192];
/// Keys a tile.
const COLS: std::ops::RangeInclusive<u32> = 32..=256;
/// Tiles of keys in shared memory.
const STAGES: [u32; 3] = [2, 3, 4];

/// Blocks of a cluster, that share copies of K and V.
const CLUSTERS: [u32; 2] = [1, 2];

/// Registers a thread that the loop needs beyond what is counted: addresses, descriptors, bounds.
const SCRATCH_REGISTERS: u32 = 16;

/// Registers that ptxas wants beside the sums of one product (12.4 to 13.5: 96 sums go with 128 registers, 100 do not).
const REGISTERS_BESIDE_A_PRODUCT: u32 = 30;

/// Bytes of an element of the output.
const OUT_BYTES: u32 = 2;

/// Mbarriers, and what aligning the tiles may cost.
const SLACK_BYTES: u32 = 1024;

/// Bytes of shared memory that a block may have.
const ROOM: u32 = Target::Sm90a.limits().shared_per_block;

/// The levers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Config {
    /// Query rows a block: a warpgroup computes 64. More of them share each tile of K and V, and take turns at
    /// the tensor cores, but leave each other fewer registers.
    pub rows: u32,
    /// Keys a tile. More means fewer turns, each with its waits, and more registers and shared memory.
    pub cols: u32,
    /// Tiles of keys, and of values, in flight or in use.
    pub stages: u32,
    /// Blocks that go through the same tiles of keys together: each copies its part of a tile to all of them, so that
    /// the L2 cache is read that much less. Rows that see fewer keys wait for those that see more.
    #[serde(default = "alone")]
    pub cluster: u32,
    /// Warpgroups take turns at the tensor cores, so that the softmax of one falls among the products of others;
    /// otherwise chance decides.
    pub take_turns: bool,
    /// When the references of the rows are raised. With [`Rescale::Bold`] a warpgroup waits for its products
    /// before its softmax, which then needs no look at the scores first.
    pub rescale: Rescale,
    /// Parts that the keys of a tile of rows are dealt out in, to be merged by `combine`; 1 for none. More for every SM to
    /// do where there are few tiles and many keys, for a second launch and parts that go through memory. The kernel is
    /// the same for all values above 1.
    #[serde(default = "alone")]
    pub splits: u32,
}

/// Records from before there were clusters, or splits, do not name them.
fn alone() -> u32 {
    1
}

impl Config {
    /// The levers' part of the id, `m128n128-s2-turns-lazy`; in clusters of two `m128n128-s2-c2-turns-lazy`, with keys in three
    /// splits `m128n128-s2-turns-lazy-k3`.
    pub(crate) fn id(&self) -> String {
        self.to_string()
    }

    /// Reads what [`id`](Self::id) writes.
    pub(crate) fn from_id(id: &str) -> Option<Config> {
        let mut parts = id.split('-').peekable();
        let (rows, cols) = parts.next()?.strip_prefix('m')?.split_once('n')?;
        let stages = parts.next()?.strip_prefix('s')?;
        let cluster = match parts.peek()?.strip_prefix('c') {
            Some(blocks) => parts.next().and(blocks.parse().ok())?,
            None => 1,
        };
        let take_turns = match parts.next()? {
            "turns" => true,
            "free" => false,
            _ => return None,
        };
        let rescale = parts.next()?;
        let splits = match parts.next() {
            Some(splits) => splits.strip_prefix('k')?.parse().ok()?,
            None => 1,
        };
        let config = Config {
            rows: rows.parse().ok()?,
            cols: cols.parse().ok()?,
            stages: stages.parse().ok()?,
            cluster,
            take_turns,
            rescale: Rescale::ALL.into_iter().find(|rule| rule.name() == rescale)?,
            splits,
        };
        (parts.next().is_none() && config.id() == id).then_some(config)
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
    fn registers(&self) -> (u32, u32) {
        match self.warpgroups() {
            1 => (56, 240),
            2 => (40, 232),
            _ => (32, 160),
        }
    }

    /// What is baked into its kernel. Split, that leaves the log-sum-exp to `combine`.
    fn shape(&self, problem: &Problem, stop_after: Option<StopAfter>) -> Shape {
        let answer = Shape::new(problem, ALIGNMENT, stop_after);
        let split = self.splits > 1;
        Shape {
            split,
            lse: answer.lse && !split,
            ..answer
        }
    }

    /// Slabs of output in shared memory at a time: one is written while the other is copied.
    fn out_slabs(&self, shape: &Shape) -> u32 {
        (padded(shape.head_dim_v, OUT_BYTES) / slab_cols(shape.head_dim_v, OUT_BYTES)).min(2)
    }

    /// Tiles of Q: two where there is room, so that the next is there when it is wanted.
    fn q_stages(&self, shape: &Shape) -> u32 {
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
        let output = match shape.leaves_parts() {
            true => 0,
            false => OUT_BYTES * self.rows * slab_cols(shape.head_dim_v, OUT_BYTES) * self.out_slabs(shape),
        };
        query + keys + values + output + SLACK_BYTES
    }

    /// The levers that alone bring its shared memory within [`ROOM`], each by the least change that does, and what it
    /// saves.
    pub(crate) fn remedy_for_shared_memory(&self, problem: &Problem) -> String {
        let shape = &self.shape(problem, None);
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

    fn check_levers(&self) -> Result<(), Refusal> {
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
        if !(1..=schedule::MOST_SPLITS).contains(&self.splits) {
            return lever("splits", self.splits, format!("1 to {}", schedule::MOST_SPLITS));
        }
        Ok(())
    }

    /// Refuses what cannot fit in registers, whatever the compiler does: what lives through the loop.
    fn check_registers(&self, shape: &Shape) -> Result<(), Refusal> {
        let (scores, output) = (self.cols / 2, padded(shape.head_dim_v, OUT_BYTES) / 2);
        let probabilities = self.cols * shape.dtype.size_bytes() as u32 / 8;
        // Scales are kept as rows are.
        let state = if shape.dtype == DType::E4M3 { 9 } else { 6 };
        let needed = scores + output + probabilities + state + SCRATCH_REGISTERS;
        let allowed = self.registers().1;
        if needed <= allowed {
            return self.check_product(output);
        }
        Err(Refusal::Registers {
            needed,
            what: format!(
                "output {output}, scores {scores}, probabilities {probabilities}, row state {state}, addresses and \
                 descriptors {SCRATCH_REGISTERS}"
            ),
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
        if self.splits != 1 {
            write!(f, "-k{}", self.splits)?;
        }
        Ok(())
    }
}

/// Kernels and launches for a problem: before, by and after the kernel that does the work. Or why not.
pub(crate) fn plan(
    problem: &Problem,
    config: &Config,
    chip: Chip,
    kernels: &KernelCache,
    stop_after: Option<StopAfter>,
) -> Result<(Vec<Step>, Step, Vec<Step>), Refusal> {
    let unsupported = |what: String, remedy| Refusal::Unsupported {
        family: NAME,
        what,
        remedy,
    };
    check_problem(problem, NAME, &[DType::F16, DType::BF16, DType::E4M3])?;
    if chip.target != Target::Sm90a {
        let remedy = match problem.dtype() {
            DType::E4M3 => "no family serves e4m3 there: use the CPU",
            _ => "family mma does",
        };
        return Err(unsupported(chip.target.to_string(), remedy));
    }
    config.check_levers()?;
    parts::check(problem, config.splits)?;
    let shape = config.shape(problem, stop_after);
    if shape.dtype == DType::E4M3 {
        if !config.cols.is_multiple_of(tiles::step(1)) {
            let allowed = "multiples of 32 for e4m3".to_string();
            return Err(Refusal::Lever {
                lever: "cols",
                given: config.cols,
                allowed,
            });
        }
        if !shape.head_dim_v.is_multiple_of(16) {
            let what = format!("e4m3 values with head_dim {}", shape.head_dim_v);
            return Err(unsupported(what, "a multiple of 16 can be served"));
        }
        if shape.split {
            return Err(Refusal::Lever {
                lever: "splits",
                given: config.splits,
                allowed: "1 for e4m3".to_string(),
            });
        }
    }
    let tiles = problem.seq_len_q().div_ceil(config.rows as usize);
    let key_tiles = problem.seq_len_kv().div_ceil(config.cols as usize);
    let (batch, heads) = (problem.batch(), problem.num_heads());
    if batch.max(heads).max(tiles).max(key_tiles) >= schedule::MOST {
        let what = format!("{batch} batches of {heads} heads of {tiles} by {key_tiles} tiles");
        return Err(unsupported(what, "split the problem: it counts to 65535 of each"));
    }
    config.check_registers(&shape)?;

    // How many splits there are is the table's to say.
    let name = shape.kernel_name(&crate::Config::Wgmma(Config { splits: 1, ..*config }));
    let kernel = kernels.get_or_build(&name, |name| {
        Kernel::build(name, config.threads(), |k| match shape.dtype {
            DType::F16 => kernel::body::<f16>(k, config, &shape),
            DType::E4M3 => kernel::body::<E4M3>(k, config, &shape),
            _ => kernel::body::<bf16>(k, config, &shape),
        })
    })?;
    let (blocks, table) = deal::table(problem, config, &key_range(problem, stop_after), chip.sms);
    let mut launch = Launch {
        grid: [blocks, 1, 1],
        block: [config.threads(), 1, 1],
        cluster: [config.cluster, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        buffers: Vec::new(),
        args: Vec::new(),
    };
    let dtype = problem.dtype();
    add_tensor(&mut launch, &kernel, dtype, "q", problem.q_layout())?;
    add_tensor(&mut launch, &kernel, dtype, "k", problem.k_layout())?;
    let before = match shape.dtype {
        DType::E4M3 => {
            add_transposed(&mut launch, &kernel, Transposed::new(problem, config.cols))?;
            vec![transpose::step(problem, config.cols, kernels)?]
        }
        _ => {
            add_tensor(&mut launch, &kernel, dtype, "v", problem.v_layout())?;
            Vec::new()
        }
    };
    let mut then = Vec::new();
    if shape.leaves_parts() {
        parts::add_to_launch(&mut launch, problem, config.splits, true);
        launch.args.push(Arg::U32(config.splits));
        let answer = Shape::new(problem, ALIGNMENT, stop_after);
        then.push(combine::step(problem, &answer, config.splits, kernels)?);
    } else {
        add_tensor(&mut launch, &kernel, dtype, "out", problem.o_layout())?;
    }
    add_rows(&mut launch, problem, &shape);
    if shape.dtype == DType::E4M3 {
        scales::add_to_launch(&mut launch, problem);
    }
    launch.args.push(Arg::Table(Table::new(table)));
    Ok((before, Step { kernel, launch }, then))
}

/// The boxes of a tensor map of the kernel.
fn boxes(kernel: &Kernel, name: &str) -> Result<TensorBox, Refusal> {
    let boxes = kernel.tensor_box(name);
    boxes.ok_or_else(|| Refusal::Build(format!("the kernel has no tensor map `{name}`")))
}

/// Adds the transposed values and their tensor map, whose dimensions are (keys of a tile, head_dim, tiles, K/V heads).
fn add_transposed(launch: &mut Launch, kernel: &Kernel, values: Transposed) -> Result<(), Refusal> {
    let Transposed {
        cols,
        head_dim_v,
        tiles,
        heads,
    } = values;
    let slot = launch.buffers.len();
    launch.buffers.push(values.buffer(false));
    launch.args.push(Arg::TensorMap(boxes(kernel, "v")?.recipe(
        slot,
        0,
        vec![cols, head_dim_v, tiles, heads],
        vec![cols, cols * head_dim_v, cols * head_dim_v * tiles],
    )));
    Ok(())
}

/// Adds a tensor `[batch, seq, heads, head_dim]` and its tensor map, whose dimensions are (head_dim, seq, heads,
/// batch).
fn add_tensor(
    launch: &mut Launch,
    kernel: &Kernel,
    dtype: DType,
    name: &'static str,
    layout: &Layout,
) -> Result<(), Refusal> {
    let boxes = boxes(kernel, name)?;
    let bytes = match name {
        "out" => OUT_BYTES as usize,
        _ => dtype.size_bytes(),
    };
    let [batch, seq, head] = row_strides(layout);
    let [batches, rows, heads, columns] = layout.shape.map(|n| n as u64);
    let repeated = [(batches, batch), (rows, seq), (heads, head)];
    if repeated.into_iter().any(|(count, stride)| count > 1 && stride == 0) {
        return Err(Refusal::Unsupported {
            family: NAME,
            what: format!("rows of `{name}` that repeat (a stride of 0)"),
            remedy: match dtype {
                DType::E4M3 => "no other family serves e4m3: copy them, or use the CPU",
                _ => "family mma does",
            },
        });
    }
    // A stride that is never taken must be one that could be.
    let stride = |stride: u32| match stride {
        0 => (columns * bytes as u64).next_multiple_of(16),
        stride => u64::from(stride) * bytes as u64,
    };
    let slot = launch.buffers.len();
    launch.buffers.push(BufferSpec {
        name,
        bytes: (layout.span() * bytes) as u64,
        written: name == "out",
        align: ALIGNMENT,
    });
    launch.args.push(Arg::TensorMap(boxes.recipe(
        slot,
        0,
        vec![columns, rows, heads, batches],
        vec![stride(seq), stride(head), stride(batch)],
    )));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_that_the_compiler_has_no_registers_for_is_refused() {
        let outcome = |id: &str, head_dim_v| {
            let problem = Problem::builder()
                .heads(4, 4)
                .seq_len(256)
                .head_dim(64)
                .head_dim_v(head_dim_v);
            let config = Config::from_id(id).unwrap();
            plan(
                &problem.build().unwrap(),
                &config,
                Target::Sm90a.into(),
                &KernelCache::default(),
                None,
            )
            .map(drop)
        };
        // Both sides of what ptxas takes.
        assert_eq!(outcome("m192n32-s2-free-lazy", 192), Ok(()));
        let refused = outcome("m192n32-s2-free-lazy", 200).unwrap_err().to_string();
        assert!(refused.starts_with("at least 134 registers a thread"), "{refused}");
        assert!(refused.contains("at most 128"), "{refused}");
        assert_eq!(outcome("m128n32-s2-free-lazy", 256), Ok(()));
    }

    /// Each refusal with a remedy that serves: the texts, for review.
    #[test]
    fn remedies() {
        use crate::Plan;
        let e4m3 = Problem::builder().heads(4, 2).head_dim(64).dtype(DType::E4M3);
        let wide = Problem::builder().heads(4, 2).head_dim(256);
        let rows = |repeated| {
            let shape = [1, 128, 2, 64];
            let (whole, once) = ([128 * 128, 128, 64, 1], [128 * 128, 128, 0, 1]);
            let [q, k, out] =
                [whole, if repeated { once } else { whole }, whole].map(|strides| Layout { shape, strides });
            Problem::builder()
                .heads(2, 2)
                .seq_len(128)
                .head_dim(64)
                .layouts(q, k, k, out)
        };
        let cases = [
            ("not Hopper", wide.clone(), "m64n64-s2-free-bold", Target::Sm80),
            ("not Hopper, e4m3", e4m3.clone(), "m64n64-s2-free-bold", Target::Sm80),
            (
                "not Hopper, f32",
                wide.clone().dtype(DType::F32),
                "m64n64-s2-free-bold",
                Target::Sm80,
            ),
            (
                "crooked rows, e4m3",
                e4m3.clone().head_dim(72),
                "m64n64-s2-free-bold",
                Target::Sm90a,
            ),
            (
                "crooked values, e4m3",
                e4m3.clone().head_dim_v(72),
                "m64n64-s2-free-bold",
                Target::Sm90a,
            ),
            ("repeated rows", rows(true), "m64n64-s2-free-bold", Target::Sm90a),
            (
                "repeated rows, e4m3",
                rows(true).dtype(DType::E4M3),
                "m64n64-s2-free-bold",
                Target::Sm90a,
            ),
            (
                "too many",
                e4m3.clone().heads(1, 1).seq_len_q(1 << 23),
                "m64n64-s2-free-bold",
                Target::Sm90a,
            ),
            ("cols, e4m3", e4m3, "m64n80-s2-free-bold", Target::Sm90a),
            ("shared memory", wide.clone(), "m128n64-s4-turns-bold", Target::Sm90a),
            (
                "shared memory, three levers",
                wide.clone().head_dim(128),
                "m192n80-s4-turns-lazy",
                Target::Sm90a,
            ),
            (
                "shared memory, no lever alone",
                wide.head_dim_v(64),
                "m192n128-s4-turns-bold",
                Target::Sm90a,
            ),
            ("registers", rows(false), "m64n256-s3-free-bold", Target::Sm90a),
        ];
        let mut text = String::new();
        for (name, builder, id, target) in cases {
            let problem = builder.build().unwrap();
            let config = crate::Config::Wgmma(Config::from_id(id).unwrap());
            let answer = match Plan::new(&problem, &config, target) {
                Ok(_) => "served".to_string(),
                Err(refusal) => refusal.to_string(),
            };
            text += &format!("{name} ({id}): {answer}\n");
        }
        insta::assert_snapshot!(text);
    }

    /// What a refusal names as enough is enough, and saves what it says.
    #[test]
    fn levers_save_what_a_refusal_says() {
        use crate::Plan;
        let wide = Problem::builder()
            .heads(4, 2)
            .head_dim(192)
            .head_dim_v(128)
            .build()
            .unwrap();
        let of = |id: &str| {
            Plan::new(
                &wide,
                &crate::Config::Wgmma(Config::from_id(id).unwrap()),
                Target::Sm90a,
            )
        };
        let Err(Refusal::SharedMemory { needed, remedy, .. }) = of("m128n96-s4-turns-lazy") else {
            panic!("it must be refused for its shared memory");
        };
        let mut offers = 0;
        for offer in remedy.split(", or ") {
            let words: Vec<&str> = offer.split(' ').collect();
            let [lever, _, _, to, _, saved, _] = words[..] else {
                panic!("{offer}");
            };
            let id = match lever {
                "stages" => format!("m128n96-s{to}-turns-lazy"),
                "cols" => format!("m128n{to}-s4-turns-lazy"),
                _ => format!("m{to}n96-s4-turns-lazy"),
            };
            let less = of(&id).unwrap().main.kernel.ledger().total_bytes();
            // Where there is room, Q has a second stage again.
            let query = 2 * 192 * 128;
            let saved: u32 = saved.parse().unwrap();
            let estimated = needed - saved;
            let near = [less, less - query].map(|bytes| bytes.abs_diff(estimated) < SLACK_BYTES);
            assert!(near.contains(&true), "{offer}: {needed} to {less}");
            offers += 1;
        }
        assert!(offers >= 2, "{remedy}");
    }
}
