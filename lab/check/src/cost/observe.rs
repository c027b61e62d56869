//! [`Observation`]: counts what the blocks of a plan do by simulating a few of them.
//!
//! Blocks of attention differ only in the keys that their rows see: one head of one sequence
//! represents all, and its first, middle and last block those between. Long sequences are simulated
//! at two shorter lengths: executions grow linearly with the length, so a line through the two is
//! exact except for one iteration at the edge.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashcore_ir::{Arg, Chip, Kernel};
use flashcore_kernels::{Config, KernelCache, Plan, Step};
use flashcore_problem::{CausalAlign, InputKind, Inputs, Problem, ProblemBuilder};
use flashcore_sim::{Class, InstructionCount, MemorySite, SimOptions, SimReport, simulate};

use super::axes::Axes;
use super::code::Code;
use super::lines::Accesses;
use super::sm::Sm;
use super::span;
use super::work::Work;
use crate::check::{CheckError, contents};
use crate::saves::step_bytes;

/// The distance of the two lengths that represent a long sequence: a multiple of the rows of a
/// block, so that all lengths end in the same part of a tile; times the splits if keys are split.
fn short_of(config: &Config) -> usize {
    match config {
        Config::Wgmma(config) if !512u32.is_multiple_of(config.rows) => 768 * config.splits as usize,
        Config::Wgmma(config) => 512 * config.splits as usize,
        Config::Mma(config) => 512 * config.splits as usize,
        Config::Scalar(_) | Config::Ladder(_) => 512,
    }
}

/// Instructions of a path that are recorded: those of a block of attention are fewer. Of longer ones the rest is taken
/// to be as slow.
pub(crate) const LONGEST_PATH: usize = 1 << 20;

/// Blocks of a head that the model looks at: more than a head of attention has, and a grid of another compiler's kernel
/// may have 2^31.
const MOST_BLOCKS: u64 = 100_000;

/// Executions of an instruction by all warps of a block, fractional if extrapolated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Runs {
    pub(crate) runs: f64,
    /// Passes over shared memory or sectors of global memory of all executions.
    pub(crate) transactions: f64,
    /// Those of them in shared memory.
    pub(crate) shared: f64,
}

impl Runs {
    /// Of one of `blocks` that were counted together.
    pub(crate) fn of(count: &InstructionCount, blocks: f64) -> Runs {
        Runs {
            runs: count.warps as f64 / blocks,
            transactions: count.transactions as f64 / blocks,
            shared: count.shared as f64 / blocks,
        }
    }
}

/// What a warp of a block executes: the instructions, and a block's executions of each.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) instructions: Arc<[u32]>,
    pub(crate) runs: Arc<[Runs]>,
    /// By which its clocks count: more than one path is a line through two lengths, and one that is recorded in part
    /// stands for all of it.
    pub(crate) weight: f64,
}

/// A block that represents those around it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Position among the blocks of its head: 0 for the first, 1 for the last. For work lists, 0 is
    /// the second and 1 the last but one, which are whole tiles; -1 is the first and 2 the last. Not
    /// used where there are [`Axes`].
    pub(crate) place: f64,
    pub(crate) block: u64,
    /// By instruction.
    pub(crate) runs: Vec<Runs>,
    /// The share of loads that L1 does not have. Of attention's kernels 1: the rates of L2 were fitted so.
    pub(crate) misses: f64,
    pub(crate) paths: Vec<Path>,
    /// By line and class.
    pub(crate) accesses: Vec<Accesses>,
}

