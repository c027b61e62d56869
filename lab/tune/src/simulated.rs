//! Finalists under the simulator, which finds errors that a GPU tolerates or rarely shows.

use flashcore_check::own::Declared;
use flashcore_check::{CheckOptions, CheckReport, check_plan};
use flashcore_ir::Chip;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Problem};
use rayon::prelude::*;

use crate::board::{Board, Check};
use crate::judge::Judge;
use crate::trial::Verdict;
use crate::worker::protocol::Command;
use crate::worker::{Stop, Worker};

const FIRST_SCHEDULE: u64 = 1;
/// Schedules for each set of inputs: 16 for a kernel, with eight sets.
const SCHEDULES: u32 = 2;

/// Runs the kernels of a leaderboard under the simulator, on the small problems and adversarial inputs that candidates
/// are judged on, and elects again. Those of users run in the worker.
pub(crate) fn look(mut board: Board, judge: &Judge, chip: Chip, worker: &mut Worker) -> Board {
    for row in &mut board.rows {
        let found = judge.built(&row.id).map(|built| match built {
            Ok(declared) => judge_all(judge, true, |problem, options| {
                by_worker(&declared, problem, options, worker)
            }),
            Err((_, why)) => Some(Err(why)),
        });
        row.simulated = found.flatten().map(Check::from);
    }
    board.rows.par_iter_mut().for_each(|row| {
        let config = row.id.parse().ok();
        let found = config.and_then(|config| judge_plans(judge, |problem| Plan::new(problem, &config, chip).ok()));
        row.simulated = row.simulated.take().or(found.map(Check::from));
    });
    board.elect();
    board
}

/// What a worker finds of a kernel of the user; `None` where it does not serve a problem.
fn by_worker(
    declared: &Declared,
    problem: &Problem,
    options: &CheckOptions,
    worker: &mut Worker,
) -> Option<Result<(), String>> {
    let command = Command::Simulate {
        problem: problem.clone(),
        own: Box::new(declared.clone()),
        kind: options.inputs,
        seed: options.seed,
        schedules: options.schedules,
        first_schedule: options.first_schedule,
    };
    match worker.ask(&command) {
        Err(Stop::Verdict(Verdict::Refused, _)) => None,
        // Something may have killed it, so this is tried twice.
        Err(Stop::Outside(_)) => Some(worker.ask(&command).map_err(Stop::reason)),
        asked => Some(asked.map_err(Stop::reason)),
    }
}

/// What a report says, unless it is clean.
pub(crate) fn clean(report: &CheckReport, inputs: InputKind) -> Result<(), String> {
    if report.verdict == flashcore_check::Verdict::Clean {
        return Ok(());
    }
    let first = report.findings.first().map(|found| found.finding.to_string());
    let words = || format!("{:?} with {inputs} inputs on {}", report.verdict, report.problem);
    Err(first.unwrap_or_else(words))
}

/// The simulator's finding on the shapes that have a plan; `None` if none has.
fn judge_plans(judge: &Judge, plan: impl Fn(&Problem) -> Option<Plan>) -> Option<Result<(), String>> {
    judge_all(judge, false, |problem, options| {
        let report = check_plan(&plan(problem)?, options).map_err(|error| error.to_string());
        Some(report.and_then(|report| clean(&report, options.inputs)))
    })
}

/// The same of anything that is checked; `check` gives `None` for a shape that it does not serve. What serves none may
/// be checked on the first of further ones.
fn judge_all(
    judge: &Judge,
    may_go_further: bool,
    mut check: impl FnMut(&Problem, &CheckOptions) -> Option<Result<(), String>>,
) -> Option<Result<(), String>> {
    let mut looked = None;
    let normal = judge.shapes().into_iter();
    let normal = normal.map(|problem| (problem, InputKind::Normal, 0, false));
    let cases = judge.cases(may_go_further);
    let cases = cases.map(|case| (&case.problem, case.kind, case.seed, case.is_further));
    let mut at: Option<&Problem> = None;
    for (index, (problem, inputs, seed, is_further)) in normal.chain(cases).enumerate() {
        if is_further && at.is_some_and(|at| at != problem) {
            break;
        }
        let options = CheckOptions {
            inputs,
            seed,
            schedules: SCHEDULES,
            first_schedule: FIRST_SCHEDULE + index as u64 * u64::from(SCHEDULES),
            ..CheckOptions::default()
        };
        match check(problem, &options) {
            None => continue,
            Some(Ok(())) => looked = Some(Ok(())),
            Some(Err(error)) => return Some(Err(error)),
        }
        at = Some(problem);
    }
    looked
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
