//! Kernels of users in a worker: each is built, proved and simulated at a small size before it is launched or
//! predicted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flashcore_check::own::{Declared, OwnError, check_declared};
use flashcore_check::{CheckOptions, CheckReport};
use flashcore_ir::Chip;
use flashcore_ir::proof::LaunchRefusal;
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
    /// The largest error of the simulated output; `None` where it serves no small problem.
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
            fits(&declared, problem, chip)?;
            let simulated = || simulated(&declared, problem, chip);
            let error = known.simulated.get_or_insert_with(simulated).clone()?;
            Ok(Looked { declared, error })
        };
        Some(looked().map_err(|(verdict, reason)| Failed::new(verdict, Some(id), reason)))
    }
}

fn verdict_on(error: OwnError) -> Bad {
    let verdict = match error {
        OwnError::NotServed(_) | OwnError::Values(_) => Verdict::Refused,
        OwnError::Late(_) => Verdict::Hung,
        OwnError::Environment(_) => Verdict::EnvironmentFailed,
        _ => Verdict::BuildFailed,
    };
    (verdict, error.to_string())
}

/// Whether it can be launched on a problem, and simulated: what is not simulated cannot win, so nothing else is done.
fn fits(declared: &Declared, problem: &Problem, chip: Chip) -> Result<(), Bad> {
    declared.launch(problem).map_err(verdict_on)?;
    let refusals = declared.refusals(problem, chip.target).map_err(|error| match error {
        OwnError::NotSimulated(..) => {
            let why = format!("{error}; only what is simulated can win here, `flashcore bench` times it without that");
            (Verdict::Refused, why)
        }
        error => verdict_on(error),
    })?;
    let refused = |refusal: &LaunchRefusal| Err((Verdict::Refused, refusal.to_string()));
    refusals.first().map_or(Ok(()), refused)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use flashcore_check::own::Template;
    use flashcore_ir::Target;

    use super::*;

    #[test]
    fn only_what_the_simulator_executes_is_a_candidate() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
        let folder = crate::tests::folder("own-not-simulated");
        std::fs::create_dir(&folder).unwrap();
        let [toml, ptx] =
            ["attention.toml", "attention.ptx"].map(|name| std::fs::read_to_string(example.join(name)).unwrap());
        let problem = Problem::builder().heads(1, 1).seq_len(64).head_dim(64).build().unwrap();
        let file = folder.join("mine.toml");
        std::fs::write(&file, toml).unwrap();
        let got = |ptx: &str| {
            std::fs::write(folder.join("attention.ptx"), ptx).unwrap();
            let own = OwnKernels::new(vec![Template::read(&file).unwrap().0]).unwrap();
            let kernels = Kernels::new(&own, Some(Target::Sm80.into()));
            kernels.get("own/mine", &problem).unwrap()
        };
        assert!(got(&ptx).is_ok_and(|looked| looked.error.is_some_and(|error| error < 1e-2)));
        // Registers of 128 bits.
        let wide = ptx.replace(
            "    ret;",
            "    .reg .b128 %wide;\n    mov.b128 %wide, {%rd1, %rd1};\n    ret;",
        );
        assert_ne!(wide, ptx);
        let Err(failed) = got(&wide) else {
            panic!("it was simulated")
        };
        assert_eq!(failed.verdict, Verdict::Refused);
        for said in ["attention.ptx cannot be simulated: ", "`flashcore bench` times it"] {
            assert!(failed.reason.contains(said), "{}", failed.reason);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_machine_without_a_compiler_is_asked_again() {
        let why = || "why".to_string();
        let verdict = |error| verdict_on(error).0;
        assert_eq!(verdict(OwnError::Environment(why())), Verdict::EnvironmentFailed);
        assert_eq!(verdict(OwnError::NotBuilt(why())), Verdict::BuildFailed);
    }
}
