//! Every default of every family, from the tables themselves, is clean on small problems. The tool
//! runs all of them under a hundred schedules; here it is every fourth kernel under two, on a
//! problem of a mask in turn, and what family `wgmma` and the plan tables choose for a head size
//! under one.

use std::collections::BTreeSet;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::{Config, mma, wgmma};
use flashcore_problem::{DType, Problem};

use crate::shipped::{HEAD_DIMS, Shipped, plan_rows, proposed, shipped};

const EVERY: usize = 4;

/// A kernel as far as its table tells it from others: 16-bit dtypes have rows in common.
type Chosen = (String, bool, (usize, usize));

fn key(config: &Config, dtype: DType, head_dims: (usize, usize)) -> Chosen {
    (config.to_string(), dtype == DType::E4M3, head_dims)
}

/// What must run whatever the sample: each row of family `wgmma` at the head size that it is for,
/// what the family chooses at each head size, and what plan tables choose.
fn must_run() -> BTreeSet<Chosen> {
    let mut must = BTreeSet::new();
    for dtype in [DType::F16, DType::E4M3] {
        for (config, head_dims) in wgmma::defaults(dtype) {
            must.insert(key(&Config::Wgmma(config), dtype, head_dims));
        }
        for head_dims in HEAD_DIMS {
            let shape = Problem::builder()
                .heads(1, 1)
                .seq_len(128)
                .head_dim(head_dims.0)
                .head_dim_v(head_dims.1)
                .dtype(dtype);
            let configs = proposed(&shape, Target::Sm90a).into_iter();
            // How many splits there are is no matter of the kernel's.
            let of_wgmma = configs.filter_map(|config| match config {
                Config::Wgmma(config) if config.splits > 1 => {
                    Some(Config::Wgmma(wgmma::Config { splits: 3, ..config }))
                }
                Config::Wgmma(config) => Some(Config::Wgmma(config)),
                _ => None,
            });
            must.extend(of_wgmma.map(|config| key(&config, dtype, head_dims)));
        }
    }
    for row in plan_rows().unwrap() {
        must.insert(key(&row.config, row.dtype, (row.head_dim, row.head_dim_v)));
    }
    must
}

/// Runs a kernel on the `turn`th of its problems, if it serves them.
fn is_clean(kernel: &Shipped, turn: usize, schedules: u32) -> bool {
    let Ok(plans) = &kernel.plans else { return false };
    let options = CheckOptions {
        schedules,
        first_schedule: turn as u64,
        ..CheckOptions::default()
    };
    let report = check_plan(&plans[turn % plans.len()], &options).unwrap();
    let what = format!("{} on {}, {}", kernel.config, kernel.target, kernel.what());
    assert_eq!(report.verdict, Verdict::Clean, "{what}\n{report}");
    true
}

#[test]
fn every_default_is_clean() {
    let all = shipped().unwrap();
    let (mut configs, mut must) = (BTreeSet::new(), must_run());
    let of = |kernel: &Shipped| key(&kernel.config, kernel.dtype, kernel.head_dims);
    for (i, kernel) in all.iter().enumerate().step_by(EVERY) {
        if is_clean(kernel, i / EVERY, 2) {
            configs.insert(kernel.config.to_string());
            must.remove(&of(kernel));
        }
    }
    // Each on all of its problems: a race may need a mask that leaves tiles one K block.
    let all_of_them = must_run();
    for kernel in &all {
        let problems = kernel.plans.as_ref().map_or(0, Vec::len);
        let plain = !kernel.lse && !kernel.softcap;
        if plain
            && all_of_them.contains(&of(kernel))
            && (0..problems).filter(|&turn| is_clean(kernel, turn, 1)).count() > 0
        {
            configs.insert(kernel.config.to_string());
            must.remove(&of(kernel));
        }
    }
    assert!(must.is_empty(), "not run: {must:?}");
    let dtypes = [DType::F16, DType::BF16, DType::E4M3];
    let wgmma = dtypes.into_iter().flat_map(wgmma::defaults);
    let wgmma = wgmma.map(|(config, _)| Config::Wgmma(config));
    let mma = mma::defaults().into_iter().map(|(config, ..)| Config::Mma(config));
    for config in wgmma.chain(mma) {
        assert!(configs.contains(&config.to_string()), "{config} was not run");
    }
}
