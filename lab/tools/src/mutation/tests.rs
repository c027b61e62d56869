//! A sample of the mistakes that the tool plants: each that is not found has an argument why it is
//! harmless.

use super::arguments;
use super::subjects::{Fate, SUBJECTS, fate, place, sample};
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, select};
use flashcore_problem::{DType, Mask, Problem};

#[test]
fn what_survives_has_an_argument() {
    let (seed, count) = (1, 4);
    for subject in &SUBJECTS {
        let plans = subject.plans().unwrap();
        let kernel = &plans[0].0.main.kernel;
        assert!(plans.iter().all(|(plan, _)| plan.main.kernel.name() == kernel.name()));
        for mutation in sample(kernel, count, seed) {
            if fate(&mutation, &plans).0 == Fate::Survived {
                let place = place(&mutation, kernel);
                let argument = arguments::argument(subject.kernel, &mutation, &place);
                assert!(argument.is_some_and(|a| !a.why.is_empty()), "{mutation}: {place}");
            }
        }
    }
}

/// The subjects are the kernels that would be chosen.
#[test]
fn the_kernels_are_defaults() {
    let mission = Problem::named("mission").unwrap();
    let f32 = Problem::builder()
        .heads(8, 8)
        .seq_len(512)
        .head_dim(64)
        .dtype(DType::F32);
    let causal = Problem::builder().heads(16, 16).seq_len(2048).head_dim(64);
    let wide = Problem::builder().batch(8).heads(16, 16).seq_len(2048).head_dim(128);
    let problems = [
        (mission, Target::Sm89),
        (f32.build().unwrap(), Target::Sm89),
        (causal.mask(Mask::CAUSAL).build().unwrap(), Target::Sm90a),
        (wide.build().unwrap(), Target::Sm90a),
    ];
    assert_eq!(problems.len(), SUBJECTS.len());
    for (subject, (problem, target)) in SUBJECTS.iter().zip(problems) {
        assert_eq!(subject.target, target, "{}", subject.name);
        let chosen = select(&problem, target, 16, &KernelCache::default()).unwrap().plan;
        assert_eq!(chosen.config.to_string(), subject.kernel, "{}", subject.name);
    }
}
