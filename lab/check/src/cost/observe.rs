//! [`Observation`]: what the blocks of a plan do, seen by simulating a few of them.
//!
//! Blocks of attention differ only by the keys that their rows see. So one head of one sequence stands for
//! all, and of its blocks the first, the middle and the last for those between. Long sequences are
//! simulated at two shorter lengths: how often a node runs grows by the same amount with every round of
//! its loop, so the line through two lengths gives it at any other, exact but for a round at the edge.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashcore_ir::{Arg, Chip, Kernel, Node, Target};
use flashcore_kernels::{Config, KernelCache, Plan, Refusal, Step};
use flashcore_problem::{CausalAlign, InputKind, Inputs, POISON, Problem, ProblemError};
use flashcore_sim::{MemorySite, SimError, SimOptions, simulate};
use thiserror::Error;

use super::work::{Work, is_known};
use crate::check::input_bytes;

/// Keys of the shorter of the two lengths that stand for a long sequence, plus its remainder by this; the other
/// has as many more. A multiple of the rows that a block computes, so that the lengths end in the same part of a tile;
/// where keys are split, each split has as many.
fn short_of(config: &Config) -> usize {
    match config {
        Config::Wgmma(config) if !512u32.is_multiple_of(config.rows) => 768 * config.splits as usize,
        Config::Wgmma(config) => 512 * config.splits as usize,
        Config::Mma(config) => 512 * config.splits as usize,
        _ => 512,
    }
}

/// A GPU with an SM for every entry of a list, so that each is a block of its own.
fn roomy(target: Target) -> Chip {
    Chip { target, sms: u32::MAX }
}

/// How often a node ran, in all warps of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NodeRuns {
    /// Executions by warps; no whole number where it was scaled.
    pub(crate) runs: f64,
    /// Passes over shared memory or sectors of global memory, of all executions.
    pub(crate) transactions: f64,
}

/// A block that stands for those around it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Where it is among the blocks of its head: 0 the first, 1 the last. Where blocks work through a list, 0 the second
    /// and 1 the last but one, which are whole tiles; -1 the first and 2 the last.
    pub(crate) place: f64,
    /// By node, of a whole block.
    pub(crate) runs: Vec<NodeRuns>,
}

/// What the blocks of a plan do, whatever card they run on.
#[derive(Clone, Debug)]
pub struct Observation {
    /// How it is computed.
    pub config: Config,
    /// What was asked.
    pub problem: Problem,
    /// Bytes of all tensors, each counted once: what L2 must hold for the kernels to find all of it there.
    pub footprint_bytes: u64,
    /// By step of the plan.
    pub(crate) steps: Vec<SeenStep>,
}

/// What the blocks of a step do.
#[derive(Clone, Debug)]
pub(crate) struct SeenStep {
    pub(crate) kernel: Arc<Kernel>,
    /// Blocks of the launch.
    pub(crate) blocks: u64,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// Registers a thread for all values that live at a time, in the order the kernel was written in: within a
    /// tenth of what ptxas gives most kernels.
    pub(crate) live_registers: u32,
    /// In the order of their places; at least one.
    pub(crate) samples: Vec<Sample>,
    /// What the accesses of each line cost, in one of the blocks that were simulated.
    pub(crate) memory: Vec<MemorySite>,
    /// Blocks of one head; the launch has several times as many.
    pub(crate) blocks_a_head: u64,
    /// What SMs are given one after another: blocks, or where blocks stay and work through a list, its entries.
    pub(crate) turns: u64,
    /// Whether they do.
    pub(crate) has_list: bool,
    /// What each block of the launch does, in blocks of the simulated head: 1 unless a block serves several tiles.
    pub(crate) work_a_block: f64,
}

