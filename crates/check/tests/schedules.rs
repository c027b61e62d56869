//! Every default of every family, from the tables themselves, is clean on small problems. The example `schedules` runs
//! all of them under a hundred schedules; here it is every fourth kernel under two, on a problem of a mask in turn.

#[path = "../examples/schedules/shipped.rs"]
mod shipped;

use std::collections::BTreeSet;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_kernels::{Config, mma, wgmma};
use flashcore_problem::DType;

const EVERY: usize = 4;

#[test]
fn every_default_is_clean() {
    let mut seen = BTreeSet::new();
    for (i, kernel) in shipped::shipped().iter().enumerate().step_by(EVERY) {
        let Ok(plans) = &kernel.plans else { continue };
        let options = CheckOptions {
            schedules: 2,
            first_schedule: i as u64,
            ..CheckOptions::default()
        };
        let report = check_plan(&plans[i / EVERY % plans.len()], &options).unwrap();
        let what = format!("{} on {}, {}", kernel.config, kernel.target, kernel.what);
        assert_eq!(report.verdict, Verdict::Clean, "{what}\n{report}");
        seen.insert(kernel.config.to_string());
    }
    let dtypes = [DType::F16, DType::BF16, DType::E4M3];
    let wgmma = dtypes.into_iter().flat_map(wgmma::defaults);
    let wgmma = wgmma.map(|(config, _)| Config::Wgmma(config));
    let mma = mma::defaults().into_iter().map(|(config, ..)| Config::Mma(config));
    for config in wgmma.chain(mma) {
        assert!(seen.contains(&config.to_string()), "{config} was not run");
    }
}
