//! Plants mistakes in kernels and counts how many are found.

mod arguments;
mod subjects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use flashcore_check::mutate::mutations;
use serde::Serialize;
use serde_json::json;

use arguments::argument;
use subjects::{Fate, SUBJECTS, Subject, fate, place, sample};

/// Mistakes of 100 that must be found.
const REQUIRED: usize = 95;

/// Plants mistakes in four kernels, drawn over every operator and every place, and counts how many
/// are found.
///
/// A mistake is found if the launch is refused, if the simulator has a finding on one of some
/// twenty small problems, or if an output differs from float64. Survivors are printed with the
/// argument why they are harmless (`mutation/arguments.rs`). Fails where fewer than 95 of 100 are
/// found or a survivor has no argument.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mistakes in each kernel.
    #[arg(long, default_value_t = 150)]
    count: usize,
    /// Kernels whose id contains this.
    #[arg(long, default_value = "")]
    kernel: String,
    /// Where to write a report.
    #[arg(long)]
    json: Option<PathBuf>,
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

pub(crate) fn main(options: &Options) -> crate::Ran {
    let mut kernels = Vec::new();
    for subject in SUBJECTS
        .iter()
        .filter(|subject| subject.kernel.contains(&options.kernel))
    {
        kernels.push(plant(subject, options)?);
    }
    if let Some(file) = &options.json {
        let report = json!({ "seed": options.seed, "count": options.count, "kernels": kernels });
        crate::write_json(file, &report)?;
    }
    let planted: usize = kernels.iter().map(|outcome| outcome.planted).sum();
    let survived: usize = kernels.iter().map(|outcome| outcome.survived).sum();
    let unargued = |mutant: &&Mutant| mutant.killed == Fate::Survived && mutant.argument.is_none();
    let mutants = kernels.iter().flat_map(|outcome| &outcome.mutants);
    let unargued = mutants.filter(unargued).count();
    println!(
        "{} of {planted} mistakes found; of {survived} survivors {unargued} without an argument",
        planted - survived
    );
    crate::verdict((planted - survived) * 100 >= REQUIRED * planted && unargued == 0)
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
