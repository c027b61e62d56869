//! The random steps of searches, from configs to others of their family.

use flashcore_kernels::Family;
use flashcore_kernels::family::Values;
use flashcore_problem::rng::Rng;

/// Draws of a mutation or a mixture before it is given up.
const TRIES: usize = 64;

/// A config that differs from one in as many levers as asked for, drawn evenly among those drawn;
/// `None` where none that was tried goes together.
pub(super) fn mutate(family: &Family, values: &Values, levers: usize, rng: &mut Rng) -> Option<Values> {
    let mut tries = (0..TRIES).filter_map(|_| {
        let mut places: Vec<usize> = (0..family.levers.len()).collect();
        places.retain(|&at| family.levers[at].values.len() > 1);
        let mut mutant = *values;
        for _ in 0..levers.min(places.len()) {
            let at = places.swap_remove(rng.below(places.len()));
            let others = family.levers[at].values.iter().filter(|value| **value != values[at]);
            mutant[at] = **rng.pick(&others.collect::<Vec<_>>())?;
        }
        family.allows(&mutant).then_some(mutant)
    });
    tries.next()
}

/// A config that has each lever from one of two parents. Where no mixture drawn is allowed, the
/// first parent.
pub(super) fn crossover(family: &Family, a: &Values, b: &Values, rng: &mut Rng) -> Values {
    let mut mixtures = (0..TRIES).map(|_| {
        let mut child = *a;
        for at in 0..family.levers.len() {
            child[at] = if rng.chance(0.5) { a[at] } else { b[at] };
        }
        child
    });
    mixtures.find(|child| family.allows(child)).unwrap_or(*a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_kernels::{FAMILIES, mma};

    #[test]
    fn moves_change_what_they_say() {
        let mut rng = Rng::new(7);
        for family in FAMILIES {
            for _ in 0..100 {
                let (config, mate) = (family.sample(&mut rng), family.sample(&mut rng));
                for levers in [1, 2] {
                    if let Some(mutant) = mutate(&family, &config, levers, &mut rng) {
                        assert!(family.allows(&mutant));
                        assert_eq!(config.iter().zip(&mutant).filter(|(a, b)| a != b).count(), levers);
                    }
                }
                let child = crossover(&family, &config, &mate, &mut rng);
                assert!(family.allows(&child));
                for (at, value) in child.iter().enumerate() {
                    assert!([config[at], mate[at]].contains(value));
                }
            }
        }
    }

    #[test]
    fn mixing_mixes() {
        let mut rng = Rng::new(3);
        let mut mixed = 0;
        for _ in 0..200 {
            let (a, b) = (mma::FAMILY.sample(&mut rng), mma::FAMILY.sample(&mut rng));
            let child = crossover(&mma::FAMILY, &a, &b, &mut rng);
            mixed += usize::from(child != a && child != b);
        }
        assert!(mixed > 150, "{mixed} of 200");
    }

    #[test]
    fn what_must_be_asked_for_is_never_proposed() {
        let family = mma::FAMILY;
        let usual = family.read("mma/m64n64-w4x1-s2-b1-qreg-xor-cond").unwrap();
        let asked_for = |lever: &flashcore_kernels::family::Lever| lever.name == "f16_scores";
        let at = family.levers.iter().position(asked_for).unwrap();
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            assert_eq!(mutate(&family, &usual, 2, &mut rng).unwrap()[at], 0);
        }
    }
}
