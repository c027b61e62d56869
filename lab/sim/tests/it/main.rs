//! Correct and faulty kernels in the simulator.

mod bad_launches;
mod bulk;
mod bulk_bytes;
mod clusters;
mod common;
mod copies;
mod counts;
mod findings;
mod flags;
mod forms;
mod group_products;
mod hopper;
mod hopper_attention;
mod hopper_forms;
mod numerics;
mod products;
mod ragged;
mod random_programs;
mod recorded;
mod resident;
mod sums;
mod warpgroups;
mod warps;
