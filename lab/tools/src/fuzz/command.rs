//! Runs random programs on the simulator and on a GPU, and reports where their results differ.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::fuzz::Program;
use crate::fuzz::corpus::{Corpus, Entry};
use crate::fuzz::run::{Comparison, Prepared, RunError, compile, compile_one, sums_of};
use crate::fuzz::shrink::shrink;
use flashcore_cuda::{Context, Module, Stream};
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
    /// Programs compiled together.
    #[arg(long, default_value_t = 40)]
    batch: u64,
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

/// What one program came to.
struct Outcome {
    seed: u64,
    comparison: Comparison,
    failure: Option<String>,
    entry: Option<Entry>,
    mnemonics: BTreeMap<String, u64>,
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
    let start = Instant::now();
    let outcomes = all(options, context.as_ref());
    let seconds = start.elapsed().as_secs_f64();
    report(options, context.as_ref(), &outcomes, seconds)
}

/// Every program, batch by batch, on all cores.
fn all(options: &Options, context: Option<&Context>) -> Vec<Outcome> {
    let (first, end) = (options.seed, options.seed.saturating_add(options.count));
    let batch = options.batch.max(1);
    let starts: Vec<u64> = (first..end).step_by(batch as usize).collect();
    let done = AtomicU64::new(0);
    let batches = starts.par_iter().map(|&start| {
        let seeds = start..end.min(start.saturating_add(batch));
        let count = seeds.end - seeds.start;
        let outcomes = one_batch(context, seeds.collect());
        let before = done.fetch_add(count, Ordering::Relaxed);
        if before / 1000 != (before + count) / 1000 {
            eprintln!("{} programs", before + count);
        }
        outcomes
    });
    batches.flatten_iter().collect()
}

fn one_batch(context: Option<&Context>, seeds: Vec<u64>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let mut ready = Vec::new();
    for seed in seeds {
        match Prepared::new(Program::random(seed), sums_of(context)) {
            Ok(prepared) => ready.push(prepared),
            Err(error) => outcomes.push(Outcome::failed(seed, &error)),
        }
    }
    let Some(context) = context else {
        outcomes.extend(ready.iter().map(|prepared| Outcome::of(prepared, twice(prepared))));
        return outcomes;
    };
    let modules: Vec<Result<Module, RunError>> = match compile(context, &ready) {
        Ok(modules) => modules.into_iter().map(Ok).collect(),
        // One of them is at fault: each by itself.
        Err(_) => ready.iter().map(|prepared| compile_one(context, prepared)).collect(),
    };
    let stream = Stream::new(context);
    for (prepared, module) in ready.iter().zip(modules) {
        let results = module.and_then(|module| match &stream {
            Ok(stream) => Ok((
                prepared.simulate(prepared.program.seed)?,
                prepared.measure(&module, stream)?,
            )),
            Err(error) => Err(RunError::Gpu(error.clone())),
        });
        outcomes.push(Outcome::of(prepared, results));
    }
    context.forget_unused_modules();
    outcomes
}

type Results = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The simulator's results under two schedules.
fn twice(prepared: &Prepared) -> Result<Results, RunError> {
    Ok((
        prepared.simulate(prepared.program.seed)?,
        prepared.simulate(!prepared.program.seed)?,
    ))
}

impl Outcome {
    fn failed(seed: u64, error: &RunError) -> Outcome {
        Outcome {
            seed,
            comparison: Comparison::default(),
            failure: Some(error.to_string()),
            entry: None,
            mnemonics: BTreeMap::new(),
        }
    }

    fn of(prepared: &Prepared, results: Result<Results, RunError>) -> Outcome {
        let seed = prepared.program.seed;
        let (simulated, measured) = match results {
            Ok(results) => results,
            Err(error) => return Outcome::failed(seed, &error),
        };
        let comparison = prepared.compare(&simulated, &measured);
        let mut mnemonics = BTreeMap::new();
        prepared.emitted.kernel.for_each_inst(&mut |inst, _| {
            let name = match inst {
                Inst::TrapIf { .. } => "trap".to_string(), // spelled with its predicate
                _ => mnemonic(inst),
            };
            *mnemonics.entry(name).or_default() += 1;
        });
        Outcome {
            seed,
            failure: comparison.mismatch.map(|mismatch| mismatch.to_string()),
            comparison,
            entry: Some(Entry::of(prepared, &measured)),
            mnemonics,
        }
    }
}

/// How a program can fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    Mismatch,
    Finding,
    Other,
}

/// How a program fails, if it does.
fn failure(context: Option<&Context>, program: &Program) -> Option<Failure> {
    let outcome = || -> Result<Comparison, RunError> {
        let prepared = Prepared::new(program.clone(), sums_of(context))?;
        let results = match context {
            None => twice(&prepared)?,
            Some(context) => {
                let module = compile_one(context, &prepared)?;
                let simulated = prepared.simulate(program.seed)?;
                (simulated, prepared.measure(&module, &Stream::new(context)?)?)
            }
        };
        Ok(prepared.compare(&results.0, &results.1))
    };
    match outcome() {
        Ok(comparison) => comparison.mismatch.map(|_| Failure::Mismatch),
        Err(RunError::Finding(_)) => Some(Failure::Finding),
        Err(_) => Some(Failure::Other),
    }
}

/// The smallest program that fails as this one does. What the compiler or the driver refuses stays
/// as it is: after a fault no program runs any more.
fn smallest(context: Option<&Context>, program: Program) -> Program {
    match failure(context, &program) {
        Some(how @ (Failure::Mismatch | Failure::Finding)) => {
            shrink(&program, TRIALS, |smaller| failure(context, smaller) == Some(how))
        }
        _ => program,
    }
}

fn report(options: &Options, context: Option<&Context>, outcomes: &[Outcome], seconds: f64) -> crate::Ran {
    let device = context.map_or("the simulator, twice", |context| context.info().name.as_str());
    let driver = context
        .and_then(|context| context.info().driver_release.clone())
        .unwrap_or_default();
    let mut total = Comparison::default();
    let mut mnemonics: BTreeMap<&str, u64> = BTreeMap::new();
    for outcome in outcomes {
        total.merge(&outcome.comparison);
        for (name, count) in &outcome.mnemonics {
            *mnemonics.entry(name).or_default() += count;
        }
    }
    let failures: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
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
    for outcome in &failures {
        let what = outcome.failure.as_deref().unwrap_or_default();
        println!("FAIL seed {}: {what}", outcome.seed);
        let mut failure = serde_json::json!({ "seed": outcome.seed, "what": what });
        if shown.len() < options.shrink {
            let small = smallest(context, Program::random(outcome.seed));
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
        let entries = outcomes.iter().filter_map(|outcome| outcome.entry.clone()).collect();
        let corpus = Corpus {
            device: device.to_string(),
            driver,
            sums: sums_of(context),
            entries,
        };
        std::fs::write(path, serde_json::to_string(&corpus)?.replace("},{", "},\n{") + "\n")?;
    }
    crate::verdict(failures.is_empty())
}
