//! Plants mistakes in kernels, drawn over every operator and every place by a seed, and counts how many are found:
//! `cargo run --release -p flashcore-tools -- mutation --seed 1 --count 150 --json FILE`.
//!
//! `--count` is of mistakes in each of four kernels, `--kernel TEXT` takes those alone whose id contains it. A mistake
//! is found if the launch is refused, if the simulator has a finding on one of some twenty small problems, or if an
//! answer differs from float64. Survivors are printed with the argument why they are harmless (`arguments.rs`), or
//! that there is none. Exits with 1 where fewer than 95 of 100 are found or a survivor has no argument.

mod arguments;
mod subjects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use flashcore_check::mutate::mutations;
use serde::Serialize;

use arguments::argument;
use subjects::{Fate, SUBJECTS, Subject, fate, place, sample};

/// Of 100 mistakes as many must be found.
const REQUIRED: usize = 95;

struct Options {
    seed: u64,
    count: usize,
    kernel: String,
    json: Option<String>,
}

/// What is kept of a run.
#[derive(Serialize)]
struct Evidence {
    seed: u64,
    count: usize,
    kernels: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    subject: &'static str,
    kernel: &'static str,
    instructions: usize,
    /// Mistakes that could have been drawn, and operators that have a place.
    mutations: usize,
    operators: usize,
    planted: usize,
    refused: usize,
    found: usize,
    wrong: usize,
    survived: usize,
    seconds: f64,
    mutants: Vec<Mutant>,
}

#[derive(Serialize)]
struct Mutant {
    mutation: String,
    place: String,
    killed: Fate,
    /// The problem that showed it.
    problem: Option<String>,
    /// Why a survivor is harmless.
    argument: Option<&'static str>,
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let mut kernels = Vec::new();
    for subject in SUBJECTS
        .iter()
        .filter(|subject| subject.kernel.contains(&options.kernel))
    {
        kernels.push(plant(subject, &options)?);
    }
    let evidence = Evidence {
        seed: options.seed,
        count: options.count,
        kernels,
    };
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&evidence)?)?;
    }
    let planted: usize = evidence.kernels.iter().map(|outcome| outcome.planted).sum();
    let survived: usize = evidence.kernels.iter().map(|outcome| outcome.survived).sum();
    let unargued = |mutant: &&Mutant| mutant.killed == Fate::Survived && mutant.argument.is_none();
    let unargued = evidence
        .kernels
        .iter()
        .flat_map(|outcome| &outcome.mutants)
        .filter(unargued);
    let unargued = unargued.count();
    println!(
        "{} of {planted} mistakes found; of {survived} survivors {unargued} without an argument",
        planted - survived
    );
    if (planted - survived) * 100 < REQUIRED * planted || unargued > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        seed: 1,
        count: 150,
        kernel: String::new(),
        json: None,
    };
    let mut arguments = crate::arguments();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--seed" => options.seed = value.parse()?,
            "--count" => options.count = value.parse()?,
            "--kernel" => options.kernel = value,
            "--json" => options.json = Some(value),
            other => return Err(format!("{other} is not known; known are --seed, --count, --kernel, --json").into()),
        }
    }
    Ok(options)
}

/// Plants a sample of mistakes in a kernel.
fn plant(subject: &'static Subject, options: &Options) -> Result<Outcome, Box<dyn Error>> {
    let started = Instant::now();
    let plans = subject.plans()?;
    let kernel = plans[0].0.main.kernel.clone();
    let all = mutations(&kernel);
    let mut operators = BTreeMap::new();
    all.iter().for_each(|m| *operators.entry(m.operator).or_insert(0) += 1);
    let mut mutants = Vec::new();
    println!("{}: {}", subject.name, subject.kernel);
    for mutation in sample(&kernel, options.count, options.seed) {
        let (killed, problem) = fate(&mutation, &plans);
        let place = place(&mutation, &kernel);
        let argument = match killed {
            Fate::Survived => argument(subject.kernel, &mutation, &place).map(|argument| argument.why),
            _ => None,
        };
        if killed == Fate::Survived {
            println!("  {mutation}: {place}\n    {}", argument.unwrap_or("NO ARGUMENT"));
        }
        mutants.push(Mutant {
            mutation: mutation.to_string(),
            place,
            killed,
            problem: problem.map(|i| format!("{}, {}", plans[i].0.problem, plans[i].1.inputs)),
            argument,
        });
    }
    let count = |is: fn(&Fate) -> bool| mutants.iter().filter(|mutant| is(&mutant.killed)).count();
    let outcome = Outcome {
        subject: subject.name,
        kernel: subject.kernel,
        instructions: kernel.num_insts(),
        mutations: all.len(),
        operators: operators.len(),
        planted: mutants.len(),
        refused: count(|fate| matches!(fate, Fate::Refused(_))),
        found: count(|fate| matches!(fate, Fate::Found(_))),
        wrong: count(|fate| *fate == Fate::Wrong),
        survived: count(|fate| *fate == Fate::Survived),
        seconds: started.elapsed().as_secs_f64(),
        mutants,
    };
    println!(
        "  {} planted of {} by {} operators: {} refused, {} by a finding, {} by the answer, {} survived; {:.0} s",
        outcome.planted,
        outcome.mutations,
        outcome.operators,
        outcome.refused,
        outcome.found,
        outcome.wrong,
        outcome.survived,
        outcome.seconds
    );
    Ok(outcome)
}
