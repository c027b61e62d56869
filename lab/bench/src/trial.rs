//! A trial: one candidate is built, judged and timed. A candidate that fails is data with its reason.

use std::slice;

use flashcore::plans::PlanSummary;
use flashcore::testing::InputKind;
use flashcore::{Attention, KernelId, Problem};
use flashcore_check::{CheckOptions, Gate, Verdict, check_plan, gate};
use flashcore_cuda::CudaError;
use flashcore_problem::Inputs;
use serde::{Deserialize, Serialize};

use crate::answers::draw;
use crate::bed::Workbench;
use crate::defences::{INSPECTION_SEEDS, Output, Run};
use crate::error::BenchError;
use crate::gpu::Launching;
use crate::measure::Measured;
use crate::options::{Mode, Options};
use crate::planted::InFinals;
use crate::stand::{Built, Stand};
use crate::subject::Trouble;

/// What a trial does with a candidate.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The inputs that its output is judged on.
    pub inputs: InputKind,
    /// Seed of the inputs.
    pub seed: u64,
    /// Check a GPU kernel under the simulator before it runs.
    pub check: Option<CheckOptions>,
    /// Time it, on standard normal inputs, if its output is right.
    pub time: Option<(Mode, Options)>,
}

/// What came of a trial.
#[derive(Debug)]
pub struct Tried {
    /// The kernel, and why it was chosen.
    pub plan: PlanSummary,
    /// Its output against float64, if it ran.
    pub gate: Option<Gate>,
    /// The result.
    pub outcome: Outcome,
}

/// The result of a trial.
#[derive(Debug)]
pub enum Outcome {
    /// Its output is right, and no time was asked for.
    Right,
    /// Its output is right, and this is its time.
    Timed(Box<Measured>),
    /// It failed at this step, for this reason.
    Failed(Failure, BenchError),
}

/// How a candidate failed, in the order of the steps of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Failure {
    /// No plan, or a launch that is known to fail: nothing was compiled.
    Refused,
    /// The simulator found something, such as a race.
    Findings,
    /// It does not compile, or to code that must not be used, such as code that spills.
    BuildFailed,
    /// It faulted, or its launch was refused.
    LaunchFailed,
    /// Its output is wrong, or it wrote outside its tensors.
    Wrong,
}

impl Failure {
    /// How a candidate failed that ended with this error.
    pub fn of(error: &BenchError) -> Failure {
        match error {
            BenchError::Attributes(_) => Failure::BuildFailed,
            BenchError::Flashcore(error) => match &**error {
                flashcore::Error::Cuda(
                    CudaError::Compile(_) | CudaError::Module(_) | CudaError::NoSuchKernel { .. },
                ) => Failure::BuildFailed,
                flashcore::Error::Cuda(_) => Failure::LaunchFailed,
                _ => Failure::Refused,
            },
            BenchError::Nothing(_) => Failure::Refused,
            _ => Failure::LaunchFailed,
        }
    }
}

impl Trial {
    /// Tries the kernel that `attention` uses for a problem, on its device.
    ///
    /// The kernel is bound to tensors between guards, runs once over poisoned outputs exactly as it is timed, and its
    /// output is compared with the float64 reference; then it is timed by the protocol.
    ///
    /// # Errors
    /// What is no fault of the candidate: no kernel serves the problem, plan tables that cannot be read, or tensors that
    /// cannot be allocated.
    pub fn run(&self, attention: &Attention, problem: &Problem) -> Result<Tried, BenchError> {
        let plan = attention.plan(problem)?;
        let built = match (&plan, plan.kernel()) {
            (PlanSummary::Gpu(choice), _) => Built::Gpu(Box::new(choice.plan.clone())),
            (_, KernelId::Cpu(config)) => Built::Cpu(config),
            (_, kernel) => {
                return Err(BenchError::Nothing(format!(
                    "{kernel} runs on no device that is measured"
                )));
            }
        };
        let mut gate = None;
        let outcome = match self.findings(&built) {
            Some(findings) => Outcome::Failed(Failure::Findings, Trouble::new(findings).of(&built.id())),
            None => {
                let stand = Stand::new(&attention.device())?;
                stand.open(
                    problem,
                    slice::from_ref(&built),
                    Launching::Graph,
                    &InFinals::default(),
                    |mut bench, unopened| {
                        if let Some((_, error)) = unopened.into_iter().next() {
                            return Outcome::Failed(Failure::of(&error), error);
                        }
                        self.judge_and_time(&mut bench, &mut gate)
                            .unwrap_or_else(|error| Outcome::Failed(Failure::of(&error), error))
                    },
                )?
            }
        };
        Ok(Tried { plan, gate, outcome })
    }

    /// What the simulator finds in a GPU kernel, if it is asked.
    fn findings(&self, built: &Built) -> Option<String> {
        let (Some(options), Built::Gpu(plan)) = (&self.check, built) else {
            return None;
        };
        match check_plan(plan, options) {
            Ok(report) if report.verdict == Verdict::Clean => None,
            Ok(report) => Some(report.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn judge_and_time(&self, bench: &mut Workbench<'_>, judged: &mut Option<Gate>) -> Result<Outcome, BenchError> {
        let bed = bench.bed;
        let label = bench.subjects[0].info().label.clone();
        let trouble = |trouble: Trouble| trouble.of(&label);
        let inputs = Inputs::generate(bed.problem(), self.inputs, self.seed);
        bench.run(0, &Run::over_poison(None), Some(&inputs)).map_err(trouble)?;
        let lse = bed.read_lse(0).map_err(trouble)?;
        let mut found = None;
        bed.see(0, Output::Final, &mut |out| {
            found = Some(gate(bed.problem(), &inputs, out, lse.as_deref(), self.seed));
        })
        .map_err(trouble)?;
        let gate = judged.insert(found.ok_or_else(|| Trouble::new("no output was shown").of(&label))??);
        let wrong = match gate.passed() {
            true => bed.outside().map_err(trouble)?,
            false => Some(gate.to_string()),
        };
        if let Some(reason) = wrong {
            return Ok(Outcome::Failed(Failure::Wrong, Trouble::new(reason).of(&label)));
        }
        let Some((mode, options)) = &self.time else {
            return Ok(Outcome::Right);
        };
        for (place, seed) in INSPECTION_SEEDS.into_iter().take(2).enumerate() {
            bed.load(place, &draw(bed.problem(), InputKind::Normal, seed))
                .map_err(trouble)?;
        }
        let mut measurement = bench.time(options, *mode, 0, None, &mut ())?;
        let measured = measurement.subjects.remove(0);
        Ok(match &measured.trouble {
            Some(reason) => Outcome::Failed(Failure::LaunchFailed, Trouble::new(reason).of(&label)),
            None => Outcome::Timed(Box::new(measured)),
        })
    }
}
