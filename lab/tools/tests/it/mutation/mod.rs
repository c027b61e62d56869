//! Plants mistakes in kernels, drawn over every operator and every place, and counts how many are found.
//!
//! A mistake is found if the launch is refused, if the simulator has a finding on one of some twenty small problems, or
//! if an output differs from float64. Each survivor has an argument why it is harmless (`arguments.rs`).

mod arguments;
mod subjects;

use std::collections::BTreeSet;
use std::time::Instant;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, select};
use flashcore_problem::{DType, Problem};

use crate::words;
use arguments::argument;
use subjects::{Fate, SUBJECTS, Subject, fate, place, sample};

#[derive(Default)]
struct Count {
    planted: usize,
    survived: usize,
    /// Survived without an argument.
    unargued: usize,
}

/// `FLASHCORE_MUTATION="SEED COUNT KERNEL"` takes another seed, as many mistakes in each kernel, and kernels whose id
/// contains this.
#[test]
#[ignore = "takes an hour"]
fn ninety_five_of_a_hundred_are_found() {
    let words = words("FLASHCORE_MUTATION", "1 150");
    let [seed, number, kernel @ ..] = &words[..] else {
        panic!("FLASHCORE_MUTATION is SEED COUNT KERNEL");
    };
    let mut count = Count::default();
    let is_meant = |subject: &&Subject| kernel.iter().all(|part| subject.kernel.contains(part.as_str()));
    for subject in SUBJECTS.iter().filter(is_meant) {
        plant(subject, number.parse().unwrap(), seed.parse().unwrap(), &mut count);
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
    assert!((planted - survived) * 100 >= 95 * planted && unargued == 0);
}

/// A sample of the same for CI.
#[test]
fn what_survives_has_an_argument() {
    let mut count = Count::default();
    for subject in &SUBJECTS {
        plant(subject, 2, 1, &mut count);
    }
    assert_eq!(count.unargued, 0);
}

/// Plants a sample of mistakes in a kernel, and prints what survives.
fn plant(subject: &Subject, number: usize, seed: u64, count: &mut Count) {
    let started = Instant::now();
    let plans = subject.plans().unwrap();
    let kernel = plans[0].0.main.kernel.clone();
    assert!(plans.iter().all(|(plan, _)| plan.main.kernel.name() == kernel.name()));
    let all = mutations(&kernel);
    let operators: BTreeSet<Operator> = all.iter().map(|mutation| mutation.operator).collect();
    let [mut refused, mut found, mut wrong, mut survived] = [0; 4];
    println!("{}: {}", subject.name, subject.kernel);
    for mutation in sample(&kernel, number, seed) {
        match fate(&mutation, &plans) {
            Fate::Refused => refused += 1,
            Fate::Found => found += 1,
            Fate::Wrong => wrong += 1,
            Fate::Survived => {
                survived += 1;
                let place = place(&mutation, &kernel);
                let why = argument(subject.kernel, &mutation, &place).map(|argument| argument.why);
                count.unargued += usize::from(why.is_none_or(str::is_empty));
                println!("  {mutation}: {place}\n    {}", why.unwrap_or("NO ARGUMENT"));
            }
        }
    }
    let planted = refused + found + wrong + survived;
    count.planted += planted;
    count.survived += survived;
    println!(
        "  {planted} planted of {} by {} operators: {refused} refused, {found} by a finding, {wrong} by the output, \
         {survived} survived; {:.0} s",
        all.len(),
        operators.len(),
        started.elapsed().as_secs_f64()
    );
}

/// The subjects are the kernels that would be chosen.
#[test]
fn the_kernels_are_defaults() {
    let many = Problem::builder().heads(32, 32).seq_len(2048).head_dim(64);
    let f32 = Problem::builder()
        .heads(8, 8)
        .seq_len(512)
        .head_dim(64)
        .dtype(DType::F32);
    // Its keys are split: the same kernel otherwise.
    let few = Problem::builder()
        .heads(8, 8)
        .seq_len_q(512)
        .seq_len_kv(32_768)
        .head_dim(64);
    let wide = Problem::builder().batch(8).heads(16, 16).seq_len(2048).head_dim(128);
    let problems = [
        (many.build().unwrap(), Target::Sm89),
        (f32.build().unwrap(), Target::Sm89),
        (few.build().unwrap(), Target::Sm90a),
        (wide.build().unwrap(), Target::Sm90a),
    ];
    assert_eq!(problems.len(), SUBJECTS.len());
    for (subject, (problem, target)) in SUBJECTS.iter().zip(problems) {
        assert_eq!(subject.target, target, "{}", subject.name);
        let chosen = select(&problem, target, 16, &KernelCache::default()).unwrap().plan;
        let id = chosen.config.to_string();
        assert!(id.starts_with(subject.kernel), "{}: {id}", subject.name);
    }
}
