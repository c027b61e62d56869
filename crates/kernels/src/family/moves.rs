//! From a config to those of its family that differ from it in one lever.

use super::{Family, Values, with};

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
    /// let config = mma::Config::from(mma::FAMILY.read_levers("m128n64-w4x1-s2-b2-qreg-xor-cond").unwrap());
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
    /// let config = mma::Config::from(mma::FAMILY.read_levers("m128n64-w4x1-s2-b2-qreg-xor-cond").unwrap());
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
}
