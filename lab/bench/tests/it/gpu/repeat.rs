//! Kernels run many times on the same inputs: outputs must be equal bit for bit. A difference is a race.

use std::error::Error;

use flashcore_bench::gpu::{PreparedPlan, TensorSet};
use flashcore_bench::{Case, draw, problems};
use flashcore_cuda::{Context, Function, ModuleOptions, Stream};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::{InputKind, POISON, Problem, Tensor};

use super::{plan_of, words};

/// Rows that are printed of a run.
const ROWS: usize = 8;

/// Each run is two launches, one right after the other, into an output that is poison before. Log-sum-exps are compared
/// where the problem has them.
///
/// `FLASHCORE_REPEAT="RUNS PROBLEMS KERNEL..."` runs others: a problem, a set or a file of them, as `flashcore bench`
/// takes, and kernels in place of the one that heuristics choose.
#[test]
fn every_run_writes_the_same_bits() {
    super::run(|context| {
        let stream = Stream::new(context)?;
        let words = words("FLASHCORE_REPEAT", "20 small-set");
        let [runs, problems, kernels @ ..] = &words[..] else {
            return Err("FLASHCORE_REPEAT is RUNS PROBLEMS KERNEL...".into());
        };
        let kernels = kernels
            .iter()
            .map(|id| id.parse())
            .collect::<Result<Vec<Config>, _>>()?;
        let configs: Vec<Option<&Config>> = if kernels.is_empty() {
            vec![None]
        } else {
            kernels.iter().map(Some).collect()
        };
        let mut all = 0;
        for case in &problems::cases(problems, None)? {
            for config in &configs {
                let plan = plan_of(&case.problem, *config, context)?;
                all += differing(context, &stream, case, &plan, runs.parse()?)?;
            }
        }
        assert_eq!(all, 0, "runs differ");
        Ok(())
    });
}

struct Output {
    out: Tensor,
    lse: Option<Vec<u32>>,
}

/// How many runs differ from the first.
fn differing(
    context: &Context,
    stream: &Stream,
    case: &Case,
    plan: &Plan,
    runs: usize,
) -> Result<usize, Box<dyn Error>> {
    let problem = &case.problem;
    let set = TensorSet::new(stream, problem, plan.workspace_bytes())?;
    set.upload(stream, &draw(problem, InputKind::Normal, 7))?;
    let load = |kernel| Function::load(context, kernel, &ModuleOptions::default());
    let functions = plan.steps().map(|step| load(&step.kernel));
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    let launches = plan.steps().map(|step| &step.launch).zip(&functions);
    let prepared = PreparedPlan::of(launches, &set.tensors())?;
    let run = || -> Result<Output, Box<dyn Error>> {
        set.poison(stream)?;
        prepared.enqueue(stream)?;
        prepared.enqueue(stream)?;
        context.synchronize()?;
        let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
        set.outputs()[0].copy_to_host(stream, out.bytes_mut())?;
        let lse = set.read_lse(stream)?;
        let lse = lse.map(|lse| lse.into_iter().map(f32::to_bits).collect());
        Ok(Output { out, lse })
    };
    let first = run()?;
    let mut differing = 0;
    for number in 1..=runs {
        let again = run()?;
        if again.out.bytes() == first.out.bytes() && again.lse == first.lse {
            continue;
        }
        differing += 1;
        if differing <= 3 {
            println!("  run {number}: {}", difference(problem, &first, &again));
        }
    }
    println!("{:<24} {}: {differing} of {runs} runs differ", case.name, plan.config);
    Ok(differing)
}

/// Rows in which two outputs differ, and by how many elements.
fn difference(problem: &Problem, first: &Output, again: &Output) -> String {
    let [batch, rows, heads, columns] = problem.o_layout().shape;
    let (one, other) = (first.out.view(), again.out.view());
    let mut by_row: Vec<([usize; 3], usize)> = Vec::new();
    for b in 0..batch {
        for h in 0..heads {
            for s in 0..rows {
                let differs = |&d: &usize| one.get(b, s, h, d).to_bits() != other.get(b, s, h, d).to_bits();
                let count = (0..columns).filter(differs).count();
                if count > 0 {
                    by_row.push(([b, h, s], count));
                }
            }
        }
    }
    let row = |([b, h, s], count): &([usize; 3], usize)| format!("batch {b} head {h} row {s} ({count} elements)");
    let shown: Vec<String> = by_row.iter().take(ROWS).map(row).collect();
    let mut text = shown.join(", ");
    if by_row.len() > ROWS {
        text += &format!(", {} more rows", by_row.len() - ROWS);
    }
    if first.lse != again.lse {
        text += ", and log-sum-exps";
    }
    text
}