impl Sample {
    /// A block of those of a cluster that ran alone.
    pub(crate) fn of(place: f64, block: u64, report: &SimReport, cluster: f64) -> Sample {
        let runs: Vec<Runs> = report
            .instructions
            .iter()
            .map(|count| Runs::of(count, cluster))
            .collect();
        let copies = |site: &MemorySite| {
            let mut others = report.memory.iter();
            site.class == Class::StoreShared && others.any(|of| of.class == Class::CopyAsync && of.line == site.line)
        };
        let accesses = report.memory.iter();
        Sample {
            place,
            block,
            misses: 1.0,
            accesses: accesses.map(|site| Accesses::of(site, copies(site), cluster)).collect(),
            paths: vec![Path {
                instructions: report.path.as_slice().into(),
                runs: runs.as_slice().into(),
                weight: 1.0 + report.unrecorded as f64 / report.path.len().max(1) as f64,
            }],
            runs,
        }
    }

    /// Clocks of one warp that is alone.
    pub(crate) fn chain(&self, code: &Code, sm: &Sm) -> f64 {
        let of = |path: &Path| path.weight * span::clocks(code, path, self.misses, sm);
        self.paths.iter().map(of).sum::<f64>().max(0.0)
    }
}

/// What the blocks of a plan, or of another compiler's kernel, do on any card.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Whether the kernel is of another compiler.
    pub(crate) is_foreign: bool,
    /// Bytes of all tensors, each counted once.
    pub footprint_bytes: u64,
    pub(crate) steps: Vec<SeenStep>,
}

/// What the blocks of a step do.
#[derive(Clone, Debug)]
pub(crate) struct SeenStep {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) code: Arc<Code>,
    /// Blocks of the launch.
    pub(crate) blocks: u64,
    pub(crate) threads: u32,
    /// Blocks of a cluster.
    pub(crate) cluster: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) seen: Simulated,
    pub(crate) blocks_a_head: u64,
    /// What is assigned to SMs: blocks, or for persistent blocks the entries of the work list.
    pub(crate) work_items: u64,
    /// Whether blocks are persistent and work through a list.
    pub(crate) has_list: bool,
    /// Work of a block of the launch in blocks of the simulated head: 1 unless a block has several
    /// tiles.
    pub(crate) work_a_block: f64,
}

/// The counts of a few blocks of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Simulated {
    /// By place; at least one.
    pub(crate) samples: Vec<Sample>,
    /// Of another compiler's kernel: the axes of its grid, on which the samples are.
    pub(crate) axes: Option<Axes>,
    /// Cost of the accesses of each line in one block.
    pub(crate) memory: Vec<MemorySite>,
    /// Registers per thread of the values that are live at once in program order: within a tenth of
    /// ptxas for most kernels.
    pub(crate) registers: u32,
}

impl Simulated {
    /// The number of the middle block's sample.
    pub(crate) fn middle(&self) -> usize {
        self.axes.as_ref().map_or(self.samples.len() / 2, |axes| axes.middle)
    }
}

impl Observation {
    /// Simulates a few blocks of a plan.
    ///
    /// # Errors
    /// The plan cannot be simulated, or no smaller problem represents its problem: one with lengths has
    /// its blocks' work in a list that a kernel makes of their values.
    pub fn of(plan: &Plan) -> Result<Observation, CheckError> {
        Observation::with_cache(plan, &KernelCache::default())
    }