/// Why the cost of a plan cannot be told.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CostError {
    /// The config does not serve the small problem that stands for the whole.
    #[error("the problem that stands for this one in the cost model is refused: {0}")]
    Refused(#[from] Refusal),
    /// There is no such small problem.
    #[error("no smaller problem stands for this one: {0}")]
    Problem(#[from] ProblemError),
    /// The simulator cannot run it.
    #[error("the simulator cannot run this plan: {0}")]
    Simulator(#[from] SimError),
    /// The model does not know what an instruction costs.
    #[error("the cost model does not know `{instruction}` yet")]
    Unknown {
        /// The instruction, as PTX spells it.
        instruction: String,
    },
    /// The launch has a buffer that belongs to no tensor of a problem.
    #[error("the launch has a buffer `{0}`, which is no tensor of a problem; buffers are q, k, v, out, lse, workspace")]
    Buffer(&'static str),
}

impl Observation {
    /// Simulates a few blocks of a plan.
    ///
    /// # Errors
    /// Where the plan cannot be simulated, or its problem has features that no smaller one stands for.
    pub fn of(plan: &Plan) -> Result<Observation, CostError> {
        Observation::with_cache(plan, &KernelCache::default())
    }

    /// The same, taking kernels from a cache if they are there.
    ///
    /// # Errors
    /// As [`Observation::of`].
    pub fn with_cache(plan: &Plan, kernels: &KernelCache) -> Result<Observation, CostError> {
        plan.steps().try_for_each(|step| refuse_unknown(&step.kernel))?;
        let head = Head::of(plan, kernels)?;
        let seen = match shorter_lengths(&plan.problem, short_of(&plan.config)) {
            None => simulated(&head.plan)?,
            Some((short, longer)) => {
                let at = |len| -> Result<Vec<Simulated>, CostError> {
                    let problem = one_head(&plan.problem, head.query_heads, Some(len))?;
                    simulated(&Plan::with_cache(&problem, &plan.config, roomy(plan.target), kernels)?)
                };
                let along = (plan.problem.seq_len_kv() - short) as f64 / (longer - short) as f64;
                let pairs = at(short)?.into_iter().zip(at(longer)?);
                pairs
                    .map(|(short, longer)| extrapolated(short, longer, along))
                    .collect()
            }
        };
        let steps = plan.steps().zip(head.plan.steps()).zip(seen);
        let step = |((step, of_head), seen): ((&Step, &Step), Simulated)| SeenStep {
            // The head's kernel is the one whose nodes were counted.
            kernel: of_head.kernel.clone(),
            blocks: step.launch.blocks(),
            has_list: is_persistent(step),
            turns: match is_persistent(step) {
                true => (head.copies * of_head.launch.blocks() as f64).round() as u64,
                false => step.launch.blocks(),
            },
            threads: step.launch.threads(),
            shared_bytes: step.launch.dynamic_shared_bytes.max(step.kernel.ledger().total_bytes()),
            live_registers: seen.registers,
            samples: seen.samples,
            memory: seen.memory,
            blocks_a_head: of_head.launch.blocks(),
            work_a_block: match is_persistent(step) {
                true => 1.0,
                false => head.copies * of_head.launch.blocks() as f64 / step.launch.blocks() as f64,
            },
        };
        let mut buffers = BTreeMap::new();
        for buffer in plan.steps().flat_map(|step| &step.launch.buffers) {
            let bytes = buffers.entry(buffer.name).or_insert(0u64);
            *bytes = (*bytes).max(buffer.bytes);
        }
        Ok(Observation {
            config: plan.config,
            problem: plan.problem.clone(),
            footprint_bytes: buffers.values().sum(),
            steps: steps.map(step).collect(),
        })
    }

    /// All work of all launches.
    pub fn total_work(&self) -> Work {
        let mut total = Work::default();
        self.steps.iter().for_each(|step| total.add(&step.total_work(), 1.0));
        total
    }
}

impl SeenStep {
    /// The work of a whole block of each sample.
    pub(crate) fn work(&self) -> Vec<Work> {
        let works = self.samples.iter().map(|sample| work_of(&self.kernel, &sample.runs));
        works.collect()
    }

    fn total_work(&self) -> Work {
        let works = self.work();
        let mut head = Work::default();
        for block in 0..self.blocks_a_head {
            for (sample, share) in self.mixture(block) {
                head.add(&works[sample], share);
            }
        }
        let mut total = Work::default();
        total.add(&head, self.turns as f64 * self.work_a_block / self.blocks_a_head as f64);
        total
    }

    /// Which samples stand for a block of a head, with their shares: the one or two whose places are around it.
    pub(crate) fn mixture(&self, block: u64) -> [(usize, f64); 2] {
        let blocks = self.blocks_a_head.max(1);
        let block = block % blocks;
        let place = match (self.has_list, blocks) {
            (true, _) if block == 0 => -1.0,
            (true, _) if block == blocks - 1 => 2.0,
            (true, _) => (block - 1) as f64 / (blocks - 3).max(1) as f64,
            (false, 1) => 0.0,
            (false, _) => block as f64 / (blocks - 1) as f64,
        };
        let last = self.samples.len() - 1;
        match self
            .samples
            .iter()
            .position(|sample| sample.place >= place)
            .unwrap_or(last)
        {
            0 => [(0, 1.0), (0, 0.0)],
            after => {
                let (low, high) = (self.samples[after - 1].place, self.samples[after].place);
                let share = ((place - low) / (high - low)).clamp(0.0, 1.0);
                [(after - 1, 1.0 - share), (after, share)]
            }
        }
    }
}

/// Whether blocks stay and work through a list that comes with the launch.
fn is_persistent(step: &Step) -> bool {
    step.launch.args.iter().any(|arg| matches!(arg, Arg::Table(_)))
}

/// Refuses a kernel with an instruction whose cost is not modelled.
fn refuse_unknown(kernel: &Kernel) -> Result<(), CostError> {
    let mut unknown = None;
    kernel.for_each_inst(&mut |inst, _| {
        if unknown.is_none() && !is_known(inst) {
            unknown = Some(flashcore_ir::ptx::mnemonic(inst));
        }
    });
    unknown.map_or(Ok(()), |instruction| Err(CostError::Unknown { instruction }))
}

/// The plan of one head that stands for all, and how many of it make the whole.
struct Head {
    plan: Plan,
    query_heads: usize,
    copies: f64,
}

impl Head {
    /// One query head, if the launch is that many times its blocks; else the query heads that share K and V.
    fn of(plan: &Plan, kernels: &KernelCache) -> Result<Head, CostError> {
        let problem = &plan.problem;
        let heads = problem.batch() * problem.num_heads();
        let attempt = |query_heads: usize| -> Result<Head, CostError> {
            let small = one_head(problem, query_heads, None)?;
            Ok(Head {
                plan: Plan::with_cache(&small, &plan.config, roomy(plan.target), kernels)?,
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

/// The problem with one sequence and one K/V head, perhaps of another length.
fn one_head(problem: &Problem, query_heads: usize, seq_len_kv: Option<usize>) -> Result<Problem, ProblemError> {
    let len_kv = seq_len_kv.unwrap_or(problem.seq_len_kv());
    let len_q = match problem.seq_len_q() == problem.seq_len_kv() {
        true => len_kv,
        false => problem.seq_len_q(),
    };
    let mut builder = Problem::builder()
        .heads(query_heads, 1)
        .seq_len_q(len_q)
        .seq_len_kv(len_kv)
        .head_dim(problem.head_dim())
        .head_dim_v(problem.head_dim_v())
        .dtype(problem.dtype())
        .mask(problem.mask())
        .offsets(problem.q_offset(), problem.kv_offset())
        .softmax_scale(problem.softmax_scale())
        .return_lse(problem.return_lse());
    if let Some(cap) = problem.softcap() {
        builder = builder.softcap(cap);
    }
    builder.build()
}

/// Two lengths of K/V on whose line the problem's length lies, if it is long and its blocks' work is a line in it.
fn shorter_lengths(problem: &Problem, unit: usize) -> Option<(usize, usize)> {
    let (q, kv) = (problem.seq_len_q(), problem.seq_len_kv());
    let mask = problem.mask();
    let edge = mask.window_left.is_some()
        || mask.window_right.is_some_and(|right| right > 0)
        || problem.q_offset() != 0
        || problem.kv_offset() != 0;
    let short = unit + kv % unit;
    let longer = short + unit;
    // Rows of a short block of queries must all keep their keys.
    let keeps_rows = q == kv || mask.is_full() || (q <= short && mask.align == CausalAlign::BottomRight);
    (!edge && keeps_rows && kv > longer).then_some((short, longer))
}

/// What a few blocks of a step showed.
struct Simulated {
    samples: Vec<Sample>,
    memory: Vec<MemorySite>,
    registers: u32,
}

/// A few blocks of each step of a plan of one head. Steps are simulated each for itself, on whatever is in their
/// buffers: only how often instructions run is looked at.
fn simulated(plan: &Plan) -> Result<Vec<Simulated>, CostError> {
    let inputs = Inputs::generate(&plan.problem, InputKind::Normal, 0);
    plan.steps().map(|step| simulated_step(step, &inputs)).collect()
}

/// The first, the middle and the last block of a step; one block if it has only one. Where blocks work through a list
/// five: the first or the last tile may be a part of one, and stands for itself alone.
fn simulated_step(step: &Step, inputs: &Inputs) -> Result<Simulated, CostError> {
    let blocks = step.launch.blocks();
    let last = blocks.saturating_sub(1);
    let mut chosen: Vec<(u64, f64)> = Vec::new();
    if is_persistent(step) {
        let second = 1.min(last);
        let of_list = [0, second, blocks / 2, last.saturating_sub(1).max(second), last];
        chosen.extend(of_list.into_iter().zip([-1.0, 0.0, 0.5, 1.0, 2.0]));
    } else {
        let mut of_grid = vec![0, blocks / 2, last];
        of_grid.dedup();
        let place = |block: u64| if last == 0 { 0.0 } else { block as f64 / last as f64 };
        chosen.extend(of_grid.into_iter().map(|block| (block, place(block))));
    }
    let mut buffers = Vec::new();
    for spec in &step.launch.buffers {
        buffers.push(match spec.name {
            "out" | "lse" | "workspace" => vec![POISON; spec.bytes as usize],
            name => input_bytes(inputs, name).ok_or(CostError::Buffer(name))?,
        });
    }
    let mut seen = Simulated {
        samples: Vec::new(),
        memory: Vec::new(),
        registers: 0,
    };
    let mut seen_blocks: BTreeMap<u64, Vec<NodeRuns>> = BTreeMap::new();
    for (block, place) in chosen {
        if let Some(runs) = seen_blocks.get(&block) {
            let runs = runs.clone();
            seen.samples.push(Sample { place, runs });
            continue;
        }
        let options = SimOptions {
            memory_counts: true,
            only_block: Some(block),
            ..SimOptions::default()
        };
        let report = simulate(&step.kernel, &step.launch, &mut buffers, &options)?;
        // A block's cluster runs with it.
        let cluster = f64::from(step.launch.cluster.iter().product::<u32>().max(1));
        let runs = report.nodes.iter().map(|node| NodeRuns {
            runs: node.warps as f64 / cluster,
            transactions: node.transactions as f64 / cluster,
        });
        let runs: Vec<NodeRuns> = runs.collect();
        seen.registers = report.registers;
        seen.memory = report.memory;
        seen_blocks.insert(block, runs.clone());
        seen.samples.push(Sample { place, runs });
    }
    Ok(seen)
}

/// The line through two lengths, `along` times their distance from the first.
fn extrapolated(short: Simulated, longer: Simulated, along: f64) -> Simulated {
    let line = |a: f64, b: f64| (a + along * (b - a)).max(0.0);
    let last = short.samples.len().saturating_sub(1);
    let mut samples = Vec::new();
    for (i, long) in longer.samples.iter().enumerate() {
        // A short length may have fewer blocks than samples: its last one then stands for the others.
        let Some(short) = short.samples.get(i.min(last)) else {
            continue;
        };
        let runs = short.runs.iter().zip(&long.runs).map(|(a, b)| NodeRuns {
            runs: line(a.runs, b.runs),
            transactions: line(a.transactions, b.transactions),
        });
        samples.push(Sample {
            place: long.place,
            runs: runs.collect(),
        });
    }
    Simulated {
        samples,
        memory: longer.memory,
        registers: longer.registers,
    }
}

/// The work of a block whose nodes ran so often.
fn work_of(kernel: &Kernel, runs: &[NodeRuns]) -> Work {
    fn walk(nodes: &[Node], runs: &mut std::slice::Iter<'_, NodeRuns>, work: &mut Work) {
        for node in nodes {
            let Some(ran) = runs.next() else { return };
            match node {
                Node::Inst { inst, .. } => {
                    let each = ran.transactions / ran.runs.max(1.0);
                    if ran.runs > 0.0 {
                        work.add(&Work::of(inst, each), ran.runs);
                    }
                }
                Node::BreakIf { condition, .. } => work.add(&Work::of_branch(condition.uniform), ran.runs),
                Node::If {
                    condition,
                    then,
                    otherwise,
                    ..
                } => {
                    work.add(&Work::of_branch(condition.uniform), ran.runs);
                    walk(then, runs, work);
                    walk(otherwise, runs, work);
                }
                Node::Loop { body, .. } => walk(body, runs, work),
            }
        }
    }
    let mut work = Work::default();
    walk(kernel.body(), &mut runs.iter(), &mut work);
    work
}
