//! Fused attention on the CPU.
//!
//! Tiled online softmax in f32 on all cores, with AVX-512, AVX2 or NEON chosen at run time.
//! Supports every [`Problem`]: all dtypes (e4m3 is widened to f32 and scaled), any mask, grouped
//! heads, soft cap, sinks, ALiBi, offsets, strides, log-sum-exp, and every kind of lengths: packed sequences,
//! contiguous and paged caches.
//!
//! ```
//! use flashcore_cpu::{Options, run};
//! use flashcore_problem::{InputKind, Inputs, Operands, Problem, Tensor, Tolerance, compare, reference};
//!
//! let problem = Problem::builder().head_dim(64).heads(4, 2).seq_len(100).build()?;
//! let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
//! let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
//! run(&Options::default(), &problem, Operands::forward(&q, &k, &v, &mut out))?;
//!
//! let want = reference(&problem, &q.view(), &k.view(), &v.view())?;
//! assert!(compare(&problem, &out.view(), &want, Tolerance::of(problem.dtype()))?.passed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod append;
mod backward;
mod call;
mod combine;
mod config;
mod error;
mod keys;
mod output;
mod panel;
mod product;
mod rows;
mod scale;
mod schedule;
mod simd;
mod tile;
mod workspace;

pub use call::run;
pub use config::{CpuConfig, Options};
pub use error::CpuError;
use flashcore_problem::{Direction, Problem};
pub use simd::SimdLevel;

/// Why this build of the crate is slow, and what to write into `Cargo.toml`; `None` where it was optimised.
///
/// Cargo compiles the dependencies of a debug build without optimisation, where a profile does not say otherwise.
pub const SLOW_BUILD: Option<&str> = if cfg!(flashcore_unoptimised) {
    Some(
        "slow, as flashcore-cpu was compiled without optimisation: add `[profile.dev.package.flashcore-cpu]` and \
         below it `opt-level = 3` to Cargo.toml",
    )
} else {
    None
};

/// Tiles of the backward pass: both sides, P and dS fit in a megabyte of cache at the largest head_dim.
const BACKWARD_CONFIG: CpuConfig = CpuConfig {
    tile_q: 64,
    tile_kv: 64,
};

/// The default tile sizes: 128 query rows, or fewer if that gives less than four tiles per thread, and
/// 128 keys, or 64 where head_dim is at most 64: a panel's Q, P and the block of V then leave half of
/// a core's L1 cache to its other thread. The backward pass has tiles of 64 rows and 64 keys.
pub fn default_config(problem: &Problem, threads: usize) -> CpuConfig {
    if problem.direction() == Direction::Backward {
        return BACKWARD_CONFIG;
    }
    const TILES_A_THREAD: usize = 4;
    let one_sequence = problem.of_one_sequence();
    let problem = one_sequence.as_ref().unwrap_or(problem);
    let rows = problem.lse_len();
    let rows = rows * schedule::key_ranges(rows, problem.seq_len_kv());
    let tile_q = [128, 64, 32]
        .into_iter()
        .find(|tile_q| rows / tile_q >= threads * TILES_A_THREAD)
        .unwrap_or(CpuConfig::TILE_Q_STEP);
    let tile_kv = if problem.head_dim() <= 64 { 64 } else { 128 };
    CpuConfig { tile_q, tile_kv }
}

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
