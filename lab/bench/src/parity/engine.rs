//! Where kernels compute: a device, or the simulator.

use std::fmt;

use flashcore::unstable::plans::{Config, Plan, PlanSummary};
use flashcore::unstable::testing::{InputKind, Inputs, Tolerance, reference_rows};
use flashcore::{Attention, Device, Error, KernelId, Problem};
use flashcore_check::mutate::{Operator, plant};
use flashcore_check::own::{Declared, check_declared};
use flashcore_check::{CheckError, CheckOptions, CheckReport, Gate, check_plan, gate_gradients, gate_rows};
use flashcore_cpu::CpuConfig;
use flashcore_cuda::{CudaError, ModuleRefusal};
use flashcore_ir::Chip;
use flashcore_kernels::{FAMILIES, Family, KernelCache, NoPlan, select_among};
use flashcore_problem::rng::Rng;
use flashcore_problem::{Comparison, ProblemError, ReferenceRow, Sequence};
use thiserror::Error as ThisError;

use super::witness::{Sdpa, Seen};
use crate::bed::{poisoned_outputs, with_outputs};

/// Configs that are drawn of a family until one serves a problem.
const TRIES: usize = 1000;
/// What a log-sum-exp may be off. Scores are f32 whatever the dtype, so that it is the same for all.
const LSE: Tolerance = Tolerance { atol: 2e-5, rtol: 2e-5 };

/// Where kernels compute.
#[derive(Clone, Debug)]
pub enum Engine {
    /// The host or a GPU.
    Device(Device),
    /// The simulator, with kernels for a card.
    Sim {
        /// The card's name on the command line.
        card: String,
        /// What kernels are planned for.
        chip: Chip,
    },
}

/// A kernel for a problem.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) kernel: KernelId,
    /// Kernels that were drawn before and spilled.
    pub(super) spilled: usize,
    run: Runs,
}

impl Drawn {
    /// Whether the kernel is of a family.
    pub(super) fn is_of(&self, family: &str) -> bool {
        matches!(&self.kernel, KernelId::Gpu(config) if config.family() == family)
    }
}

#[derive(Debug)]
enum Runs {
    With(Box<Attention>),
    Simulated(Box<Plan>, Chip),
}

/// What an output was found to be.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The output against float64.
    pub(crate) out: Comparison,
    /// Some rows are fully masked.
    pub(super) masked_rows: bool,
    /// No row sees two keys, or zeros would pass.
    pub(super) is_trivial: bool,
    /// What SDPA says of float64.
    pub(super) seen: Option<Seen>,
}

/// A problem that was computed.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) problem: Problem,
    pub(super) kernel: KernelId,
    pub(super) inputs: InputKind,
    pub(super) found: Found,
    pub(super) spilled: usize,
    /// Problems that were drawn before and that no kernel serves.
    pub(super) redrawn: usize,
}

/// What is wrong with an output, or why there is none.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Wrong {
    /// The output, a gradient or the log-sum-exp is off, or bytes between rows were written.
    #[error("{0}")]
    Output(Box<Gate>),
    /// The simulator's findings, or a refusal of the launch.
    #[error("{0}")]
    Simulated(String),
    /// SDPA and the float64 reference disagree.
    #[error("the float64 reference differs from PyTorch's SDPA by {0:.1e}")]
    Reference(f64),
    /// It cannot be computed.
    #[error(transparent)]
    Flashcore(#[from] Box<Error>),
    /// It cannot be simulated.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The reference refuses the problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// No kernel serves it.
    #[error(transparent)]
    NoPlan(#[from] Box<NoPlan>),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong::Flashcore(Box::new(error))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Device(device) => write!(f, "{device}"),
            Engine::Sim { card, .. } => write!(f, "the simulator for {card}"),
        }
    }
}

impl Drawn {
    /// Changes the kernel of a simulated plan, if it has a place for the mistake.
    pub(super) fn plant(&mut self, operator: Operator) {
        if let Runs::Simulated(plan, _) = &mut self.run {
            // A kernel without such a place stays as it is.
            let _ = plant(plan, operator, 1);
        }
    }
}