    /// As [`Observation::of`] with a cache of kernels.
    pub fn with_cache(plan: &Plan, kernels: &KernelCache) -> Result<Observation, CheckError> {
        if plan.problem.has_lengths() {
            return Err(CheckError::Lengths);
        }
        let problem = &without_waits(plan)?;
        let head = Head::of(plan, problem, kernels)?;
        let seen = match shorter_lengths(problem, short_of(&plan.config)) {
            None => simulated(&head.plan)?,
            Some((short, longer)) => {
                let at = |len| -> Result<Vec<Simulated>, CheckError> {
                    let problem = one_head(problem, head.query_heads, Some(len))?;
                    simulated(&Plan::with_cache(&problem, &plan.config, one_tile_each(plan), kernels)?)
                };
                let along = (problem.seq_len_kv() - short) as f64 / (longer - short) as f64;
                let pairs = at(short)?.into_iter().zip(at(longer)?);
                pairs
                    .map(|(short, longer)| extrapolated(short, longer, along))
                    .collect()
            }
        };
        let steps = plan.steps().zip(head.plan.steps()).zip(seen);
        let step = |((step, of_head), seen): ((&Step, &Step), Simulated)| -> Result<SeenStep, CheckError> {
            let (blocks, blocks_a_head) = (step.launch.blocks(), of_head.launch.blocks());
            let blocks_of_heads = head.copies * blocks_a_head as f64;
            let has_list = is_persistent(step);
            let (work_items, work_a_block) = if has_list {
                (blocks_of_heads.round() as u64, 1.0)
            } else {
                (blocks, blocks_of_heads / blocks as f64)
            };
            Ok(SeenStep {
                // The instructions of the head's kernel were counted.
                code: Code::of(&of_head.kernel)?.into(),
                kernel: of_head.kernel.clone(),
                blocks,
                threads: step.launch.threads(),
                cluster: cluster_of(step),
                shared_bytes: step_bytes(step),
                seen,
                blocks_a_head,
                work_items,
                has_list,
                work_a_block,
            })
        };
        let mut buffers = BTreeMap::new();
        for buffer in plan.steps().flat_map(|step| &step.launch.buffers) {
            let bytes = buffers.entry(buffer.name).or_insert(0u64);
            *bytes = (*bytes).max(buffer.bytes);
        }
        Ok(Observation {
            is_foreign: false,
            footprint_bytes: buffers.values().sum(),
            steps: steps.map(step).collect::<Result<_, _>>()?,
        })
    }

    /// All work of all launches.
    pub fn total_work(&self) -> Work {
        let mut total = Work::default();
        for step in &self.steps {
            let works = step.work();
            for (sample, blocks) in step.blocks_of_samples() {
                total.add(&works[sample], blocks);
            }
        }
        total
    }
}

impl SeenStep {
    /// The work of a whole block of each sample.
    pub(crate) fn work(&self) -> Vec<Work> {
        let samples = self.seen.samples.iter();
        samples.map(|sample| self.code.work(sample)).collect()
    }

    /// The samples, with the number of blocks of the launch that they represent.
    pub(crate) fn blocks_of_samples(&self) -> Vec<(usize, f64)> {
        let heads = self.work_items as f64 * self.work_a_block / self.blocks_a_head as f64;
        let (apart, each) = self.representatives();
        let of_head = (0..self.blocks_a_head).step_by(apart as usize);
        let of_head = of_head.flat_map(|block| self.mixture(block));
        let all = of_head.map(|(sample, share)| (sample, share * heads * each));
        if self.seen.axes.is_none() {
            return all.collect();
        }
        let mut blocks = vec![0.0; self.seen.samples.len()];
        all.for_each(|(sample, some)| blocks[sample] += some);
        // Shares below 0 may take away more than there is.
        blocks.into_iter().map(|some: f64| some.max(0.0)).enumerate().collect()
    }

    /// How far the blocks of a head that the model looks at are apart, and how many each of them stands for: one,
    /// unless they are very many.
    pub(crate) fn representatives(&self) -> (u64, f64) {
        let apart = self.blocks_a_head.div_ceil(MOST_BLOCKS).max(1);
        // Each place on an axis is looked at as often.
        let apart = self.seen.axes.as_ref().map_or(apart, |axes| axes.step(apart));
        let looked_at = self.blocks_a_head.div_ceil(apart).max(1);
        (apart, self.blocks_a_head as f64 / looked_at as f64)
    }

