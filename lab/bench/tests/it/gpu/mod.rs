//! What only a GPU can prove about the bench. Where there is none, each test is skipped and says why;
//! `FLASHCORE_REQUIRE_GPU=1` makes that a failure. One test runs at a time, because they measure time.
//!
//! On a machine without cargo, copy the test binary (`target/release/deps/it-…`, which `cargo test --release -p
//! flashcore-bench --test it --no-run` prints) and run it there: `./it gpu --nocapture`.

mod cheats;
mod repeat;
mod selfcheck;

use std::error::Error;
use std::sync::{Mutex, PoisonError};

use flashcore::unstable::cuda::Context;
use flashcore_kernels::{Config, KernelCache, Plan, select};
use flashcore_problem::Problem;

/// Runs a check on device 0; skips it where there is no driver or device.
fn run(check: fn(&Context) -> Result<(), Box<dyn Error>>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match Context::new(0) {
        Ok(context) => check(&context).unwrap_or_else(|error| panic!("{error}")),
        Err(error) => {
            assert!(std::env::var_os("FLASHCORE_REQUIRE_GPU").is_none(), "{error}");
            eprintln!("skipped: {error}");
        }
    }
}

/// The words of an environment variable, or the usual ones.
fn words(variable: &str, usual: &str) -> Vec<String> {
    let given = std::env::var(variable).unwrap_or(usual.to_string());
    given.split_whitespace().map(str::to_string).collect()
}

/// The plan of a config, or of the one that heuristics choose.
fn plan_of(problem: &Problem, config: Option<&Config>, context: &Context) -> Result<Plan, Box<dyn Error>> {
    let chip = context.info().chip();
    match config {
        Some(config) => Ok(Plan::new(problem, config, chip)?),
        None => Ok(select(problem, chip, 16, &KernelCache::default())?.plan),
    }
}
