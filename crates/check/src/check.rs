//! [`check_plan`]: proves a plan, simulates it under many schedules, and judges its answer.

use std::collections::BTreeMap;
use std::time::Instant;

use flashcore_kernels::{Plan, Step};
use flashcore_problem::{InputKind, Inputs, POISON, Problem, ProblemError, Tensor};
use flashcore_sim::{
    Counts, Finding, FindingKind, Line, MemorySite, SimError, SimOptions, SimReport, TraceRecord, Written, simulate,
};
use thiserror::Error;

use crate::proof::{Known, prove};
use crate::report::{CheckReport, Found, StepSize, Verdict};
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

/// Checks a plan: the launch proof of each step, then a simulation of all steps under each schedule on
/// generated inputs, with outputs and workspace poisoned, compared with float64.
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
        refusals: plan
            .steps()
            .flat_map(|step| prove(&step.kernel, &step.launch, plan.target, Known::default()))
            .collect(),
        findings: Vec::new(),
        gate: None,
        differs_under: None,
        steps: plan
            .steps()
            .map(|step| StepSize {
                kernel: step.kernel.name().to_string(),
                blocks: step.launch.blocks(),
                warps: step.launch.threads().div_ceil(32),
            })
            .collect(),
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

/// What simulating all steps of a plan showed.
#[derive(Default)]
struct Simulated {
    findings: Vec<Finding>,
    counts: Counts,
    traces: Vec<TraceRecord>,
    memory: Vec<MemorySite>,
}

/// A tensor or the workspace, and what of it has been written so far.
struct Buffer {
    bytes: Vec<u8>,
    written: Written,
}

/// One simulation of all steps, on buffers made for it. What follows a step with findings is not run: it
/// would be given nonsense.
fn run(plan: &Plan, inputs: &Inputs, schedule: u64, options: &CheckOptions) -> Result<(Answer, Simulated), CheckError> {
    let mut out = Tensor::poisoned(plan.problem.dtype(), *plan.problem.o_layout());
    let mut buffers = BTreeMap::new();
    for spec in plan.steps().flat_map(|step| &step.launch.buffers) {
        let bytes = match spec.name {
            "q" => inputs.q.bytes().to_vec(),
            "k" => inputs.k.bytes().to_vec(),
            "v" => inputs.v.bytes().to_vec(),
            "out" => out.bytes().to_vec(),
            "lse" => vec![POISON; spec.bytes as usize],
            "workspace" => vec![POISON; plan.workspace_bytes() as usize],
            other => return Err(CheckError::Buffer(other)),
        };
        buffers.entry(spec.name).or_insert_with(|| Buffer {
            bytes,
            written: Written::default(),
        });
    }
    let mut all = Simulated::default();
    for step in plan.steps() {
        let report = run_step(step, &mut buffers, schedule, options)?;
        all.findings.extend(report.findings);
        all.counts += &report.counts;
        all.traces.extend(report.traces);
        all.memory.extend(report.memory);
        if !all.findings.is_empty() {
            break;
        }
    }
    if let Some(written) = buffers.get("out") {
        out.bytes_mut().copy_from_slice(&written.bytes);
    }
    let lse = buffers.get("lse").map(|lse| {
        let words = lse.bytes.chunks_exact(4);
        words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
    });
    Ok((Answer { out, lse }, all))
}

/// Runs one step on the buffers that it names.
fn run_step(
    step: &Step,
    buffers: &mut BTreeMap<&'static str, Buffer>,
    schedule: u64,
    options: &CheckOptions,
) -> Result<SimReport, CheckError> {
    let specs = &step.launch.buffers;
    let mut sim_options = SimOptions {
        seed: schedule,
        max_instructions: options.max_instructions,
        trace: options.trace,
        memory_counts: options.memory_counts,
        host_threads: options.host_threads,
        ..SimOptions::default()
    };
    let mut bytes = Vec::with_capacity(specs.len());
    for (slot, spec) in specs.iter().enumerate() {
        let buffer = buffers.get_mut(spec.name).ok_or(CheckError::Buffer(spec.name))?;
        if matches!(spec.name, "out" | "lse" | "workspace") {
            sim_options.uninitialized.push(slot);
            sim_options.written.insert(slot, buffer.written.clone());
        }
        bytes.push(std::mem::take(&mut buffer.bytes));
    }
    let report = simulate(&step.kernel, &step.launch, &mut bytes, &sim_options)?;
    for (slot, (spec, bytes)) in specs.iter().zip(bytes).enumerate() {
        if let Some(buffer) = buffers.get_mut(spec.name) {
            buffer.bytes = bytes;
            report
                .written
                .get(&slot)
                .into_iter()
                .for_each(|w| buffer.written.add(w));
        }
    }
    Ok(report)
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
