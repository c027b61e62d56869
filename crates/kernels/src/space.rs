//! Spaces of configs: a family's levers as data, and what a search does with them: count, list, draw, vary, mix.
//!
//! A space holds what the levers by themselves allow. Problems and targets refuse more; that is for
//! [`Plan::new`](crate::Plan::new) to say.

use flashcore_problem::rng::Rng;

/// One lever of a family.
#[derive(Debug)]
pub struct Lever<C: 'static> {
    /// Its name, that of the config's field.
    pub name: &'static str,
    /// What it trades for what, in a line.
    pub meaning: &'static str,
    /// A config with this lever at each of its values in turn, the others as they are. The values are the same
    /// whatever the config.
    pub settings: fn(C) -> Vec<C>,
    /// The lever's value in a config, as it prints.
    pub value: fn(&C) -> String,
}

/// All levers of a family, and which of their combinations go together.
#[derive(Debug)]
pub struct Space<C: 'static> {
    /// Every lever at its first value.
    pub first: C,
    /// The levers.
    pub levers: &'static [Lever<C>],
    /// Whether the levers of a config go together.
    pub allowed: fn(&C) -> bool,
    /// What [`allowed`](Space::allowed) asks, a sentence each.
    pub constraints: &'static [&'static str],
}

impl<C: Copy + PartialEq + 'static> Space<C> {
    /// Combinations of values, allowed or not.
    fn combinations(&self) -> usize {
        self.levers
            .iter()
            .map(|lever| (lever.settings)(self.first).len())
            .product()
    }

    /// The combination of a number, a digit for each lever.
    fn combination(&self, mut number: usize) -> C {
        self.levers.iter().fold(self.first, |config, lever| {
            let values = (lever.settings)(config);
            let digit = number % values.len();
            number /= values.len();
            values[digit]
        })
    }

    /// Every config whose levers go together, in a fixed order.
    ///
    /// ```
    /// use flashcore_kernels::{mma, wgmma};
    /// assert!(mma::SPACE.configs().count() > 10_000);
    /// assert!(wgmma::SPACE.configs().count() > 500);
    /// ```
    pub fn configs(&self) -> impl Iterator<Item = C> {
        (0..self.combinations())
            .map(|number| self.combination(number))
            .filter(self.allowed)
    }

    /// A config drawn evenly from [`configs`](Space::configs).
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// use flashcore_problem::rng::Rng;
    /// assert_eq!(mma::SPACE.sample(&mut Rng::new(3)), mma::SPACE.sample(&mut Rng::new(3)));
    /// ```
    pub fn sample(&self, rng: &mut Rng) -> C {
        loop {
            let config = self.combination(rng.below(self.combinations()));
            if (self.allowed)(&config) {
                return config;
            }
        }
    }

    /// The configs that differ from one in a single lever, at any of its values.
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// let config = mma::Config::from_id("m128n64-w4x1-s2-b2-qreg-xor-lazy").unwrap();
    /// let unswizzled = mma::Config { swizzled: false, ..config };
    /// assert!(mma::SPACE.neighbours(&config).contains(&unswizzled));
    /// ```
    pub fn neighbours(&self, config: &C) -> Vec<C> {
        let varied = self.levers.iter().flat_map(|lever| (lever.settings)(*config));
        varied
            .filter(|other| other != config && (self.allowed)(other))
            .collect()
    }

    /// The configs that differ from one in a single lever, by at most `steps` of its values up or down.
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// let config = mma::Config::from_id("m128n64-w4x1-s2-b2-qreg-xor-lazy").unwrap();
    /// let near = mma::SPACE.near(&config, 1);
    /// assert!(near.contains(&mma::Config { stages: 3, ..config }));
    /// assert!(!near.contains(&mma::Config { stages: 4, ..config }));
    /// ```
    pub fn near(&self, config: &C, steps: usize) -> Vec<C> {
        let mut near = Vec::new();
        for lever in self.levers {
            let settings = (lever.settings)(*config);
            let wanted = (lever.value)(config);
            // A value that is not searched, such as a number of splits, has every value as its neighbour.
            let at = settings.iter().position(|setting| (lever.value)(setting) == wanted);
            let close = |place: usize| at.is_none_or(|at| place.abs_diff(at) <= steps);
            let around = settings.into_iter().enumerate();
            near.extend(around.filter(|(place, _)| close(*place)).map(|(_, setting)| setting));
        }
        near.retain(|other| other != config && (self.allowed)(other));
        near
    }

    /// A config that differs from one in as many levers as asked for, drawn evenly among those drawn; `None` where
    /// none that was tried goes together.
    ///
    /// ```
    /// use flashcore_kernels::wgmma;
    /// use flashcore_problem::rng::Rng;
    /// let config = wgmma::SPACE.configs().next().unwrap();
    /// let other = wgmma::SPACE.mutate(&config, 2, &mut Rng::new(1)).unwrap();
    /// assert_eq!(wgmma::SPACE.distance(&config, &other), 2);
    /// ```
    pub fn mutate(&self, config: &C, levers: usize, rng: &mut Rng) -> Option<C> {
        let mut tries = (0..TRIES).filter_map(|_| {
            let mut places: Vec<usize> = (0..self.levers.len()).collect();
            let mut mutant = *config;
            for _ in 0..levers.min(places.len()) {
                let lever = &self.levers[places.swap_remove(rng.below(places.len()))];
                let mut settings = (lever.settings)(mutant);
                settings.retain(|setting| *setting != mutant);
                mutant = *rng.pick(&settings)?;
            }
            (self.allowed)(&mutant).then_some(mutant)
        });
        tries.next()
    }

    /// A config that has each lever from one of two parents. Where no mixture drawn is allowed, the first parent.
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// use flashcore_problem::rng::Rng;
    /// let parents = ["m128n64-w4x1-s2-b2-qreg-xor-lazy", "m64n32-w2x2-s3-b1-qsh-xor-eager"];
    /// let [a, b] = parents.map(|id| mma::Config::from_id(id).unwrap());
    /// let child = mma::SPACE.crossover(&a, &b, &mut Rng::new(1));
    /// assert!([a.rows, b.rows].contains(&child.rows) && child.swizzled);
    /// ```
    pub fn crossover(&self, a: &C, b: &C, rng: &mut Rng) -> C {
        let mut mixtures = (0..TRIES).map(|_| {
            self.levers.iter().fold(*a, |child, lever| {
                let parent = if rng.chance(0.5) { a } else { b };
                let wanted = (lever.value)(parent);
                let settings = (lever.settings)(child);
                let found = settings.iter().find(|setting| (lever.value)(setting) == wanted);
                found.copied().unwrap_or(child)
            })
        });
        mixtures.find(self.allowed).unwrap_or(*a)
    }

    /// In how many levers two configs differ.
    pub fn distance(&self, a: &C, b: &C) -> usize {
        let differs = |lever: &&Lever<C>| (lever.value)(a) != (lever.value)(b);
        self.levers.iter().filter(differs).count()
    }
}