    /// The samples that represent a block of a head, with their shares: those on both sides of it.
    pub(crate) fn mixture(&self, block: u64) -> Vec<(usize, f64)> {
        if let Some(axes) = &self.seen.axes {
            return axes.mixture(block);
        }
        let blocks = self.blocks_a_head.max(1);
        let block = block % blocks;
        let place = match (self.has_list, blocks) {
            (true, _) if block == 0 => -1.0,
            (true, _) if block == blocks - 1 => 2.0,
            (true, _) => (block - 1) as f64 / (blocks - 3).max(1) as f64,
            (false, 1) => 0.0,
            (false, _) => block as f64 / (blocks - 1) as f64,
        };
        let samples = &self.seen.samples;
        let after = samples.iter().position(|sample| sample.place >= place);
        match after.unwrap_or(samples.len() - 1) {
            0 => vec![(0, 1.0)],
            after => {
                let (low, high) = (samples[after - 1].place, samples[after].place);
                let share = ((place - low) / (high - low)).clamp(0.0, 1.0);
                vec![(after - 1, 1.0 - share), (after, share)]
            }
        }
    }
}

/// Blocks of a cluster of the launch.
fn cluster_of(step: &Step) -> u32 {
    step.launch.cluster.iter().product::<u32>().max(1)
}

/// Whether blocks are persistent and work through a list of the launch.
fn is_persistent(step: &Step) -> bool {
    step.launch.args.iter().any(|arg| matches!(arg, Arg::Table(_)))
}

/// The plan of one head that represents all, and the number of such heads.
struct Head {
    plan: Plan,
    query_heads: usize,
    copies: f64,
}

/// The plan's architecture with a multiprocessor for every tile: each has a block by itself.
fn one_tile_each(plan: &Plan) -> Chip {
    Chip {
        target: plan.target,
        sms: u32::MAX,
    }
}

impl Head {
    /// One query head if the launch has that multiple of its blocks; otherwise the query heads that
    /// share K and V.
    fn of(plan: &Plan, problem: &Problem, kernels: &KernelCache) -> Result<Head, CheckError> {
        let heads = problem.batch() * problem.num_heads();
        let attempt = |query_heads: usize| -> Result<Head, CheckError> {
            let small = one_head(problem, query_heads, None)?;
            Ok(Head {
                plan: Plan::with_cache(&small, &plan.config, one_tile_each(plan), kernels)?,
                query_heads,
                copies: (heads / query_heads) as f64,
            })
        };
        let single = attempt(1)?;
        if single.plan.main.launch.blocks() as f64 * single.copies == plan.main.launch.blocks() as f64 {
            return Ok(single);
        }
        attempt(problem.group_size())
    }
}

/// The problem of a plan. Blocks of `wgmma` that add to dQ in turns find out from memory which tile is theirs, and wait
/// for others; a block that runs alone has neither. They do the work of those that add in any order.
fn without_waits(plan: &Plan) -> Result<Problem, CheckError> {
    let in_turns = plan.problem.deterministic() && matches!(plan.config, Config::Wgmma(_));
    let builder = ProblemBuilder::from(&plan.problem);
    let builder = builder.deterministic(plan.problem.deterministic() && !in_turns);
    builder.build().map_err(CheckError::NoSmaller)
}

/// The problem with one sequence and one K/V head, and optionally another length.
fn one_head(problem: &Problem, query_heads: usize, seq_len_kv: Option<usize>) -> Result<Problem, CheckError> {
    let len_kv = seq_len_kv.unwrap_or(problem.seq_len_kv());
    let len_q = if problem.seq_len_q() == problem.seq_len_kv() {
        len_kv
    } else {
        problem.seq_len_q()
    };
    let smaller = ProblemBuilder::like(problem).batch(1).heads(query_heads, 1);
    let smaller = smaller.seq_len_q(len_q).seq_len_kv(len_kv);
    smaller.build().map_err(CheckError::NoSmaller)
}

/// Two shorter lengths of K/V to extrapolate from, if the problem is long and its blocks' work is
/// linear in the length.
fn shorter_lengths(problem: &Problem, unit: usize) -> Option<(usize, usize)> {
    let (q, kv) = (problem.seq_len_q(), problem.seq_len_kv());
    let mask = problem.mask();
    let edge = mask.window_left.is_some()
        || mask.window_right.is_some_and(|right| right > 0)
        || problem.q_offset() != 0
        || problem.kv_offset() != 0;
    let short = unit + kv % unit;
    let longer = short + unit;
    // All rows of a short block of queries must keep their keys.
    let keeps_rows = q == kv || mask.is_full() || (q <= short && mask.align == CausalAlign::BottomRight);
    (!edge && keeps_rows && kv > longer).then_some((short, longer))
}

