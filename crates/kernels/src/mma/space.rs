//! The family's space: every config that the levers allow, numbered, so that a search can count, draw and vary
//! them. Problems and targets refuse more; that is for [`Plan::new`](crate::Plan::new) to say.

use flashcore_problem::rng::Rng;

use super::{COLS, Config, KV_WARPS, MIN_BLOCKS, ROWS, Rescale, STAGES, WARPS};

/// A config with one lever at each of its values, the others as they are.
type Lever = fn(Config) -> Vec<Config>;

/// Values of [`Config::splits`] that are searched; all others up to 256 are allowed, and where few queries meet many
/// keys [`Config::split_for`] says which.
const SPLITS: [u32; 6] = [1, 2, 3, 4, 8, 16];

/// Every lever.
#[rustfmt::skip]
const LEVERS: [Lever; 11] = [
    |c| ROWS.map(|rows| Config { rows, ..c }).to_vec(),
    |c| COLS.map(|cols| Config { cols, ..c }).to_vec(),
    |c| WARPS.map(|warps| Config { warps, ..c }).to_vec(),
    |c| KV_WARPS.map(|kv_warps| Config { kv_warps, ..c }).to_vec(),
    |c| STAGES.map(|stages| Config { stages, ..c }).to_vec(),
    |c| MIN_BLOCKS.map(|min_blocks| Config { min_blocks, ..c }).to_vec(),
    |c| [false, true].map(|q_in_registers| Config { q_in_registers, ..c }).to_vec(),
    |c| [false, true].map(|swizzled| Config { swizzled, ..c }).to_vec(),
    |c| Rescale::ALL.map(|rescale| Config { rescale, ..c }).to_vec(),
    |c| [false, true].map(|pack_heads| Config { pack_heads, ..c }).to_vec(),
    |c| SPLITS.map(|splits| Config { splits, ..c }).to_vec(),
];

/// Every lever at its first value. No `..` here: a new lever does not compile until it is given one, and
/// belongs into [`LEVERS`] then.
const FIRST: Config = Config {
    rows: ROWS[0],
    cols: COLS[0],
    warps: WARPS[0],
    kv_warps: KV_WARPS[0],
    stages: STAGES[0],
    min_blocks: MIN_BLOCKS[0],
    q_in_registers: false,
    swizzled: false,
    rescale: Rescale::ALL[0],
    pack_heads: false,
    splits: SPLITS[0],
};

fn is_allowed(config: &Config) -> bool {
    config.check_levers().is_ok()
}

/// Combinations of values, allowed or not.
fn combinations() -> usize {
    LEVERS.iter().map(|lever| lever(FIRST).len()).product()
}

/// The combination of a number, a digit for each lever.
fn combination(mut number: usize) -> Config {
    LEVERS.iter().fold(FIRST, |config, lever| {
        let values = lever(config);
        let digit = number % values.len();
        number /= values.len();
        values[digit]
    })
}

/// Every config whose levers go together, in a fixed order. Tens of thousands: a search draws from them.
///
/// ```
/// use flashcore_kernels::mma;
/// assert!(mma::configs().count() > 10_000);
/// ```
pub fn configs() -> impl Iterator<Item = Config> {
    (0..combinations()).map(combination).filter(is_allowed)
}

/// A config drawn evenly from [`configs`].
///
/// ```
/// use flashcore_kernels::mma;
/// use flashcore_problem::rng::Rng;
/// assert_eq!(mma::sample(&mut Rng::new(3)), mma::sample(&mut Rng::new(3)));
/// ```
pub fn sample(rng: &mut Rng) -> Config {
    loop {
        let config = combination(rng.below(combinations()));
        if is_allowed(&config) {
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
/// assert!(mma::neighbours(&config).contains(&unswizzled));
/// ```
pub fn neighbours(config: &Config) -> Vec<Config> {
    let varied = LEVERS.iter().flat_map(|lever| lever(*config));
    varied.filter(|other| other != config && is_allowed(other)).collect()
}

/// A config that has each lever from one of two parents. Where no mixture drawn is allowed, the first parent.
///
/// ```
/// use flashcore_kernels::mma;
/// use flashcore_problem::rng::Rng;
/// let parents = ["m128n64-w4x1-s2-b2-qreg-xor-lazy", "m64n32-w2x2-s3-b1-qsh-xor-eager"];
/// let [a, b] = parents.map(|id| mma::Config::from_id(id).unwrap());
/// let child = mma::crossover(&a, &b, &mut Rng::new(1));
/// assert!([a.rows, b.rows].contains(&child.rows) && child.swizzled);
/// ```
pub fn crossover(a: &Config, b: &Config, rng: &mut Rng) -> Config {
    const TRIES: usize = 64;
    let mut mixtures = (0..TRIES).map(|_| {
        LEVERS.iter().fold(*a, |child, lever| {
            let parent = if rng.chance(0.5) { a } else { b };
            let value = lever(*parent).iter().position(|c| c == parent);
            value.map_or(child, |value| lever(child)[value])
        })
    });
    mixtures.find(is_allowed).unwrap_or(*a)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The levers of a config, by name, as they print.
    fn levers(config: &Config) -> BTreeMap<String, String> {
        let text = format!("{config:?}");
        let inside = text.trim_start_matches("Config { ").trim_end_matches(" }");
        let pairs = inside.split(", ").map(|pair| pair.split_once(": ").unwrap());
        pairs
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    #[test]
    fn every_config_is_allowed_and_listed_once() {
        let all: Vec<Config> = configs().collect();
        let distinct: BTreeSet<String> = all.iter().map(Config::id).collect();
        assert_eq!(distinct.len(), all.len());
        for config in all.iter().step_by(97) {
            assert!(config.check_levers().is_ok(), "{config}");
            assert_eq!(Config::from_id(&config.id()), Some(*config));
        }
    }

    #[test]
    fn every_lever_is_drawn() {
        let mut rng = Rng::new(1);
        let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for _ in 0..2000 {
            for (lever, value) in levers(&sample(&mut rng)) {
                values.entry(lever).or_default().insert(value);
            }
        }
        assert_eq!(values.len(), LEVERS.len());
        for (lever, values) in &values {
            assert!(values.len() >= 2, "{lever} is always {values:?}");
        }
        assert_eq!(values["rows"].len(), ROWS.len());
    }

    #[test]
    fn neighbours_differ_in_one_lever() {
        let mut rng = Rng::new(2);
        for _ in 0..50 {
            let config = sample(&mut rng);
            let around = neighbours(&config);
            assert!(around.len() >= LEVERS.len() / 2, "{config}: {around:?}");
            for other in around {
                let (mine, theirs) = (levers(&config), levers(&other));
                let different = mine.iter().filter(|(lever, value)| theirs[*lever] != **value);
                assert_eq!(different.count(), 1, "{config} and {other}");
                assert!(neighbours(&other).contains(&config));
            }
        }
    }

    #[test]
    fn children_have_their_parents_levers() {
        let mut rng = Rng::new(3);
        let mut mixed = 0;
        for _ in 0..200 {
            let (a, b) = (sample(&mut rng), sample(&mut rng));
            let child = crossover(&a, &b, &mut rng);
            assert!(child.check_levers().is_ok());
            let (of_a, of_b) = (levers(&a), levers(&b));
            for (lever, value) in levers(&child) {
                assert!(value == of_a[&lever] || value == of_b[&lever], "{child} of {a} and {b}");
            }
            mixed += usize::from(child != a && child != b);
        }
        assert!(mixed > 150, "{mixed} of 200");
    }
}
