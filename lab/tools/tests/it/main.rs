//! Random kernels under the simulator, and what GPUs answered to them; mistakes planted in kernels, and every shipped
//! kernel under many schedules; the steps of a server; search strategies and predictions on what was measured once.
//! Tests that take an hour are run by `cargo test --release -p flashcore-tools --test it -- --ignored --nocapture`.

// Tests read what they wrote, and what lies in the repository.
#![allow(clippy::disallowed_methods)]

mod files;
mod mutation;
mod pipes;
mod probes;
mod ranking;
mod schedules;
mod serve;
mod strategies;

/// The words of an environment variable, or the usual ones.
fn words(variable: &str, usual: &str) -> Vec<String> {
    let given = std::env::var(variable).unwrap_or(usual.to_string());
    given.split_whitespace().map(str::to_string).collect()
}