/// Simulates a few blocks of each step of a plan of one head. Each step runs alone on any data,
/// since only executions are counted.
fn simulated(plan: &Plan) -> Result<Vec<Simulated>, CheckError> {
    let inputs = Inputs::generate(&plan.problem, InputKind::Normal, 0);
    plan.steps()
        .map(|step| simulated_step(&plan.problem, step, &inputs))
        .collect()
}

/// Simulates the first, the middle and the last block of a step. For work lists five blocks: the
/// first and the last tile may be partial and represent only themselves.
fn simulated_step(problem: &Problem, step: &Step, inputs: &Inputs) -> Result<Simulated, CheckError> {
    let blocks = step.launch.blocks();
    let last = blocks.saturating_sub(1);
    let chosen: Vec<(u64, f64)> = if is_persistent(step) {
        let second = 1.min(last);
        let of_list = [0, second, blocks / 2, last.saturating_sub(1).max(second), last];
        of_list.into_iter().zip([-1.0, 0.0, 0.5, 1.0, 2.0]).collect()
    } else {
        let mut of_grid = vec![0, blocks / 2, last];
        of_grid.dedup();
        let place = |block: u64| block as f64 / last.max(1) as f64;
        of_grid.into_iter().map(|block| (block, place(block))).collect()
    };
    let buffers = step.launch.buffers.iter().map(|spec| contents(problem, inputs, spec));
    let mut buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let mut seen = Simulated::default();
    for (block, place) in chosen {
        // A short work list has a block at several places.
        if let Some(same) = seen.samples.iter().find(|sample| sample.block == block) {
            let sample = Sample { place, ..same.clone() };
            seen.samples.push(sample);
            continue;
        }
        let options = SimOptions {
            memory_counts: true,
            path: LONGEST_PATH,
            only_block: Some(block),
            ..SimOptions::default()
        };
        let report = simulate(&step.kernel, &step.launch, &mut buffers, &options)?;
        // All blocks of its cluster run with it.
        seen.samples
            .push(Sample::of(place, block, &report, f64::from(cluster_of(step))));
        (seen.registers, seen.memory) = (report.registers, report.memory);
    }
    Ok(seen)
}

/// Extrapolates from two lengths to `along` times their distance from the first.
fn extrapolated(short: Simulated, longer: Simulated, along: f64) -> Simulated {
    let line = |a: f64, b: f64| (a + along * (b - a)).max(0.0);
    let last = short.samples.len().saturating_sub(1);
    let mut samples = Vec::new();
    for (i, long) in longer.samples.iter().enumerate() {
        // A short length may have fewer blocks than samples: its last one represents the others.
        let Some(short) = short.samples.get(i.min(last)) else {
            continue;
        };
        let runs = short.runs.iter().zip(&long.runs).map(|(a, b)| Runs {
            runs: line(a.runs, b.runs),
            transactions: line(a.transactions, b.transactions),
            shared: line(a.shared, b.shared),
        });
        let weighed = |paths: &[Path], weight: f64| -> Vec<Path> {
            let paths = paths.iter().cloned();
            paths
                .map(|path| Path {
                    weight: weight * path.weight,
                    ..path
                })
                .collect()
        };
        samples.push(Sample {
            place: long.place,
            block: long.block,
            misses: long.misses,
            runs: runs.collect(),
            accesses: Accesses::extrapolated(&short.accesses, &long.accesses, line),
            paths: [weighed(&short.paths, 1.0 - along), weighed(&long.paths, along)].concat(),
        });
    }
    Simulated {
        samples,
        axes: None,
        memory: longer.memory,
        registers: longer.registers,
    }
}
