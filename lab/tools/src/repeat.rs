//! Runs kernels many times on the same inputs: outputs must be equal bit for bit. A difference is a
//! race.

use std::error::Error;

use flashcore::Device;
use flashcore_bench::gpu::{PreparedPlan, TensorSet};
use flashcore_bench::{Case, draw, problems};
use flashcore_cuda::{Context, Function, ModuleOptions, Stream};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::{InputKind, POISON, Problem, Tensor};

/// Rows that are printed of a run.
const ROWS: usize = 8;

/// Runs kernels many times on the same inputs; fails if an output differs from the first in any
/// bit.
///
/// Each run is two launches, one right after the other, into an output that is poison before.
/// Log-sum-exps are compared where the problem has them.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    runs: usize,
    /// A problem, a set or a file of them, as `flashcore bench` takes.
    problems: String,
    /// Kernels, in place of the one that heuristics choose.
    kernels: Vec<Config>,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    println!("{}", crate::device_name(&Device::Cuda(context.clone())));
    let mut any = false;
    for case in &problems::cases(&options.problems, None)? {
        let chip = context.info().chip();
        let given: Vec<Option<&Config>> = options.kernels.iter().map(Some).collect();
        for config in if given.is_empty() { vec![None] } else { given } {
            let plan = crate::plan_of(&case.problem, config, chip)?;
            any |= repeat(&context, &stream, case, &plan, options.runs)?;
        }
    }
    crate::verdict(!any)
}

struct Output {
    out: Tensor,
    lse: Option<Vec<u32>>,
}

/// Whether any run differs from the first.
fn repeat(context: &Context, stream: &Stream, case: &Case, plan: &Plan, runs: usize) -> Result<bool, Box<dyn Error>> {
    let problem = &case.problem;
    let set = TensorSet::new(stream, problem, plan.workspace_bytes())?;
    set.upload(stream, &draw(problem, InputKind::Normal, 7))?;
    let load = |kernel| Function::load(context, kernel, &ModuleOptions::default());
    let functions = plan.steps().map(|step| load(&step.kernel));
    let functions = functions.collect::<Result<Vec<_>, _>>()?;
    let prepared = PreparedPlan::new(plan, &functions, &set.tensors())?;
    let run = || -> Result<Output, Box<dyn Error>> {
        set.poison(stream)?;
        prepared.enqueue(stream)?;
        prepared.enqueue(stream)?;
        context.synchronize()?;
        let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
        set.tensors().out.copy_to_host(stream, out.bytes_mut())?;
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
    Ok(differing > 0)
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
