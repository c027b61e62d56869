//! Kernels of users in a worker: each is built, proved and simulated at a small size before it is launched or
//! predicted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flashcore_check::own::{Declared, OwnError, check_declared};
use flashcore_check::{CheckOptions, CheckReport};
use flashcore_ir::Chip;
use flashcore_problem::{InputKind, Problem};
use flashcore_sim::FindingKind;

use super::protocol::Failed;
use crate::judge::small_problems;
use crate::own::OwnKernels;
use crate::trial::Verdict;

/// What a kernel is simulated on, and schedules of each.
const INPUTS: [InputKind; 2] = [InputKind::Normal, InputKind::RisingScores];
const SCHEDULES: u32 = 2;
/// Instructions of a warp on a small problem, beyond which it counts as hung.
const MOST_INSTRUCTIONS: u64 = 2_000_000;

/// A verdict and its reason.
type Bad = (Verdict, String);

/// A kernel that passed.
pub(super) struct Looked {
    pub(super) declared: Rc<Declared>,
    /// The largest error of the simulated output; `None` where the simulator does not execute it.
    pub(super) error: Option<f64>,
}

struct Known {
    built: Result<Rc<Declared>, Bad>,
    simulated: Option<Result<Option<f64>, Bad>>,
}

pub(super) struct Kernels {
    own: OwnKernels,
    chip: Option<Chip>,
    /// By id: the best is opened with every candidate.
    known: RefCell<BTreeMap<String, Known>>,
}

impl Kernels {
    pub(super) fn new(own: &OwnKernels, chip: Option<Chip>) -> Kernels {
        let (own, known) = (own.clone(), RefCell::default());
        Kernels { own, chip, known }
    }

    /// The kernel of an id, which can be launched for this problem; `None` for other ids.
    pub(super) fn get(&self, id: &str, problem: &Problem) -> Option<Result<Looked, Failed>> {
        let found = self.own.find(id)?;
        let looked = || -> Result<Looked, Bad> {
            let on_gpu = || (Verdict::Refused, "it runs on a GPU; ask for a CUDA device".to_string());
            let chip = self.chip.ok_or_else(on_gpu)?;
            let (template, chosen) = found.map_err(verdict_on)?;
            let mut all = self.known.borrow_mut();
            let known = all.entry(id.to_string()).or_insert_with(|| Known {
                built: template.build(&chosen, chip.target).map(Rc::new).map_err(verdict_on),
                simulated: None,
            });
            let declared = known.built.clone()?;
            let error = match fits(&declared, problem, chip)? {
                false => None,
                true => {
                    let simulated = known
                        .simulated
                        .take()
                        .unwrap_or_else(|| simulated(&declared, problem, chip));
                    known.simulated.insert(simulated).clone()?
                }
            };
            Ok(Looked { declared, error })
        };
        Some(looked().map_err(|(verdict, reason)| Failed::new(verdict, Some(id), reason)))
    }
}

fn verdict_on(error: OwnError) -> Bad {
    let verdict = match error {
        OwnError::NotServed(_) | OwnError::Values(_) => Verdict::Refused,
        OwnError::Late(_) => Verdict::Hung,
        _ => Verdict::BuildFailed,
    };
    (verdict, error.to_string())
}

/// Whether it can be launched on a problem, and whether the simulator executes it.
fn fits(declared: &Declared, problem: &Problem, chip: Chip) -> Result<bool, Bad> {
    declared.launch(problem).map_err(verdict_on)?;
    match declared.refusals(problem, chip.target) {
        Ok(refusals) => match refusals.first() {
            Some(refusal) => Err((Verdict::Refused, refusal.to_string())),
            None => Ok(true),
        },
        Err(OwnError::NotSimulated(..)) => Ok(false),
        Err(error) => Err(verdict_on(error)),
    }
}

/// Simulates it on the first small problem that it serves: the largest error; `None` if it serves none.
fn simulated(declared: &Declared, problem: &Problem, chip: Chip) -> Result<Option<f64>, Bad> {
    let small = small_problems(problem).map_err(|error| (Verdict::EnvironmentFailed, error.to_string()))?;
    let Some(small) = small.iter().find(|small| declared.launch(small).is_ok()) else {
        return Ok(None);
    };
    let mut error = 0.0f64;
    for inputs in INPUTS {
        let mut options = CheckOptions {
            inputs,
            schedules: SCHEDULES,
            ..CheckOptions::default()
        };
        if small != problem {
            options.sim.max_instructions = MOST_INSTRUCTIONS;
        }
        let report = check_declared(declared, small, chip.target, &options).map_err(verdict_on)?;
        fault(&report).map_or(Ok(()), Err)?;
        error = report.gate.iter().map(|gate| gate.out.max_abs).fold(error, f64::max);
    }
    Ok(Some(error))
}

/// What a report finds, as a verdict.
fn fault(report: &CheckReport) -> Option<Bad> {
    let why = report.fault()?;
    let hangs = |kind: FindingKind| matches!(kind, FindingKind::Livelock | FindingKind::Deadlock);
    let verdict = match report.findings.first() {
        None if !report.refusals.is_empty() => Verdict::Refused,
        Some(found) if hangs(found.finding.kind) => Verdict::Hung,
        _ => Verdict::Wrong,
    };
    Some((verdict, format!("the simulator: {why} ({})", report.problem)))
}