/// Draws of a mutation or a mixture before it is given up.
const TRIES: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Debug;

    use super::*;
    use crate::{ladder, mma, scalar, wgmma};

    /// What holds of every space; `step` thins out the large ones.
    fn sound<C: Copy + PartialEq + Debug>(space: &Space<C>, step: usize) {
        let all: Vec<C> = space.configs().collect();
        let printed: BTreeSet<String> = all.iter().map(|config| format!("{config:?}")).collect();
        assert_eq!(printed.len(), all.len(), "a config is listed twice");
        let mut rng = Rng::new(7);
        for config in all.iter().step_by(step) {
            for lever in space.levers {
                let settings = (lever.settings)(*config);
                let values: BTreeSet<String> = settings.iter().map(lever.value).collect();
                assert_eq!(values.len(), settings.len(), "{} of {config:?}", lever.name);
                assert!(
                    values.len() >= 2 && values.contains(&(lever.value)(config)),
                    "{}",
                    lever.name
                );
                // A lever moves itself and nothing else.
                assert!(settings.iter().all(|setting| space.distance(config, setting) <= 1));
            }
            for other in space.neighbours(config) {
                assert_eq!(space.distance(config, &other), 1, "{config:?} and {other:?}");
                assert!((space.allowed)(&other) && space.neighbours(&other).contains(config));
            }
            for levers in [1, 2] {
                if let Some(mutant) = space.mutate(config, levers, &mut rng) {
                    assert!((space.allowed)(&mutant));
                    assert_eq!(space.distance(config, &mutant), levers);
                }
            }
            let mate = space.sample(&mut rng);
            let child = space.crossover(config, &mate, &mut rng);
            assert!((space.allowed)(&child));
            for lever in space.levers {
                let value = (lever.value)(&child);
                assert!([(lever.value)(config), (lever.value)(&mate)].contains(&value));
            }
        }
    }

    #[test]
    fn every_family_declares_a_sound_space() {
        sound(&mma::SPACE, 499);
        sound(&wgmma::SPACE, 41);
        sound(&scalar::SPACE, 1);
        sound(&ladder::SPACE, 1);
    }

    #[test]
    fn listed_configs_are_those_of_the_space() {
        assert_eq!(scalar::configs().len(), scalar::SPACE.configs().count());
        assert!(
            scalar::SPACE
                .configs()
                .all(|config| scalar::configs().contains(&config))
        );
        assert_eq!(ladder::configs().len(), ladder::SPACE.configs().count());
        assert!(
            ladder::SPACE
                .configs()
                .all(|config| ladder::configs().contains(&config))
        );
    }

    #[test]
    fn every_lever_is_drawn() {
        let mut rng = Rng::new(1);
        let drawn: Vec<mma::Config> = (0..2000).map(|_| mma::SPACE.sample(&mut rng)).collect();
        for lever in mma::SPACE.levers {
            let values: BTreeSet<String> = drawn.iter().map(lever.value).collect();
            assert_eq!(values.len(), (lever.settings)(drawn[0]).len(), "{}", lever.name);
        }
    }

    #[test]
    fn mixing_mixes() {
        let mut rng = Rng::new(3);
        let mut mixed = 0;
        for _ in 0..200 {
            let (a, b) = (mma::SPACE.sample(&mut rng), mma::SPACE.sample(&mut rng));
            let child = mma::SPACE.crossover(&a, &b, &mut rng);
            mixed += usize::from(child != a && child != b);
        }
        assert!(mixed > 150, "{mixed} of 200");
    }
}
