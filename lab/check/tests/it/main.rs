//! Plans of every family under the checks, and mistakes planted in them.

// Tests read what they wrote, and what lies in the repository.
#![allow(clippy::disallowed_methods)]

mod append;
mod append_report;
mod async_copies;
mod backward_schedules;
mod bank_conflicts;
mod batch_invariant;
mod common;
mod corpus;
mod cost;
mod defaults_fit;
mod f16_scores;
mod fp8;
mod fp8_lengths;
mod head_values;
mod hopper_mutants;
mod hostile_lengths;
mod hostile_ptx;
mod huge_scores;
mod ladder;
mod lengths;
mod lever_problems;
mod mma_backward;
mod mma_mutants;
mod museum;
mod mutants;
mod open_ptx;
mod operand_checks;
mod packed_wgmma;
mod pictures;
mod planted;
mod planted_places;
mod q_in_registers;
mod random_problems;
mod read_ptx;
mod scalar_backward;
mod scales;
mod schedule_rounds;
mod split_keys;
mod split_wgmma;
mod splits;
mod stale_schedules;
mod taps;
mod watch;
mod wgmma_ahead;
mod wgmma_backward;
mod wgmma_backward_order;
mod wgmma_mutants;
mod wgmma_split_backward;
mod wide_caches;