impl Engine {
    /// The simulator, with kernels for a card.
    pub fn sim(card: &str, chip: Chip) -> Engine {
        Engine::Sim {
            card: card.to_string(),
            chip,
        }
    }

    /// The flags of a command that name it.
    pub fn flags(&self) -> String {
        match self {
            Engine::Device(device) => format!("--device {device}"),
            Engine::Sim { card, .. } => format!("--device sim:{card}"),
        }
    }

    /// Whether some kernel serves a problem.
    pub(super) fn serves(&self, problem: &Problem) -> bool {
        self.choice(problem).is_ok()
    }

    /// The kernel that the library chooses; on the simulator without plan tables.
    pub(crate) fn choice(&self, problem: &Problem) -> Result<Drawn, Wrong> {
        match self {
            Engine::Device(device) => with(Attention::new(device.clone())?, problem, 0),
            Engine::Sim { chip, .. } => {
                let choice = select_among(problem, *chip, 16, &[], &KernelCache::default()).map_err(Box::new)?;
                Ok(simulated(choice.plan, *chip))
            }
        }
    }

    /// A kernel that was named. `None` on the simulator and the host, which have plans and levers of their own.
    pub(crate) fn given(&self, problem: &Problem, config: Config) -> Option<Result<Drawn, Wrong>> {
        match self {
            Engine::Device(device) if device.target().is_some() => {
                let attention = Attention::with(device.clone(), KernelId::Gpu(config));
                Some(
                    attention
                        .map_err(Wrong::from)
                        .and_then(|attention| with(attention, problem, 0)),
                )
            }
            _ => None,
        }
    }

