//! The steps of searches: from a config to others of its family.

use flashcore_problem::rng::Rng;

use super::{Family, Values, with};

/// Draws of a mutation or a mixture before it is given up.
const TRIES: usize = 64;

impl Family {
    /// A config with a lever at each of its values in turn, allowed or not.
    pub fn settings(&self, values: &Values, at: usize) -> impl Iterator<Item = Values> {
        let base = *values;
        self.levers[at].values.iter().map(move |&value| with(&base, at, value))
    }

    /// The configs that differ from one in a single lever, at any of its values.
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// let config = mma::Config::from_id("m128n64-w4x1-s2-b2-qreg-xor-cond").unwrap();
    /// let unswizzled = mma::Config { swizzled: false, ..config };
    /// assert!(mma::FAMILY.neighbours(&config.into()).contains(&unswizzled.into()));
    /// ```
    pub fn neighbours(&self, values: &Values) -> Vec<Values> {
        self.near(values, usize::MAX)
    }

    /// The configs that differ from one in a single lever, by at most `steps` of its values up or down.
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// let config = mma::Config::from_id("m128n64-w4x1-s2-b2-qreg-xor-cond").unwrap();
    /// let near = mma::FAMILY.near(&config.into(), 1);
    /// assert!(near.contains(&mma::Config { stages: 3, ..config }.into()));
    /// assert!(!near.contains(&mma::Config { stages: 4, ..config }.into()));
    /// ```
    pub fn near(&self, values: &Values, steps: usize) -> Vec<Values> {
        let mut near = Vec::new();
        for (at, lever) in self.levers.iter().enumerate() {
            // A value that is not searched, such as a number of splits, has every value as its neighbour.
            let own = lever.values.iter().position(|value| *value == values[at]);
            let close = |place: usize| own.is_none_or(|own| place.abs_diff(own) <= steps);
            let around = self.settings(values, at).enumerate();
            near.extend(around.filter(|(place, _)| close(*place)).map(|(_, setting)| setting));
        }
        near.retain(|other| other != values && self.allows(other));
        near
    }

    /// A config that differs from one in as many levers as asked for, drawn evenly among those drawn; `None` where
    /// none that was tried goes together.
    ///
    /// ```
    /// use flashcore_kernels::wgmma;
    /// use flashcore_problem::rng::Rng;
    /// let config = wgmma::FAMILY.configs().next().unwrap();
    /// let other = wgmma::FAMILY.mutate(&config, 2, &mut Rng::new(1)).unwrap();
    /// assert_eq!(config.iter().zip(&other).filter(|(a, b)| a != b).count(), 2);
    /// ```
    pub fn mutate(&self, values: &Values, levers: usize, rng: &mut Rng) -> Option<Values> {
        let mut tries = (0..TRIES).filter_map(|_| {
            let mut places: Vec<usize> = (0..self.levers.len()).collect();
            places.retain(|&at| self.levers[at].values.len() > 1);
            let mut mutant = *values;
            for _ in 0..levers.min(places.len()) {
                let at = places.swap_remove(rng.below(places.len()));
                let others = self.levers[at].values.iter().filter(|value| **value != values[at]);
                mutant[at] = **rng.pick(&others.collect::<Vec<_>>())?;
            }
            self.allows(&mutant).then_some(mutant)
        });
        tries.next()
    }

    /// A config that has each lever from one of two parents. Where no mixture drawn is allowed, the first parent.
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// use flashcore_problem::rng::Rng;
    /// let parents = ["m128n64-w4x1-s2-b2-qreg-xor-cond", "m64n32-w2x2-s3-b1-qsh-xor-always"];
    /// let [a, b] = parents.map(|id| mma::FAMILY.read_levers(id).unwrap());
    /// let child = mma::Config::from(mma::FAMILY.crossover(&a, &b, &mut Rng::new(1)));
    /// assert!([128, 64].contains(&child.rows) && child.swizzled);
    /// ```
    pub fn crossover(&self, a: &Values, b: &Values, rng: &mut Rng) -> Values {
        let mut mixtures = (0..TRIES).map(|_| {
            let mut child = *a;
            for at in 0..self.levers.len() {
                child[at] = if rng.chance(0.5) { a[at] } else { b[at] };
            }
            child
        });
        mixtures.find(|child| self.allows(child)).unwrap_or(*a)
    }
}
