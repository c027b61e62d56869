//! [`check_plan`]: proves a plan's launches, simulates it under several schedules, and judges its
//! output.

use std::collections::BTreeMap;
use std::time::Instant;

use flashcore_ir::{BufferSpec, Launch, ScalarType};
use flashcore_kernels::{Plan, Refusal, Step};
use flashcore_problem::{Direction, InputKind, Inputs, Lengths, Name, POISON, Problem, ProblemError, Tensor};
use flashcore_sim::{Counts, Finding, Log, MemorySite, SimError, SimOptions, SimReport, TraceRecord, Written};
use thiserror::Error;

use crate::checked::{Checked, Work};
use crate::host_memory::check_host_memory;
use crate::report::{CheckReport, Found, StepSize, Verdict};
use crate::{gate, taps};

/// Whether a buffer is an output of a launch; it starts as poison. What a backward pass reads of the forward pass, O
/// and the log-sum-exp, is not.
fn is_output(spec: &BufferSpec) -> bool {
    spec.written && spec.name != "workspace"
}

/// Options of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Kind of the inputs.
    pub inputs: InputKind,
    /// Seed of the inputs.
    pub seed: u64,
    /// The values of lengths, in place of drawn ones. Where they contradict the problem, the check reports how,
    /// kernels get them as they are, and the output is not compared.
    pub lengths: Option<Lengths<Vec<i32>>>,
    /// Number of schedules.
    pub schedules: u32,
    /// Seed of the first schedule; the others follow it.
    pub first_schedule: u64,
    /// Options of each simulation, but for the seed of its schedule. With
    /// [`SimOptions::first_blocks`] later steps do not run, and the output is not compared. Finished
    /// blocks are counted up to [`CheckOptions::total_blocks`].
    pub sim: SimOptions,
}

impl CheckOptions {
    /// Number of blocks that a clean check of these steps simulates under all schedules.
    pub fn total_blocks<'s>(&self, steps: impl IntoIterator<Item = &'s Step>) -> u64 {
        self.blocks_of(steps.into_iter().map(|step| &step.launch))
    }

    /// The same, of launches.
    pub fn blocks_of<'s>(&self, launches: impl IntoIterator<Item = &'s Launch>) -> u64 {
        let mut total = 0u64;
        for launch in launches {
            let (all, most) = (launch.blocks(), self.sim.first_blocks.unwrap_or(u64::MAX));
            total += all.min(most);
            if most < all {
                break;
            }
        }
        total * u64::from(self.schedules.max(1))
    }
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            inputs: InputKind::Normal,
            seed: 0,
            lengths: None,
            schedules: 1,
            first_schedule: 0,
            sim: SimOptions::default(),
        }
    }
}

/// Why a plan cannot be checked, or its cost not predicted.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum CheckError {
    /// The simulator cannot run it.
    #[error("the simulator cannot run this plan: {0}")]
    Simulator(#[from] SimError),
    /// The reference does not support the problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A buffer of the launch is not a tensor of the problem.
    #[error(
        "the launch has a buffer `{0}`, which is not a tensor of the problem (q, k, v, out, lse, tap, offsets, \
         workspace, dout, dq, dk, dv, or the values of its lengths)"
    )]
    Buffer(&'static str),
    /// The config does not support the small problem that represents the whole in the cost model.
    #[error("the problem that represents this one in the cost model is refused: {0}")]
    Refused(#[from] Refusal),
    /// There is no such small problem.
    #[error("no smaller problem represents this one: {0}")]
    NoSmaller(ProblemError),
    /// The cost model does not know the values of lengths.
    #[error(
        "the time of packed sequences, caches and pages depends on the values of their lengths, which the cost model does \
         not know; predict the same problem with equal lengths"
    )]
    Lengths,
    /// Arguments that the kernel does not take.
    #[error("{0}")]
    Launch(String),
    /// A block that runs alone does not end.
    #[error("blocks of this kernel wait for each other, so the cost model cannot count the work of one")]
    Waits,
    /// The cost model does not cover an instruction.
    #[error("the cost model does not cover `{0}`")]
    Unknown(String),
}

/// Checks a plan: the launch proof of each step, then a simulation of all steps under each schedule
/// on generated inputs. Outputs and workspace start as poison; the output is compared with float64.
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
pub fn check_plan(plan: &Plan, options: &CheckOptions) -> Result<CheckReport, CheckError> {
    check_steps(&Checked::of(plan), options)
}

