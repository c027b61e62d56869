//! [`check_plan`]: proves a plan, simulates it under many schedules, and judges its answer.

use std::time::Instant;

use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Inputs, POISON, Problem, ProblemError, Tensor};
use flashcore_sim::{Counts, Finding, FindingKind, Line, SimError, SimOptions, SimReport, simulate};
use thiserror::Error;

use crate::proof::{Known, prove};
use crate::report::{CheckReport, Found, Verdict};
use crate::{gate, source};

/// What to check with.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// What the numbers look like.
    pub inputs: InputKind,
    /// Seed of the inputs.
    pub seed: u64,
    /// How many schedules to run under.
    pub schedules: u32,
    /// Seed of the first schedule; the next ones follow it.
    pub first_schedule: u64,
    /// Instructions a warp may execute before it counts as caught in a loop.
    pub max_instructions: u64,
    /// Whether traced values are kept.
    pub trace: bool,
    /// Whether the cost of memory accesses is counted by line (slower).
    pub memory_counts: bool,
    /// Host threads; 0 for one a core. Reports do not depend on it.
    pub host_threads: usize,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            inputs: InputKind::Normal,
            seed: 0,
            schedules: 1,
            first_schedule: 0,
            max_instructions: SimOptions::default().max_instructions,
            trace: false,
            memory_counts: false,
            host_threads: 0,
        }
    }
}

/// Why a plan cannot be checked at all.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CheckError {
    /// The simulator cannot run it.
    #[error("the simulator cannot run this plan: {0}")]
    Simulator(#[from] SimError),
    /// The reference cannot be computed.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The launch has a buffer that belongs to no tensor of a problem.
    #[error("the launch has a buffer `{0}`, which is no tensor of a problem; buffers are q, k, v, out, lse, workspace")]
    Buffer(&'static str),
}

/// Checks a plan: the launch proof, then a simulation under each schedule on generated inputs, with
/// outputs poisoned, compared with float64.
///
/// ```
/// use flashcore_check::{CheckOptions, Verdict, check_plan};
/// use flashcore_ir::Target;
/// use flashcore_kernels::Plan;
/// use flashcore_problem::Problem;
/// let plan = Plan::new(&Problem::named("tiny")?, &"scalar/tiled-m16n16-w4-v16".parse()?, Target::Sm89)?;
/// let report = check_plan(&plan, &CheckOptions { schedules: 5, ..CheckOptions::default() })?;
/// assert_eq!(report.verdict, Verdict::Clean, "{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Where the simulator cannot run the plan, or the reference cannot answer the problem.
pub fn check_plan(plan: &Plan, options: &CheckOptions) -> Result<CheckReport, CheckError> {
    let mut report = CheckReport {
        problem: plan.problem.to_string(),
        kernel: plan.config.to_string(),
        target: plan.target,
        inputs: options.inputs.name(),
        seed: options.seed,
        schedules: Vec::new(),
        verdict: Verdict::Refused,
        refusals: prove(&plan.kernel, &plan.launch, plan.target, Known::default()),
        findings: Vec::new(),
        gate: None,
        differs_under: None,
        blocks: plan.launch.blocks(),
        warps: plan.launch.threads().div_ceil(32),
        counts: Counts::default(),
        traces: Vec::new(),
        memory: Vec::new(),
        seconds: 0.0,
    };
    if !report.refusals.is_empty() {
        return Ok(report);
    }
    let inputs = Inputs::generate(&plan.problem, options.inputs, options.seed);
    let mut first: Option<Answer> = None;
    for schedule in (0..options.schedules.max(1)).map(|n| options.first_schedule + u64::from(n)) {
        let started = Instant::now();
        let (answer, run) = run(plan, &inputs, schedule, options)?;
        report.seconds += started.elapsed().as_secs_f64();
        report.schedules.push(schedule);
        collect(&mut report.findings, run.findings, schedule);
        match &first {
            None => {
                (report.counts, report.traces, report.memory) = (run.counts, run.traces, run.memory);
                report.gate = Some(answer.judge(&plan.problem, &inputs, options.seed)?);
                first = Some(answer);
            }
            Some(first) if report.differs_under.is_none() && !first.same_bits(&answer) => {
                report.differs_under = Some(schedule);
                let gate = answer.judge(&plan.problem, &inputs, options.seed)?;
                if report.gate.as_ref().is_some_and(crate::Gate::passed) {
                    report.gate = Some(gate);
                }
            }
            Some(_) => {}
        }
    }
    report
        .findings
        .sort_by_key(|found| found.finding.line().map(|line| (line.file, line.line, line.column)));
    report.verdict = if !report.findings.is_empty() {
        Verdict::Findings
    } else if report.differs_under.is_some() || !report.gate.as_ref().is_some_and(crate::Gate::passed) {
        Verdict::Wrong
    } else {
        Verdict::Clean
    };
    Ok(report)
}

/// What a kernel wrote.
struct Answer {
    out: Tensor,
    lse: Option<Vec<f32>>,
}

impl Answer {
    fn judge(&self, problem: &Problem, inputs: &Inputs, seed: u64) -> Result<crate::Gate, ProblemError> {
        gate(problem, inputs, &self.out, self.lse.as_deref(), seed)
    }

    fn same_bits(&self, other: &Answer) -> bool {
        let bits = |answer: &Answer| {
            answer
                .lse
                .as_ref()
                .map(|lse| lse.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        self.out.bytes() == other.out.bytes() && bits(self) == bits(other)
    }
}

/// One simulation, on buffers made for it.
fn run(plan: &Plan, inputs: &Inputs, schedule: u64, options: &CheckOptions) -> Result<(Answer, SimReport), CheckError> {
    let mut out = Tensor::poisoned(plan.problem.dtype(), *plan.problem.o_layout());
    let specs = &plan.launch.buffers;
    let mut buffers = Vec::with_capacity(specs.len());
    let mut uninitialized = Vec::new();
    for (slot, spec) in specs.iter().enumerate() {
        let tensor = match spec.name {
            "q" => inputs.q.bytes(),
            "k" => inputs.k.bytes(),
            "v" => inputs.v.bytes(),
            "out" => out.bytes(),
            "lse" | "workspace" => &vec![POISON; spec.bytes as usize],
            other => return Err(CheckError::Buffer(other)),
        };
        if matches!(spec.name, "out" | "lse") {
            uninitialized.push(slot);
        }
        buffers.push(tensor.to_vec());
    }
    let sim_options = SimOptions {
        seed: schedule,
        max_instructions: options.max_instructions,
        trace: options.trace,
        memory_counts: options.memory_counts,
        host_threads: options.host_threads,
        uninitialized,
    };
    let report = simulate(&plan.kernel, &plan.launch, &mut buffers, &sim_options)?;
    let mut lse = None;
    for (spec, bytes) in specs.iter().zip(&buffers) {
        match spec.name {
            "out" => out.bytes_mut().copy_from_slice(bytes),
            "lse" => {
                let words = bytes
                    .chunks_exact(4)
                    .map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]]));
                lse = Some(words.collect());
            }
            _ => {}
        }
    }
    Ok((Answer { out, lse }, report))
}

