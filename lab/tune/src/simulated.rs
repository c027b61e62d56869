//! Finalists under the simulator, which finds errors that a GPU tolerates or rarely shows.

use flashcore_check::own::Declared;
use flashcore_check::{CheckOptions, CheckReport, check_plan};
use flashcore_ir::Chip;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Problem};
use rayon::prelude::*;

use crate::board::{Board, Check};
use crate::judge::{Adversary, Judge};
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
        kind: options.inputs.name().to_string(),
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

/// What a report says that is not clean.
pub(crate) fn words(report: &CheckReport, inputs: InputKind) -> String {
    let first = report.findings.first().map(|found| found.finding.to_string());
    first.unwrap_or_else(|| format!("{:?} with {inputs} inputs on {}", report.verdict, report.problem))
}

/// The simulator's finding on the shapes that have a plan; `None` if none has.
fn judge_plans(judge: &Judge, plan: impl Fn(&Problem) -> Option<Plan>) -> Option<Result<(), String>> {
    judge_all(judge, false, |problem, options| {
        let report = check_plan(&plan(problem)?, options);
        Some(
            report
                .map_err(|error| error.to_string())
                .and_then(|report| match report.verdict {
                    flashcore_check::Verdict::Clean => Ok(()),
                    _ => Err(words(&report, options.inputs)),
                }),
        )
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
    let case = |case: &Adversary| (case.problem.clone(), case.kind, case.seed);
    let normal = judge
        .shapes()
        .into_iter()
        .map(|problem| (problem.clone(), InputKind::Normal, 0));
    let standard = normal.chain(judge.cases.iter().map(case)).map(|case| (case, false));
    let further = judge
        .further
        .iter()
        .filter(|_| may_go_further)
        .map(case)
        .map(|case| (case, true));
    let mut at: Option<Problem> = None;
    for (index, ((problem, inputs, seed), is_further)) in standard.chain(further).enumerate() {
        if is_further && at.as_ref().is_some_and(|at| *at != problem) {
            break;
        }
        let options = CheckOptions {
            inputs,
            seed,
            schedules: SCHEDULES,
            first_schedule: FIRST_SCHEDULE + index as u64 * u64::from(SCHEDULES),
            ..CheckOptions::default()
        };
        match check(&problem, &options) {
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
mod tests {
    use flashcore_bench::Interval;
    use flashcore_ir::{Profile, Target};
    use flashcore_kernels::{KernelCache, select};
    use flashcore_problem::DType;

    use super::*;
    use crate::board::BoardRow;
    use crate::tests::fake::Fake;
    use crate::worker::Deadlines;
    use flashcore_check::own::Template;

    use crate::gate::Gatekeeper;
    use crate::own::OwnKernels;

    #[test]
    fn an_error_on_adversarial_inputs_alone_is_found() {
        let problem = Problem::builder().heads(1, 1).seq_len(64).head_dim(32).build().unwrap();
        let judge = Judge::new(&problem, 3, &OwnKernels::default()).unwrap();
        let config = "scalar/tiled-m16n16-w4-v16".parse().unwrap();
        let honest = |problem: &Problem| Plan::new(problem, &config, Target::Sm89).ok();
        assert_eq!(judge_plans(&judge, honest), Some(Ok(())));
        assert_eq!(judge_plans(&judge, |_: &Problem| None), None);

        // The cap is so high that it hardly changes ordinary scores.
        let capped = |asked: &Problem| {
            let builder = Problem::builder().batch(asked.batch()).heads(1, 1).softcap(1000.0);
            let builder = builder.seq_len_q(asked.seq_len_q()).seq_len_kv(asked.seq_len_kv());
            let mut plan = honest(&builder.head_dim(32).build().unwrap())?;
            plan.problem = asked.clone();
            Some(plan)
        };
        let once = check_plan(&capped(judge.shapes()[0]).unwrap(), &CheckOptions::default()).unwrap();
        assert_eq!(once.verdict, flashcore_check::Verdict::Clean, "{once}");
        let found = judge_plans(&judge, capped).unwrap().unwrap_err();
        assert!(found.contains("inputs on"), "{found}");
    }

    #[test]
    fn e4m3_passes_the_gates_that_need_no_device() {
        let builder = Problem::builder().heads(2, 1).seq_len(128).head_dim(64);
        let problem = builder.dtype(DType::E4M3).build().unwrap();
        let chip = Chip::from(Profile::named("h200").unwrap());
        let default = select(&problem, chip, 16, &KernelCache::default()).unwrap();
        let id = default.plan.config.to_string();
        let gate = Gatekeeper::new(&problem, Some(chip));
        let families: Vec<_> = gate.families().iter().map(|family| family.name).collect();
        assert_eq!(families, ["wgmma"]);
        assert!(gate.look(&id).unwrap().is_some());

        let judge = Judge::new(&problem, 1, &OwnKernels::default()).unwrap();
        assert!(judge.shapes().iter().all(|shape| shape.dtype() == DType::E4M3));
        let row = BoardRow::new(&id, 1.0, Interval::UNKNOWN);
        let mut board = Board::new(&id, None, true, 0.03);
        board.rows = vec![row];
        let mut worker = Worker::new(Fake::new().program("none"), "cpu", Deadlines::default());
        let board = look(board, &judge, chip, &mut worker);
        assert_eq!(board.rows[0].simulated, Some(Ok(()).into()));
    }

    #[test]
    fn kernels_of_the_user_are_simulated_too() {
        let problem = Problem::builder().heads(1, 1).seq_len(64).head_dim(64).build().unwrap();
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
        let wrong = r#""failed":{"verdict":"WRONG","kernel":null,"reason":"it is wrong","fatal":false}"#;
        let fake = Fake {
            first: format!("*'\"simulate\"'*'own/wrong'*) said='{wrong}';;"),
            ..Fake::new()
        };
        let mut worker = Worker::new(fake.program("simulates"), "cpu", Deadlines::default());
        for (name, is_ok) in [("attention.toml", true), ("wrong.toml", false)] {
            let (template, _) = Template::read(&folder.join(name)).unwrap();
            let label = template.label.clone();
            let mut judge = Judge::new(&problem, 1, &OwnKernels::new(vec![template]).unwrap()).unwrap();
            judge.to_build.0 = Some(Target::Sm89.into());
            let mut board = Board::new("start", None, true, 0.03);
            board.rows = vec![BoardRow::new(&label, 1.0, Interval::UNKNOWN)];
            let board = look(board, &judge, Target::Sm89.into(), &mut worker);
            let check = board.rows[0].simulated.clone().unwrap();
            assert_eq!(check.ok, is_ok, "{check:?}");
            assert_eq!(board.winner, is_ok.then_some(label));
        }
    }
}