pub(crate) fn check_steps(plan: &Checked<'_>, options: &CheckOptions) -> Result<CheckReport, CheckError> {
    let mut report = CheckReport {
        problem: plan.problem.to_string(),
        direction: plan.problem.direction(),
        kernel: plan.kernel.clone(),
        target: plan.target,
        tap: plan.tap,
        inputs: options.inputs.name(),
        seed: options.seed,
        schedules: Vec::new(),
        verdict: Verdict::Refused,
        refusals: plan.steps().flat_map(|step| step.refusals(plan.target)).collect(),
        values: Vec::new(),
        findings: Vec::new(),
        gate: None,
        reproducible: plan.reproducible,
        differs_under: None,
        steps: plan
            .steps()
            .map(|step| StepSize {
                kernel: step.kernel().name().to_string(),
                blocks: step.launch().blocks(),
                warps: step.launch().threads().div_ceil(32),
            })
            .collect(),
        only_blocks: options
            .sim
            .first_blocks
            .filter(|&most| plan.steps().any(|step| step.launch().blocks() > most)),
        counts: Counts::default(),
        traces: Vec::new(),
        memory: Vec::new(),
        seconds: 0.0,
    };
    if !report.refusals.is_empty() {
        return Ok(report);
    }
    let inputs = inputs_of(plan, options)?;
    let contradictions = plan.problem.length_findings(&inputs.lengths.as_slices());
    report.values = contradictions.iter().map(ToString::to_string).collect();
    let is_compared = report.only_blocks.is_none() && report.values.is_empty();
    let mut first: Option<Outputs> = None;
    for schedule in (0..options.schedules.max(1)).map(|n| options.first_schedule.wrapping_add(u64::from(n))) {
        let started = Instant::now();
        let (outputs, run) = run(plan, &inputs, schedule, options, &[])?;
        report.seconds += started.elapsed().as_secs_f64();
        report.schedules.push(schedule);
        Found::add(&mut report.findings, run.findings, schedule);
        match &first {
            None => {
                (report.counts, report.traces, report.memory) = (run.counts, run.traces.concat(), run.memory);
                if is_compared {
                    report.gate = Some(outputs.judge(plan, &inputs, options)?);
                }
                first = Some(outputs);
            }
            Some(first) if is_compared && report.differs_under.is_none() && *first != outputs => {
                let gate = outputs.judge(plan, &inputs, options)?;
                // Where last bits may differ, every output must be right.
                if plan.reproducible || !gate.passed() {
                    report.differs_under = Some(schedule);
                }
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
    report.verdict = if !report.findings.is_empty() || !report.values.is_empty() {
        Verdict::Findings
    } else if is_compared && (report.differs_under.is_some() || !report.gate.as_ref().is_some_and(crate::Gate::passed))
    {
        Verdict::Wrong
    } else {
        Verdict::Clean
    };
    Ok(report)
}

/// The inputs of a check, if the host can hold them, the launch's copies, two runs' outputs and what is judged. Rows of
/// lengths that contradict the problem hold what those of drawn lengths do.
fn inputs_of(plan: &Checked<'_>, options: &CheckOptions) -> Result<Inputs, CheckError> {
    let (problem, kind, seed) = (plan.problem, options.inputs, options.seed);
    check_host_memory(problem, 2, 3, plan.workspace_bytes)?;
    let Some(lengths) = &options.lengths else {
        return Ok(Inputs::generate(problem, kind, seed));
    };
    problem.check_given(lengths, Vec::len)?;
    let inputs = Inputs::with_lengths(problem, lengths.clone(), kind, seed);
    Ok(inputs.unwrap_or_else(|_| Inputs {
        lengths: lengths.clone(),
        ..Inputs::generate(problem, kind, seed)
    }))
}

/// Runs a plan whose kernels trace values, and ignores findings. Returns the traces of each step
/// and the judged output. With `nonfinite` (the types of the traced values by step), only NaNs and
/// infinities are traced.
pub(crate) fn observe(
    plan: &Plan,
    options: &CheckOptions,
    nonfinite: &[Vec<ScalarType>],
) -> Result<(Vec<Vec<TraceRecord>>, crate::Gate), CheckError> {
    let plan = &Checked::of(plan);
    let inputs = inputs_of(plan, options)?;
    let (outputs, run) = run(plan, &inputs, options.first_schedule, options, nonfinite)?;
    Ok((run.traces, outputs.judge(plan, &inputs, options)?))
}

/// Runs the steps of a plan elsewhere than in the simulator, on generated inputs and poisoned outputs, and compares
/// what they leave with float64, as [`check_plan`] does. `run` is called for each step in order with the contents of
/// the buffers of its launch, and replaces them by what the step leaves.
///
/// # Errors
/// Those of `run`; [`CheckError`] for inputs that the host cannot hold, or buffers that are not known.
///
/// ```
/// use flashcore_check::{CheckError, CheckOptions, judge_elsewhere};
/// use flashcore_ir::Target;
/// use flashcore_kernels::Plan;
/// use flashcore_problem::Problem;
/// use flashcore_sim::{SimOptions, simulate};
/// let plan = Plan::new(&Problem::named("tiny")?, &"scalar/tiled-m16n16-w4-v16".parse()?, Target::Sm89)?;
/// let gate = judge_elsewhere(&plan, &CheckOptions::default(), |step, contents| {
///     simulate(&step.kernel, &step.launch, contents, &SimOptions::default())?;
///     Ok::<_, CheckError>(())
/// })?;
/// assert!(gate.passed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn judge_elsewhere<E: From<CheckError>>(
    plan: &Plan,
    options: &CheckOptions,
    mut run: impl FnMut(&Step, &mut [Vec<u8>]) -> Result<(), E>,
) -> Result<crate::Gate, E> {
    let checked = &Checked::of(plan);
    let inputs = inputs_of(checked, options)?;
    if let Some(contradiction) = plan.problem.length_findings(&inputs.lengths.as_slices()).pop() {
        return Err(CheckError::from(contradiction).into());
    }
    let mut buffers = buffers_of(checked, &inputs)?;
    for step in plan.steps() {
        let names = || step.launch.buffers.iter().map(|spec| spec.name);
        let taken = names().map(|name| Ok(buffers.remove(name).ok_or(CheckError::Buffer(name))?.bytes));
        let mut contents = taken.collect::<Result<Vec<_>, CheckError>>()?;
        run(step, &mut contents)?;
        for (name, bytes) in names().zip(contents) {
            buffers.entry(name).or_default().bytes = bytes;
        }
    }
    let judged = outputs_of(checked, buffers).judge(checked, &inputs, options);
    Ok(judged.map_err(CheckError::from)?)
}

/// Logs at most `accesses` shared-memory accesses of the first block of a plan's main step, for
/// [`layout::advise`](crate::layout::advise) and [`pictures`](crate::pictures).
pub fn log_of(plan: &Plan, options: &CheckOptions, accesses: usize) -> Result<Log, CheckError> {
    let checked = Checked::of(plan);
    let inputs = inputs_of(&checked, options)?;
    let mut buffers = buffers_of(&checked, &inputs)?;
    // As the steps before would leave what the main step counts in.
    if let Some(workspace) = buffers.get_mut("workspace") {
        workspace.bytes.fill(0);
    }
    let sim_options = SimOptions {
        log: accesses,
        only_block: Some(0),
        seed: options.first_schedule,
        ..options.sim.clone()
    };
    Ok(run_step(Work::Own(&plan.main), &mut buffers, sim_options)?.log)
}

/// The output buffers of a plan after a run.
#[derive(PartialEq)]
struct Outputs(BTreeMap<&'static str, Vec<u8>>);

impl Outputs {
    fn judge(&self, plan: &Checked<'_>, inputs: &Inputs, options: &CheckOptions) -> Result<crate::Gate, ProblemError> {
        let problem = plan.problem;
        if let Some(tapped) = plan.tap.filter(|tap| tap.is_stored()) {
            let [values, offsets] = ["tap", "offsets"].map(|name| self.floats(name).unwrap_or_default());
            let values = taps::finish(problem, tapped, &values, &offsets);
            return gate::gate_tap(problem, inputs, tapped, &values);
        }
        let tensor = |name, layout| {
            let mut tensor = Tensor::poisoned(problem.out_dtype(), layout);
            if let Some(bytes) = self.0.get(name) {
                tensor.bytes_mut().copy_from_slice(bytes);
            }
            tensor
        };
        if problem.direction() == Direction::Backward {
            let outputs = problem.outputs().into_iter();
            let gradients: Vec<Tensor> = outputs.map(|(name, _, layout)| tensor(name, layout)).collect();
            return gate::gate_gradients(problem, inputs, &gradients, options.seed);
        }
        let out = tensor("out", *problem.o_layout());
        let gate = gate(problem, inputs, &out, self.floats("lse").as_deref(), options.seed)?;
        Ok(gate.within(plan.tolerance))
    }

    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let words = self.0.get(name)?.chunks_exact(4);
        Some(words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect())
    }
}

#[derive(Default)]
struct Simulated {
    findings: Vec<Finding>,
    counts: Counts,
    /// By step.
    traces: Vec<Vec<TraceRecord>>,
    memory: Vec<MemorySite>,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// The bytes written so far.
    written: Written,
}

/// Simulates all steps on new buffers. Steps after one with findings do not run, since their inputs
/// are wrong.
fn run(
    plan: &Checked<'_>,
    inputs: &Inputs,
    schedule: u64,
    options: &CheckOptions,
    nonfinite: &[Vec<ScalarType>],
) -> Result<(Outputs, Simulated), CheckError> {
    let mut buffers = buffers_of(plan, inputs)?;
    let mut all = Simulated::default();
    for (index, step) in plan.steps().enumerate() {
        let sim_options = SimOptions {
            nonfinite: nonfinite.get(index).cloned().unwrap_or_default(),
            seed: schedule,
            ..options.sim.clone()
        };
        let report = run_step(step, &mut buffers, sim_options)?;
        all.findings.extend(report.findings);
        all.counts += &report.counts;
        all.traces.push(report.traces);
        all.memory.extend(report.memory);
        let is_cut = options
            .sim
            .first_blocks
            .is_some_and(|most| most < step.launch().blocks());
        if is_cut || !all.findings.is_empty() {
            break;
        }
    }
    Ok((outputs_of(plan, buffers), all))
}

/// What the steps write, of their buffers.
fn outputs_of(plan: &Checked<'_>, mut buffers: BTreeMap<&'static str, Buffer>) -> Outputs {
    let specs = || plan.steps().flat_map(Work::buffers);
    buffers.retain(|name, _| specs().any(|spec| spec.name == *name && is_output(spec)));
    let outputs = buffers.into_iter().map(|(name, buffer)| (name, buffer.bytes));
    Outputs(outputs.collect())
}

fn buffers_of(plan: &Checked<'_>, inputs: &Inputs) -> Result<BTreeMap<&'static str, Buffer>, CheckError> {
    let mut buffers = BTreeMap::new();
    for spec in plan.steps().flat_map(Work::buffers) {
        let buffer: &mut Buffer = buffers.entry(spec.name).or_default();
        buffer.bytes = match spec.name {
            // Steps may use different parts of it.
            "workspace" => vec![POISON; plan.workspace_bytes as usize],
            _ => contents(plan.problem, inputs, spec)?,
        };
    }
    Ok(buffers)
}

/// What launches write.
const KNOWN: [&str; 8] = ["out", "lse", "tap", "offsets", "workspace", "dq", "dk", "dv"];

/// The contents of a buffer before a launch.
pub(crate) fn contents(problem: &Problem, inputs: &Inputs, spec: &BufferSpec) -> Result<Vec<u8>, CheckError> {
    let name = spec.name;
    if name == "workspace" || is_output(spec) {
        let poison = KNOWN.contains(&name).then(|| vec![POISON; spec.bytes as usize]);
        return poison.ok_or(CheckError::Buffer(name));
    }
    let carried = inputs.carried(problem)?;
    let operands = carried.operands();
    let given = Name::from_word(name).and_then(|name| operands.get(name));
    Ok(given.ok_or(CheckError::Buffer(name))?.memory().to_vec())
}

fn run_step(
    step: Work<'_>,
    buffers: &mut BTreeMap<&'static str, Buffer>,
    mut sim_options: SimOptions,
) -> Result<SimReport, CheckError> {
    let specs = step.buffers();
    let mut bytes = Vec::with_capacity(specs.len());
    for (slot, spec) in specs.iter().enumerate() {
        let buffer = buffers.get_mut(spec.name).ok_or(CheckError::Buffer(spec.name))?;
        if spec.name == "workspace" || is_output(spec) {
            sim_options.uninitialized.push(slot);
            sim_options.written.insert(slot, buffer.written.clone());
        }
        bytes.push(std::mem::take(&mut buffer.bytes));
    }
    let report = step.simulate(&mut bytes, &sim_options)?;
    for (slot, (spec, bytes)) in specs.iter().zip(bytes).enumerate() {
        if let Some(buffer) = buffers.get_mut(spec.name) {
            buffer.bytes = bytes;
            if let Some(written) = report.written.get(&slot) {
                buffer.written.add(written);
            }
        }
    }
    Ok(report)
}
