//! Plants mistakes in kernels and counts how many are found.

mod arguments;
mod subjects;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use flashcore_check::mutate::{Operator, mutations};
use serde_json::{Value, json};

use arguments::argument;
use subjects::{Fate, SUBJECTS, Subject, fate, place, sample};

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

#[derive(Default)]
struct Count {
    planted: usize,
    survived: usize,
    /// Survived without an argument.
    unargued: usize,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let (mut kernels, mut count) = (Vec::new(), Count::default());
    for subject in SUBJECTS
        .iter()
        .filter(|subject| subject.kernel.contains(&options.kernel))
    {
        kernels.push(plant(subject, options, &mut count)?);
    }
    if let Some(file) = &options.json {
        let report = json!({ "seed": options.seed, "count": options.count, "kernels": kernels });
        crate::write_json(file, &report)?;
    }
    let Count {
        planted,
        survived,
        unargued,
    } = count;
    println!(
        "{} of {planted} mistakes found; of {survived} survivors {unargued} without an argument",
        planted - survived
    );
    crate::verdict((planted - survived) * 100 >= 95 * planted && unargued == 0)
}

/// Plants a sample of mistakes in a kernel, and reports on each.
fn plant(subject: &Subject, options: &Options, count: &mut Count) -> Result<Value, Box<dyn Error>> {
    let started = Instant::now();
    let plans = subject.plans()?;
    let kernel = plans[0].0.main.kernel.clone();
    let all = mutations(&kernel);
    let operators: BTreeSet<Operator> = all.iter().map(|mutation| mutation.operator).collect();
    // Refused, found, wrong and survived.
    let (mut mutants, mut fates) = (Vec::new(), [0; 4]);
    println!("{}: {}", subject.name, subject.kernel);
    for mutation in sample(&kernel, options.count, options.seed) {
        let (killed, problem) = fate(&mutation, &plans);
        let place = place(&mutation, &kernel);
        let mut why = None;
        match killed {
            Fate::Refused(_) => fates[0] += 1,
            Fate::Found(_) => fates[1] += 1,
            Fate::Wrong => fates[2] += 1,
            Fate::Survived => {
                fates[3] += 1;
                why = argument(subject.kernel, &mutation, &place).map(|argument| argument.why);
                count.unargued += usize::from(why.is_none());
                println!("  {mutation}: {place}\n    {}", why.unwrap_or("NO ARGUMENT"));
            }
        }
        mutants.push(json!({
            "mutation": mutation.to_string(), "place": place, "killed": killed, "argument": why,
            "problem": problem.map(|i| format!("{}, {}", plans[i].0.problem, plans[i].1.inputs)),
        }));
    }
    let [refused, found, wrong, survived] = fates;
    let (planted, seconds) = (mutants.len(), started.elapsed().as_secs_f64());
    count.planted += planted;
    count.survived += survived;
    println!(
        "  {planted} planted of {} by {} operators: {refused} refused, {found} by a finding, {wrong} by the answer, \
         {survived} survived; {seconds:.0} s",
        all.len(),
        operators.len()
    );
    Ok(json!({
        "subject": subject.name, "kernel": subject.kernel, "instructions": kernel.num_insts(),
        "mutations": all.len(), "operators": operators.len(), "planted": planted, "refused": refused, "found": found,
        "wrong": wrong, "survived": survived, "seconds": seconds, "mutants": mutants,
    }))
}
