//! A trial: one kernel is judged and timed.

use std::slice;

use flashcore::unstable::plans::PlanSummary;
use flashcore::unstable::testing::InputKind;
use flashcore::{Attention, KernelId};
use flashcore_check::{Gate, check_host_memory, gate, gate_gradients};
use flashcore_problem::{Direction, Inputs};

use crate::bed::Drawn;
use crate::defences::{Output, Run};
use crate::gpu::Launching;
use crate::planted::InFinals;
use crate::{BenchError, Built, Case, Measured, Mode, Options, Result, Stand, Trouble, Workbench};

/// What came of a trial.
#[derive(Debug)]
pub struct Tried {
    /// The kernel, and why it was chosen.
    pub plan: PlanSummary,
    /// Its output against float64.
    pub gate: Gate,
    /// Its time on standard normal inputs; `None` if its output is wrong.
    pub measured: Option<Measured>,
}

/// What a trial does, for displays of its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The kernel runs once.
    Running,
    /// Its output is compared with float64.
    Comparing,
    /// It is timed.
    Timing,
}

/// Tries the kernel that `attention` uses for a problem, on its device. `begins` is told of each stage.
///
/// The kernel is bound to tensors between guards, runs once over poisoned outputs exactly as it is timed, and its
/// output for inputs of this kind and seed is compared with the float64 reference; if it is right, the kernel is timed
/// by the protocol, hot. Where the problem has lengths, those that are judged are drawn by the seed
/// ([`random_lengths`](fn@flashcore_problem::random_lengths)), and those that are timed are the case's
/// ([`Case::lengths`]), as in a bench. A backward problem's O and log-sum-exp come from the forward pass on the same
/// device.
///
/// # Errors
/// No kernel serves the problem, plan tables that cannot be read, tensors that cannot be allocated; or why the kernel
/// could not be built, launched or timed, or what it wrote outside its tensors.
pub fn run(
    attention: &Attention,
    case: &Case,
    inputs: (InputKind, u64),
    options: &Options,
    begins: &dyn Fn(Stage),
) -> Result<Tried> {
    let problem = &case.problem;
    // On the host: what is judged, what is drawn to be timed, and on a CPU both places and a snapshot.
    let (inputs_held, outputs_held) = match attention.device().target() {
        Some(_) => (2, 2),
        None => (4, 3),
    };
    check_host_memory(problem, inputs_held, outputs_held, 0)?;
    let plan = attention.plan(problem)?;
    let built = match (&plan, plan.kernel()) {
        (PlanSummary::Gpu(choice), _) => Built::Gpu(Box::new(choice.plan.clone())),
        (_, KernelId::Cpu(config)) => Built::Cpu(config),
        (_, kernel) => {
            let why = format!("{kernel} runs on no device that is measured");
            return Err(BenchError::Nothing(why));
        }
    };
    let (kernels, in_finals) = (slice::from_ref(&built), InFinals::default());
    let stand = Stand::new(&attention.device())?;
    let (gate, measured) =
        stand.open(
            problem,
            kernels,
            Launching::Graph,
            &in_finals,
            |mut bench, unopened| match unopened.into_iter().next() {
                Some((_, error)) => Err(error),
                None => judge_and_time(&mut bench, case, inputs, options, begins),
            },
        )??;
    Ok(Tried { plan, gate, measured })
}

fn judge_and_time(
    bench: &mut Workbench<'_>,
    case: &Case,
    (kind, seed): (InputKind, u64),
    options: &Options,
    begins: &dyn Fn(Stage),
) -> Result<(Gate, Option<Measured>)> {
    let bed = bench.bed;
    let label = bench.subjects[0].info().label.clone();
    let trouble = |trouble: Trouble| trouble.of(&label);
    let (problem, inputs) = (bed.problem(), Inputs::before_forward(bed.problem(), kind, seed));
    begins(Stage::Running);
    bench.run(0, &Run::over_poison(None), Some(&inputs)).map_err(trouble)?;
    begins(Stage::Comparing);
    let lse = bed.read_lse(0).map_err(trouble)?;
    let mut found = None;
    bed.see(0, Output::Final, &mut |outs| {
        found = Some(match problem.direction() {
            Direction::Forward => gate(problem, &inputs, &outs[0], lse.as_deref(), seed),
            Direction::Backward => gate_gradients(problem, &inputs, outs, seed),
        });
    })
    .map_err(trouble)?;
    let gate = found.ok_or_else(|| trouble(Trouble::new("no output was shown")))??;
    if !gate.passed() {
        return Ok((gate, None));
    }
    if let Some(outside) = bed.outside().map_err(trouble)? {
        return Err(trouble(Trouble::new(outside)));
    }
    Drawn::uninspected(case)?.load_into(bed).map_err(trouble)?;
    begins(Stage::Timing);
    let mut measurement = bench.time(options, Mode::Hot, 0, None, &mut ())?;
    let measured = measurement.subjects.remove(0);
    match measured.trouble {
        Some(reason) => Err(trouble(Trouble::new(reason))),
        None => Ok((gate, Some(measured))),
    }
}