/// Adds the findings of a schedule to those of the ones before. What the same lines of the kernel do
/// wrong in the same way to the same object is one mistake, whichever of their instructions does it.
fn collect(all: &mut Vec<Found>, findings: Vec<Finding>, schedule: u64) {
    for finding in findings {
        match all.iter_mut().find(|found| same_mistake(&found.finding, &finding)) {
            Some(found) => {
                found.finding.count += finding.count;
                if found.schedules.last() != Some(&schedule) {
                    found.schedules.push(schedule);
                }
            }
            None => {
                let quote = |line: Option<&Line>| line.and_then(|line| source::quote(line.file, line.line));
                all.push(Found {
                    source: quote(finding.line()),
                    other_source: quote(finding.other_line()),
                    finding,
                    schedules: vec![schedule],
                });
            }
        }
    }
}

fn same_mistake(a: &Finding, b: &Finding) -> bool {
    let place = |line: Option<&Line>| line.map(|line| (line.file, line.line));
    let places = |finding: &Finding| (place(finding.line()), place(finding.other_line()));
    let (here, there) = places(b);
    // Of a race either side may come second, as the schedule has it.
    let mirrored = matches!(a.kind, FindingKind::Race | FindingKind::BlockRace) && places(a) == (there, here);
    a.kind == b.kind && a.object == b.object && (places(a) == (here, there) || mirrored)
}
