//! Kernels of users in a worker: each is proved and simulated at a small size before it is launched or predicted.

use std::cell::RefCell;
use std::collections::BTreeMap;

use flashcore_check::own::{Declared, OwnError, check_declared};
use flashcore_check::{CheckOptions, CheckReport};
use flashcore_ir::Chip;
use flashcore_ir::proof::LaunchRefusal;
use flashcore_problem::{InputKind, Problem};
use flashcore_sim::FindingKind;

use super::protocol::Failed;
use crate::judge::small_problems;
use crate::own::{Bad, on_gpu, verdict_on};
use crate::simulated::clean;
use crate::trial::Verdict;

/// What a kernel is simulated on, and schedules of each.
const INPUTS: [InputKind; 2] = [InputKind::Normal, InputKind::RisingScores];
const SCHEDULES: u32 = 2;
/// Instructions of a warp on a small problem, beyond which it counts as hung: what a warp needs that computes all of it
/// alone, masked keys too, with ten for each operation of 32 lanes. A loop that spins takes all of them, with a race in
/// each turn.
fn most_instructions(small: &Problem) -> u64 {
    let pairs = small.batch() * small.num_heads() * small.seq_len_q() * small.seq_len_kv();
    let operations = 2 * pairs * (small.head_dim() + small.head_dim_v());
    (100_000 + operations as u64 * 10 / 32).min(CheckOptions::default().sim.max_instructions)
}

pub(super) struct Kernels {
    chip: Option<Chip>,
    /// The largest error that the simulator saw, by label: the best is opened with every candidate.
    simulated: RefCell<BTreeMap<String, Result<Option<f64>, Bad>>>,
}

impl Kernels {
    pub(super) fn new(chip: Option<Chip>) -> Kernels {
        let simulated = RefCell::default();
        Kernels { chip, simulated }
    }

    /// Looks at a kernel before it is launched or predicted for a problem: the largest error of the simulated output on
    /// inputs of this seed; `None` where it serves no small problem.
    pub(super) fn look(&self, declared: &Declared, problem: &Problem, seed: u64) -> Result<Option<f64>, Failed> {
        let look = || -> Result<Option<f64>, Bad> {
            let chip = self.chip.ok_or_else(on_gpu)?;
            fits(declared, problem, chip)?;
            let mut all = self.simulated.borrow_mut();
            let simulated = || simulated(declared, (problem, seed), chip);
            all.entry(declared.label.clone()).or_insert_with(simulated).clone()
        };
        look().map_err(|bad| failed(declared, bad))
    }

    /// Simulates one, whatever was found before.
    pub(super) fn simulate(
        &self,
        declared: &Declared,
        problem: &Problem,
        options: &CheckOptions,
    ) -> Result<(), Failed> {
        let simulate = || -> Result<(), Bad> {
            let target = self.chip.ok_or_else(on_gpu)?.target;
            let report = check_declared(declared, problem, target, options).map_err(verdict_on)?;
            clean(&report, options.inputs).map_err(|why| (Verdict::Wrong, why))
        };
        simulate().map_err(|bad| failed(declared, bad))
    }
}

fn failed(declared: &Declared, (verdict, reason): Bad) -> Failed {
    Failed::new(verdict, Some(&declared.label), reason)
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
fn simulated(declared: &Declared, (problem, seed): (&Problem, u64), chip: Chip) -> Result<Option<f64>, Bad> {
    let small = small_problems(problem).map_err(|error| (Verdict::EnvironmentFailed, error.to_string()))?;
    let Some(small) = small.iter().find(|small| declared.launch(small).is_ok()) else {
        return Ok(None);
    };
    let mut error = 0.0f64;
    for inputs in INPUTS {
        let mut options = CheckOptions {
            inputs,
            seed,
            schedules: SCHEDULES,
            ..CheckOptions::default()
        };
        options.sim.max_instructions = most_instructions(small);
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

    use flashcore_ir::Target;

    use super::*;

    #[test]
    fn only_what_the_simulator_executes_to_its_end_is_a_candidate() {
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
            let (declared, _) = Declared::read(&file.display().to_string(), Target::Sm80).unwrap();
            Kernels::new(Some(Target::Sm80.into())).look(&declared, &problem, 7)
        };
        assert!(got(&ptx).is_ok_and(|error| error.is_some_and(|error| error < 1e-2)));
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
        // On a problem that is small itself, too.
        let endless = ptx.replace("    ret;", "FOR_EVER:\n    bra FOR_EVER;\n    ret;");
        let Err(failed) = got(&endless) else { panic!("it ended") };
        assert_eq!(failed.verdict, Verdict::Hung, "{}", failed.reason);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
