//! Runs kernels again and again on the same inputs: the answer must be the same, bit for bit. Whatever differs is a race.
//!
//! usage: repeat RUNS PROBLEM [KERNEL...]
//!
//! PROBLEM is a name, a suite or a JSON file of problems, as `flashcore bench` takes; without kernels it is the one that heuristics
//! choose. Each run is two launches, one right after the other, into an output that is poison before. Log-sum-exps are compared
//! where the problem asks for them. Prints how many runs differed from the first, and of the first few in which rows; exits
//! with 1 if any did.

use std::collections::BTreeMap;
use std::error::Error;

use flashcore_bench::gpu::{PreparedPlan, TensorSet};
use flashcore_bench::{Case, draw, problems};
use flashcore_cuda::{Context, Function, ModuleOptions, Stream};
use flashcore_kernels::{Config, KernelCache, Plan, select};
use flashcore_problem::{InputKind, POISON, Problem, Tensor};

/// Differing runs that are told of.
const SHOWN: usize = 3;
/// Rows of each.
const ROWS: usize = 8;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = crate::arguments().collect();
    let [runs, problem, kernels @ ..] = args.as_slice() else {
        return Err("usage: repeat RUNS PROBLEM [KERNEL...]".into());
    };
    let runs: usize = runs.parse()?;
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    println!(
        "{}, driver {}",
        context.info().name,
        context.info().driver_release.as_deref().unwrap_or("?")
    );
    let mut any = false;
    for case in &problems::cases(problem, None)? {
        let chip = context.info().chip();
        let plans = match kernels {
            [] => vec![select(&case.problem, chip, 16, &KernelCache::default())?.plan],
            ids => {
                let plan = |id: &String| -> Result<Plan, Box<dyn Error>> {
                    Ok(Plan::new(&case.problem, &id.parse::<Config>()?, chip)?)
                };
                ids.iter().map(plan).collect::<Result<_, _>>()?
            }
        };
        for plan in &plans {
            any |= repeat(&context, &stream, case, plan, runs)?;
        }
    }
    if any {
        std::process::exit(1);
    }
    Ok(())
}

/// What a run leaves.
struct Answer {
    out: Tensor,
    lse: Option<Vec<u32>>,
}

impl Answer {
    fn is(&self, other: &Answer) -> bool {
        self.out.bytes() == other.out.bytes() && self.lse == other.lse
    }
}

/// Whether any run differs from the first.
fn repeat(context: &Context, stream: &Stream, case: &Case, plan: &Plan, runs: usize) -> Result<bool, Box<dyn Error>> {
    let problem = &case.problem;
    let set = TensorSet::new(stream, problem, plan.workspace_bytes())?;
    set.upload(stream, &draw(problem, InputKind::Normal, 7))?;
    let load = |kernel| Function::load(context, kernel, &ModuleOptions::default());
    let functions = plan
        .steps()
        .map(|step| load(&step.kernel))
        .collect::<Result<Vec<_>, _>>()?;
    let prepared = PreparedPlan::new(plan, &functions, &set.tensors())?;
    let run = || -> Result<Answer, Box<dyn Error>> {
        set.poison(stream)?;
        prepared.enqueue(stream)?;
        prepared.enqueue(stream)?;
        context.synchronize()?;
        let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
        set.tensors().out.copy_to_host(stream, out.bytes_mut())?;
        let lse = set.read_lse(stream)?;
        let lse = lse.map(|lse| lse.into_iter().map(f32::to_bits).collect());
        Ok(Answer { out, lse })
    };
    let first = run()?;
    let mut differing = 0;
    for number in 1..=runs {
        let again = run()?;
        if again.is(&first) {
            continue;
        }
        differing += 1;
        if differing <= SHOWN {
            println!("  run {number}: {}", difference(problem, &first, &again));
        }
    }
    println!("{:<24} {}: {differing} of {runs} runs differ", case.name, plan.config);
    Ok(differing > 0)
}

/// Rows in which two answers differ, and by how many elements.
fn difference(problem: &Problem, first: &Answer, again: &Answer) -> String {
    let [batch, rows, heads, columns] = problem.o_layout().shape;
    let (one, other) = (first.out.view(), again.out.view());
    let mut by_row: BTreeMap<[usize; 3], usize> = BTreeMap::new();
    for b in 0..batch {
        for s in 0..rows {
            for h in 0..heads {
                let differs = |&d: &usize| one.get(b, s, h, d).to_bits() != other.get(b, s, h, d).to_bits();
                let count = (0..columns).filter(differs).count();
                if count > 0 {
                    by_row.insert([b, h, s], count);
                }
            }
        }
    }
    let lse = if first.lse == again.lse {
        ""
    } else {
        ", and log-sum-exps"
    };
    let shown: Vec<String> = by_row
        .iter()
        .take(ROWS)
        .map(|([b, h, s], count)| format!("batch {b} head {h} row {s} ({count} elements)"))
        .collect();
    let more = by_row.len().saturating_sub(ROWS);
    let more = if more > 0 {
        format!(", {more} more rows")
    } else {
        String::new()
    };
    format!("{}{more}{lse}", shown.join(", "))
}
