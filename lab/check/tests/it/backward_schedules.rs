//! Every default of the backward pass is clean and right under several schedules, with sums in any order and in order.

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan, mma, wgmma};
use flashcore_problem::{Mask, Problem};

/// Two heads on a K/V head. Several tiles of query rows and of keys, both with tails: of the keys three in order, since
/// the sum of two numbers does not depend on their order. For the smallest target that serves it.
fn are_clean(config: &Config, head_dim: usize, [rows, keys]: [usize; 2]) {
    let any_order = (false, Mask::CAUSAL.top_left(), keys, 10);
    let in_order = (true, Mask::FULL, 2 * keys, 3);
    // Blocks that share a tile add to dK and dV in any order alone.
    let shares_tiles = matches!(config, Config::Wgmma(config) if config.splits > 1);
    let orders = [any_order, in_order];
    for (deterministic, mask, keys, schedules) in orders.into_iter().take(if shares_tiles { 1 } else { 2 }) {
        let builder = Problem::builder().heads(2, 1).seq_len_q(rows).seq_len_kv(keys);
        let builder = builder.head_dim(head_dim).mask(mask).deterministic(deterministic);
        let problem = builder.build().unwrap().backward().unwrap();
        let on = |target| Plan::new(&problem, config, target);
        let plan = on(Target::Sm80).or_else(|_| on(Target::Sm90a)).unwrap();
        let options = CheckOptions {
            schedules,
            ..CheckOptions::default()
        };
        let report = check_plan(&plan, &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{problem} by {config}\n{report}");
        assert_eq!(
            (report.reproducible, report.schedules.len()),
            (deterministic, schedules as usize)
        );
    }
}

#[test]
fn defaults_of_wgmma_are_clean_under_many_schedules() {
    for (config, head_dim) in wgmma::backward_defaults() {
        // Of the same tiles, and where shares of dQ are narrower.
        for head_dim in [head_dim, head_dim / 4 * 3] {
            are_clean(&Config::Wgmma(config), head_dim, [140, 150]);
        }
    }
}

#[test]
fn defaults_of_mma_are_clean_under_many_schedules() {
    for (config, head_dim) in mma::backward_defaults() {
        let rows = (config.rows as usize + 12).max(70);
        are_clean(&Config::Mma(config), head_dim, [rows, 130]);
    }
}
