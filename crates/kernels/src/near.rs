//! Configs near the default of a problem: what is compared with it to see whether it is the best. The nearest card is
//! in `card.rs`.

use std::collections::HashSet;

use flashcore_ir::Chip;
use flashcore_problem::{Mask, Problem, ProblemBuilder};

use crate::{Config, KernelCache, Plan, select};

/// Values up and down a lever.
const STEPS: usize = 2;

/// The default for a problem, first; then the defaults of similar shapes (half and twice the length, four times the
/// batch, the other mask), and the configs that differ from the default in one lever by two of its values at most.
/// Each once, and only what nothing refuses; empty where there is no default.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::{KernelCache, near, select};
/// use flashcore_problem::Problem;
/// let (problem, kernels) = (Problem::named("llama8b-prefill-8k")?, KernelCache::default());
/// let near = near(&problem, Target::Sm90a, &kernels);
/// assert_eq!(near[0], select(&problem, Target::Sm90a, 16, &kernels)?.plan.config);
/// assert!((8..24).contains(&near.len()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn near(problem: &Problem, chip: impl Into<Chip>, kernels: &KernelCache) -> Vec<Config> {
    let chip = chip.into();
    let default = |problem: &Problem| Some(select(problem, chip, 16, kernels).ok()?.plan.config);
    let Some(own) = default(problem) else {
        return Vec::new();
    };
    let mut near = vec![own];
    near.extend(similar(problem).iter().filter_map(default));
    let (family, values) = own.levers();
    let varied = family.of_problem(problem).near(&values, STEPS).into_iter();
    near.extend(varied.map(|values| Config::of(&family, values)));
    let mut seen = HashSet::new();
    near.retain(|config| seen.insert(*config) && Plan::with_cache(problem, config, chip, kernels).is_ok());
    near
}

/// Problems that differ a little in what decides speed.
fn similar(problem: &Problem) -> Vec<Problem> {
    let (rows, keys) = (problem.seq_len_q(), problem.seq_len_kv());
    let other_mask = match problem.mask().window_right {
        Some(_) => Mask::FULL,
        None => Mask::CAUSAL,
    };
    let (batch, mask) = (problem.batch(), problem.mask());
    let varied = [
        (batch, rows.div_ceil(2), keys.div_ceil(2), mask),
        (batch, rows * 2, keys * 2, mask),
        (batch, rows, keys, other_mask),
        (batch * 4, rows, keys, mask),
    ];
    let build = |(batch, rows, keys, mask)| {
        let like = ProblemBuilder::like(problem).batch(batch).mask(mask);
        like.seq_len_q(rows).seq_len_kv(keys).build().ok()
    };
    varied.into_iter().filter_map(build).collect()
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;

    use super::*;

    /// A lever may have a value there that a forward pass has not, as one stage.
    #[test]
    fn backward_kernels_have_others_near_them() {
        let problem = Problem::builder()
            .heads(2, 2)
            .seq_len(512)
            .head_dim(256)
            .build()
            .unwrap();
        let near = near(&problem.backward().unwrap(), Target::Sm80, &KernelCache::default());
        assert_eq!(near[0].to_string(), "mma/m64n64-w4x2-s1-b1-qsh-xor");
        let with_one_stage = near.iter().filter(|config| config.to_string().contains("-s1-"));
        assert!(with_one_stage.count() > 1, "{near:?}");
    }

    #[test]
    fn both_families_are_near_where_either_may_win() {
        let kernels = KernelCache::default();
        let small = near(&Problem::named("small").unwrap(), Target::Sm90a, &kernels);
        assert_eq!(small[0].family(), "mma");
        assert!(small.iter().any(|config| config.family() == "wgmma"));
        let mut once = small.clone();
        once.dedup();
        assert_eq!(once.len(), small.len());
        let mut counts = Vec::new();
        for name in [
            "small",
            "llama8b-prefill-8k",
            "gpt2",
            "fa-d128-16k",
            "llama8b-decode-8k",
        ] {
            counts.push(near(&Problem::named(name).unwrap(), Target::Sm90a, &kernels).len());
        }
        println!("{counts:?}");
        assert!(counts.iter().all(|count| (6..30).contains(count)), "{counts:?}");
    }
}
