//! Plans of every family under the checks, and mistakes planted in them.

mod async_copies;
mod bank_conflicts;
mod common;
mod cost;
mod defaults_fit;
mod f16_scores;
mod fp8;
mod hopper_mutants;
mod ladder;
mod lengths;
mod lever_problems;
mod mma_mutants;
mod museum;
mod mutants;
mod pictures;
mod planted;
mod q_in_registers;
mod random_problems;
mod read_ptx;
mod scales;
mod split_keys;
mod split_wgmma;
mod splits;
mod taps;
mod watch;
mod wgmma_mutants;
