//! `flashcore-tools fuzz`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::fuzz::Program;
use crate::fuzz::corpus::{Corpus, Entry};
use crate::fuzz::run::{Comparison, Prepared, RunError, Word, sums_of};
use crate::fuzz::shrink::shrink;
use flashcore_cuda::Context;
use flashcore_ir::Inst;
use flashcore_ir::ptx::mnemonic;
use rayon::prelude::*;

/// Runs random programs on the simulator and on a GPU, and reports where their results differ.
///
/// Exits with 0 where all agree, 1 where some do not, 2 on bad arguments, 3 where there is no GPU.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seed of the first program; the others follow.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Programs.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// The simulator alone, each program under two schedules, whose results must be equal.
    #[arg(long)]
    sim_only: bool,
    /// Failures that are shrunk and printed; the rest are counted.
    #[arg(long, default_value_t = 5)]
    shrink: usize,
    /// Writes a summary.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Writes the GPU's results, for a corpus.
    #[arg(long, conflicts_with = "sim_only")]
    record: Option<PathBuf>,
    /// Prints the first program and its PTX, and runs nothing.
    #[arg(long)]
    print: bool,
}

/// Steps tried while a failure shrinks.
const TRIALS: usize = 2000;

pub(crate) fn main(options: &Options) -> crate::Ran {
    if options.print {
        let program = Program::random(options.seed);
        println!("{program:#?}\n{}", program.emit()?.kernel.to_ptx());
        return Ok(ExitCode::SUCCESS);
    }
    let context = match (options.sim_only, Context::new(0)) {
        (true, _) => None,
        (false, Ok(context)) => Some(context),
        (false, Err(error)) => {
            eprintln!("error: {error}; --sim-only needs no GPU");
            return Ok(ExitCode::from(3));
        }
    };
    let (start, done) = (Instant::now(), AtomicU64::new(0));
    let seeds = options.seed..options.seed.saturating_add(options.count);
    let outcomes: Vec<Outcome> = seeds
        .into_par_iter()
        .map(|seed| {
            let tried = Tried::new(context.as_ref(), Program::random(seed));
            let done = 1 + done.fetch_add(1, Ordering::Relaxed);
            if done.is_multiple_of(1000) {
                eprintln!("{done} programs");
            }
            (seed, tried)
        })
        .collect();
    report(options, context.as_ref(), &outcomes, start.elapsed().as_secs_f64())
}

type Outcome = (u64, Result<Tried, RunError>);

struct Tried {
    comparison: Comparison,
    entry: Entry,
    mnemonics: BTreeMap<String, u64>,
}

impl Tried {
    /// Runs a program by the simulator and on a GPU; without one, by the simulator under two
    /// schedules.
    fn new(context: Option<&Context>, program: Program) -> Result<Tried, RunError> {
        let prepared = Prepared::new(program, sums_of(context))?;
        let seed = prepared.program.seed;
        let simulated = prepared.simulate(seed)?;
        let measured: Vec<Word> = match context {
            None => prepared.simulate(!seed)?,
            Some(context) => {
                let measured = prepared.measure(context);
                context.forget_unused_modules();
                let measured = measured?;
                context.synchronize()?; // gives their memory back
                measured
            }
        };
        let mut mnemonics = BTreeMap::new();
        prepared.case.kernel.for_each_inst(&mut |inst, _| {
            let name = match inst {
                Inst::TrapIf { .. } => "trap".to_string(), // spelled with its predicate
                _ => mnemonic(inst),
            };
            *mnemonics.entry(name).or_default() += 1;
        });
        Ok(Tried {
            comparison: prepared.compare(&simulated, &measured),
            entry: Entry::of(&prepared, &measured),
            mnemonics,
        })
    }
}

/// What is wrong, if anything is.
fn failure(tried: &Result<Tried, RunError>) -> Option<String> {
    match tried {
        Ok(tried) => tried.comparison.mismatch.map(|mismatch| mismatch.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// The smallest program that fails as this one does: by a mismatch, or by a finding. What the
/// compiler or the driver refuses stays as it is: after a fault no program runs any more.
fn smallest(context: Option<&Context>, program: Program) -> Program {
    // Whether it fails by a finding.
    let how = |program: &Program| match Tried::new(context, program.clone()) {
        Ok(tried) => tried.comparison.mismatch.map(|_| false),
        Err(RunError::Finding(_)) => Some(true),
        Err(_) => None,
    };
    match how(&program) {
        None => program,
        same => shrink(&program, TRIALS, |smaller| how(smaller) == same),
    }
}

fn report(options: &Options, context: Option<&Context>, outcomes: &[Outcome], seconds: f64) -> crate::Ran {
    let device = context.map_or("the simulator, twice", |context| context.info().name.as_str());
    let driver = context
        .and_then(|context| context.info().driver_release.clone())
        .unwrap_or_default();
    let mut total = Comparison::default();
    let mut mnemonics: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, tried) in outcomes {
        let Ok(tried) = tried else { continue };
        total.merge(&tried.comparison);
        for (name, count) in &tried.mnemonics {
            *mnemonics.entry(name).or_default() += count;
        }
    }
    let failures = outcomes
        .iter()
        .filter_map(|(seed, tried)| Some((*seed, failure(tried)?)));
    let failures: Vec<(u64, String)> = failures.collect();
    println!(
        "{} programs on {device} in {seconds:.1} s: {} words, {} kinds of instruction, {} fail",
        outcomes.len(),
        total.words,
        mnemonics.len(),
        failures.len()
    );
    for (name, worst) in &total.worst {
        println!("{name}: at most {worst:.3} of its bound");
    }
    let mut shown = Vec::new();
    for (seed, what) in &failures {
        println!("FAIL seed {seed}: {what}");
        let mut failure = serde_json::json!({ "seed": seed, "what": what });
        if shown.len() < options.shrink {
            let small = smallest(context, Program::random(*seed));
            let ptx = small.emit()?.kernel.to_ptx();
            println!("shrunk to {} threads, {:#?}\n{ptx}", small.threads, small.steps);
            failure["steps"] = format!("{:?}", small.steps).into();
            failure["ptx"] = ptx.into();
        }
        shown.push(failure);
    }
    if let Some(path) = &options.json {
        let report = serde_json::json!({
            "device": device, "driver": driver, "first_seed": options.seed, "programs": outcomes.len(),
            "seconds": seconds, "words_compared": total.words, "worst_of_bound": total.worst,
            "instructions": mnemonics, "failures": shown,
        });
        crate::write_json(path, &report)?;
    }
    if let Some(path) = &options.record {
        let tried = outcomes.iter().filter_map(|(_, tried)| tried.as_ref().ok());
        let corpus = Corpus {
            device: device.to_string(),
            driver,
            sums: sums_of(context),
            entries: tried.map(|tried| tried.entry.clone()).collect(),
        };
        std::fs::write(path, serde_json::to_string(&corpus)?.replace("},{", "},\n{") + "\n")?;
    }
    crate::verdict(failures.is_empty())
}
