//! What holds of every family, and of its ids.

use std::collections::BTreeSet;

use super::*;
use crate::{FAMILIES, mma};

fn distance(a: &Values, b: &Values) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

#[test]
fn every_family_is_sound() {
    for family in FAMILIES {
        assert!(
            family.levers.len() >= 2,
            "{}: searches change two levers at a time",
            family.name
        );
        let all: Vec<Values> = family.configs().collect();
        // A sample of large spaces, an odd number apart, so that all levers vary.
        let step = all.len().div_ceil(200) | 1;
        let printed: BTreeSet<String> = all.iter().map(|values| family.id(values)).collect();
        assert_eq!(printed.len(), all.len(), "a config is listed twice");
        for lever in family.levers {
            let values: BTreeSet<String> = lever.shown().iter().map(|&value| lever.print(value)).collect();
            assert!(
                values.len() >= 2 && values.len() == lever.shown().len(),
                "{} has two values or more, each with its own part of the id",
                lever.name
            );
        }
        for config in all.iter().step_by(step) {
            assert_eq!(family.read(&family.id(config)), Some(*config));
            let typed = crate::Config::of(&family, *config);
            assert_eq!((typed.family(), typed.levers().1), (family.name, *config), "{typed}");
            for other in family.neighbours(config) {
                assert_eq!(distance(config, &other), 1, "{config:?} and {other:?}");
                assert!(family.allows(&other) && family.neighbours(&other).contains(config));
            }
        }
    }
}

#[test]
fn what_must_be_asked_for_is_read_and_never_proposed() {
    let family = crate::mma::FAMILY;
    let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond-acc16";
    let asked = family.read(id).unwrap();
    assert!(family.owns(id) && family.id(&asked) == id);
    let usual = family.read("mma/m64n64-w4x1-s2-b1-qreg-xor-cond").unwrap();
    assert!(!family.neighbours(&usual).contains(&asked) && family.neighbours(&asked).contains(&usual));
    let at = family
        .levers
        .iter()
        .position(|lever| lever.name == "f16_scores")
        .unwrap();
    let mut rng = Rng::new(5);
    for _ in 0..200 {
        assert_eq!(family.sample(&mut rng)[at], 0);
    }
}

#[test]
fn every_lever_is_drawn() {
    let mut rng = Rng::new(1);
    let drawn: Vec<Values> = (0..2000).map(|_| mma::FAMILY.sample(&mut rng)).collect();
    for (at, lever) in mma::FAMILY.levers.iter().enumerate() {
        let values: BTreeSet<u32> = drawn.iter().map(|values| values[at]).collect();
        assert_eq!(values.len(), lever.values.len(), "{}", lever.name);
    }
}

#[test]
fn values_that_a_lever_does_not_have_are_refused() {
    let refused = |id: &str| {
        mma::FAMILY
            .check(&mma::FAMILY.read_levers(id).unwrap())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused("m48n64-w4x1-s2-b2-qreg-xor-cond"),
        "rows is 48; allowed: 16, 32, 64, 128, 256"
    );
    assert_eq!(
        refused("m64n64-w4x1-s2-b2-qreg-xor-cond-k257"),
        "splits is 257; allowed: 1 to 256"
    );
    assert_eq!(
        refused("m64n64-w8x1-s2-b2-qreg-xor-cond"),
        "warps is 8; allowed: 16 rows a warp at least"
    );
}

#[test]
fn refusals_print_values_as_ids_do() {
    let of = |id: &str| {
        let (family, values) = id.parse::<crate::Config>().unwrap().levers();
        family.check(&values).unwrap_err().to_string()
    };
    assert!(of("wgmma/m64n64-s2-pingpong-spec").starts_with("pingpong is true; allowed: with rows of 128 or more"));
    let mut values = mma::FAMILY.first();
    values[8] = 7;
    let refusal = mma::FAMILY.check(&values).unwrap_err().to_string();
    assert!(
        refusal.starts_with("rescale is 7; allowed: always, conditional, speculative"),
        "{refusal}"
    );
}
