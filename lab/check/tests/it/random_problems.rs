//! The scalar rungs give the float64 answer on random problems, under the simulator and without a finding.
//!
//! `FLASHCORE_SEED` moves to other problems, `FLASHCORE_PROBLEMS` sets how many (60).

use std::collections::BTreeMap;
use std::time::Instant;

use flashcore_ir::Target;
use flashcore_kernels::{Config, KernelCache, Plan, select};
use flashcore_problem::rng::Rng;
use flashcore_problem::{InputKind, Mask};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::common::{assert_none, failure, number};

/// Masks as the shares are counted: full, causal, a window on some side.
fn mask_kind(mask: Mask) -> &'static str {
    match (mask.window_left, mask.window_right) {
        (None, None) => "full",
        (None, Some(0)) => "causal",
        _ => "window",
    }
}

#[test]
fn the_scalar_rungs_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 1000), number("FLASHCORE_PROBLEMS", 60));
    let limits = RandomLimits {
        max_work: 8_000_000,
        max_batch: 2,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let kernels = KernelCache::default();
    let rungs: Vec<Config> = Config::all().into_iter().filter(|c| c.family() == "scalar").collect();
    let started = Instant::now();
    let mut rng = Rng::new(first);
    let (mut long, mut masks, mut by_rung) = (0, BTreeMap::new(), BTreeMap::new());
    let mut failures = Vec::new();
    for seed in first..first + count {
        let problem = random_problem(seed, &limits).unwrap();
        long += u64::from(problem.seq_len_q() >= 256 && problem.seq_len_kv() >= 256);
        *masks.entry(mask_kind(problem.mask())).or_insert(0) += 1;
        let chosen = select(&problem, Target::Sm80, 16, &kernels).unwrap().plan;
        // The default, and another config of either rung in turn; some are refused, as strides or registers have it.
        let naive = |config: &Config| config.to_string().contains("naive");
        let others: Vec<&Config> = rungs.iter().filter(|c| naive(c) == (seed % 2 == 0)).collect();
        let other = (0..100).find_map(|_| Plan::with_cache(&problem, rng.pick(&others)?, Target::Sm80, &kernels).ok());
        // Every fourth problem on data that is meant to break kernels.
        let kind = match seed % 4 {
            0 => *rng.pick(&InputKind::ALL).unwrap(),
            _ => InputKind::Normal,
        };
        for plan in std::iter::once(chosen).chain(other) {
            failures.extend(failure(&plan, seed, kind));
            let rung = if plan.config.to_string().contains("naive") {
                "naive"
            } else {
                "tiled"
            };
            *by_rung.entry(rung).or_insert(0) += 1;
        }
    }
    println!(
        "{count} problems from seed {first} in {:.1?}: {long} long, {masks:?}, {by_rung:?}",
        started.elapsed()
    );
    assert_none(&failures);
    if count >= 200 {
        assert!(2 * long >= count, "{long} of {count} are long");
        assert!(
            masks.len() == 3 && masks.values().all(|&n| 10 * n >= count),
            "{masks:?}"
        );
        assert!(by_rung.len() == 2, "{by_rung:?}");
    }
}