    /// A kernel that serves the problem, drawn by the seed from one family or from all. Few families serve odd strides,
    /// for example: where none does, it is the library's choice.
    pub(super) fn draw(&self, problem: &Problem, seed: u64, family: Option<&Family>) -> Result<Drawn, Wrong> {
        let chip = match self {
            Engine::Sim { chip, .. } => *chip,
            Engine::Device(device) => match device.target() {
                Some(target) => target.into(),
                None => {
                    let config = CpuConfig {
                        tile_q: [16, 48, 128][seed as usize % 3],
                        tile_kv: [4, 64, 200][seed as usize / 3 % 3],
                    };
                    let attention = Attention::with(device.clone(), KernelId::Cpu(config))?;
                    return with(attention, problem, 0);
                }
            },
        };
        let mut rng = Rng::new(seed);
        let mut spilled = 0;
        // Where no config of the drawn family serves the problem, another family is drawn.
        for _ in FAMILIES {
            let of_all = FAMILIES[rng.below(FAMILIES.len())];
            let family = family.copied().unwrap_or(of_all).of_problem(problem);
            for _ in 0..TRIES {
                let config = Config::of(&family, family.sample(&mut rng));
                let Ok(plan) = Plan::new(problem, &config, chip) else {
                    continue;
                };
                let Engine::Device(device) = self else {
                    return Ok(simulated(plan, chip));
                };
                let attention = Attention::with(device.clone(), KernelId::Gpu(config))?;
                match attention.prepare(problem) {
                    Ok(_) => return with(attention, problem, spilled),
                    // One draw in a few at large head sizes.
                    Err(Error::Cuda(CudaError::Module(refusal)))
                        if matches!(*refusal, ModuleRefusal::LocalMemory { .. }) =>
                    {
                        spilled += 1;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.choice(problem)
    }

    /// Computes a problem on inputs of a kind and seed, and compares the output with float64 in every row.
    pub(crate) fn compute(
        &self,
        drawn: &Drawn,
        problem: &Problem,
        (kind, seed): (InputKind, u64),
        witness: Option<&Sdpa>,
    ) -> Result<Found, Wrong> {
        let inputs = Inputs::generate(problem, kind, seed);
        let lengths = inputs.lengths.as_slices();
        let mixes_keys = problem.sequences(&lengths)?.iter().any(Sequence::mixes_keys);
        let want = match &inputs.saved {
            None => {
                let [q, k, v] = [inputs.q.view(), inputs.k.view(), inputs.v.view()];
                reference_rows(problem, &q, &k, &v, &lengths, &problem.query_rows(&lengths)?)?
            }
            Some(_) => Vec::new(),
        };
        let out = match &drawn.run {
            Runs::With(attention) => on_device(attention, problem, &inputs, &want, seed)?,
            Runs::Simulated(plan, chip) => simulate(plan, *chip, kind, seed)?,
        };
        let seen = witness.map(|sdpa| match &inputs.saved {
            None => sdpa.look(problem, &inputs, &want),
            Some(_) => Seen::Not("gradients are compared with float64 alone".to_string()),
        });
        if let Some(Seen::Differs(most)) = seen {
            return Err(Wrong::Reference(most));
        }
        Ok(Found {
            out,
            is_trivial: !mixes_keys && problem.sinks().is_none() || out.zeros_pass,
            masked_rows: match &inputs.saved {
                None => want.iter().any(|row| row.lse == f64::NEG_INFINITY),
                Some(saved) => saved.lse.contains(&f32::NEG_INFINITY),
            },
            seen,
        })
    }
}

fn with(attention: Attention, problem: &Problem, spilled: usize) -> Result<Drawn, Wrong> {
    let kernel = attention.plan(problem).map(|plan: PlanSummary| plan.kernel())?;
    Ok(Drawn {
        kernel,
        spilled,
        run: Runs::With(Box::new(attention)),
    })
}

fn simulated(plan: Plan, chip: Chip) -> Drawn {
    Drawn {
        kernel: KernelId::Gpu(plan.config),
        spilled: 0,
        run: Runs::Simulated(Box::new(plan), chip),
    }
}

/// Computes on a device, over poison: the output against the right rows, or of gradients the one that is furthest from
/// float64.
fn on_device(
    attention: &Attention,
    problem: &Problem,
    inputs: &Inputs,
    want: &[ReferenceRow],
    seed: u64,
) -> Result<Comparison, Wrong> {
    let mut outs = poisoned_outputs(problem);
    let mut lse = vec![f32::NAN; if problem.writes_lse() { problem.lse_len() } else { 0 }];
    let carried = inputs.carried(problem)?;
    attention.run(problem, with_outputs(carried.operands(), problem, &mut outs, &mut lse))?;
    let gate = match &inputs.saved {
        Some(_) => gate_gradients(problem, inputs, &outs, seed)?,
        None => {
            let lse = problem.writes_lse().then_some((lse.as_slice(), LSE));
            gate_rows(problem, inputs, want, &outs[0], lse)?
        }
    };
    if gate.passed() {
        Ok(gate.out)
    } else {
        Err(Wrong::Output(Box::new(gate)))
    }
}

/// Simulates a plan under one schedule.
pub(crate) fn simulate(plan: &Plan, chip: Chip, inputs: InputKind, seed: u64) -> Result<Comparison, Wrong> {
    judged(check_plan(plan, &check_options(chip, inputs, seed))?)
}

/// The same of a user's kernel.
pub(crate) fn simulate_own(declared: &Declared, problem: &Problem, chip: Chip, seed: u64) -> Result<Comparison, Wrong> {
    let options = check_options(chip, InputKind::Normal, seed);
    let report = check_declared(declared, problem, chip.target, &options);
    judged(report.map_err(|error| Wrong::Simulated(error.to_string()))?)
}

fn check_options(chip: Chip, inputs: InputKind, seed: u64) -> CheckOptions {
    let mut options = CheckOptions {
        inputs,
        seed,
        ..CheckOptions::default()
    };
    options.sim.chip = chip;
    options
}

fn judged(report: CheckReport) -> Result<Comparison, Wrong> {
    match (report.fault(), report.gate) {
        (None, Some(gate)) => Ok(gate.out),
        (fault, _) => Err(Wrong::Simulated(fault.unwrap_or_default())),
    }
}
