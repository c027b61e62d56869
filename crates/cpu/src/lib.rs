//! Fused attention on the CPU.
//!
//! Tiled online softmax in f32 on all cores, with AVX-512, AVX2 or NEON chosen at run time.
//! Supports every [`Problem`]: all dtypes (e4m3 is widened to f32 and scaled), any mask, grouped
//! heads, soft cap, sinks, ALiBi, offsets, strides, log-sum-exp, and every kind of lengths: packed sequences,
//! contiguous and paged caches.
//!
//! ```
//! use flashcore_cpu::attention;
//! use flashcore_problem::{InputKind, Inputs, Problem, Tensor, Tolerance, compare, reference};
//!
//! let problem = Problem::builder().head_dim(64).heads(4, 2).seq_len(100).build()?;
//! let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
//! let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
//! attention(&problem, q.view(), k.view(), v.view(), &mut out.view_mut(), None)?;
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

pub use append::append;
pub use call::run;
pub use combine::combine;
pub use config::{CpuConfig, Options};
pub use error::CpuError;
use flashcore_problem::{BackwardTensors, Direction, Gradients, Lengths, Problem, TensorView, TensorViewMut};
use output::Output;
use schedule::Schedule;
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

/// Computes attention on rayon's current thread pool with default options.
///
/// Tensors are `[batch, seq, heads, head_dim]` in the problem's layouts. Pass `lse` if and only if
/// the problem requests it: `[batch, num_heads, seq_len_q]`, natural logarithm. A fully masked row
/// has output 0 and log-sum-exp −∞. Products are accumulated in f32 for every dtype. The result
/// does not depend on the number of threads.
///
/// Masked keys inside a partly visible K block enter the product with weight 0, as in other fused
/// kernels. An infinite or NaN element of V there makes the output NaN.
///
/// # Errors
/// Tensors that do not match the problem. The output is then unchanged.
pub fn attention(
    problem: &Problem,
    q: TensorView<'_>,
    k: TensorView<'_>,
    v: TensorView<'_>,
    out: &mut TensorViewMut<'_>,
    lse: Option<&mut [f32]>,
) -> Result<(), CpuError> {
    attention_with(&Options::default(), problem, [q, k, v], &Lengths::default(), out, lse)
}

/// [`attention`] with the values of lengths, where the problem has any, and with explicit tile sizes,
/// thread pool or instruction set. Rows of the output that are of no sequence stay as they are.
///
/// ```
/// use flashcore_cpu::{Options, attention_with};
/// use flashcore_problem::{InputKind, Inputs, Lengths, Problem, Tensor};
/// let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(64).build()?;
/// let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
/// let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
/// let options = Options { config: Some("cpu/m64n128".parse()?), ..Options::default() };
/// let tensors = [q.view(), k.view(), v.view()];
/// attention_with(&options, &problem, tensors, &Lengths::default(), &mut out.view_mut(), None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`attention`], and options that are invalid or not available on this machine.
pub fn attention_with(
    options: &Options<'_>,
    problem: &Problem,
    [q, k, v]: [TensorView<'_>; 3],
    lengths: &Lengths<&[i32]>,
    out: &mut TensorViewMut<'_>,
    lse: Option<&mut [f32]>,
) -> Result<(), CpuError> {
    problem.check_tensors(&q, &k, &v, out, lse.as_deref())?;
    let sequences = problem.sequences(lengths)?;
    let arch = arch_of(options)?;
    let run = || {
        let threads = rayon::current_num_threads();
        let schedule = Schedule {
            problem,
            tensors: [q, k, v],
            sequences: &sequences,
            config: options.config.unwrap_or_else(|| default_config(problem, threads)),
            output: Output::new(out, lse, q.sinks()),
            arch,
        };
        schedule.run();
    };
    match options.pool {
        Some(pool) => pool.install(run),
        None => run(),
    }
    Ok(())
}

/// The gradients of Q, K and V of a [backward problem](flashcore_problem::direction), with the values
/// of lengths where the problem has any. Products are accumulated in f32 for every dtype. The result
/// does not depend on the number of threads. Rows of gradients that are of no sequence stay as they
/// are.
///
/// ```
/// use flashcore_cpu::{Options, backward};
/// use flashcore_problem::{BackwardTensors, Gradients, InputKind, Inputs, Lengths, Problem, Tensor};
/// let problem = Problem::builder().heads(2, 1).head_dim(64).seq_len(33).build()?.backward()?;
/// let Inputs { q, k, v, saved: Some(saved), .. } = Inputs::generate(&problem, InputKind::Normal, 1) else {
///     unreachable!("a backward problem has them");
/// };
/// let tensors = BackwardTensors {
///     q: q.view(),
///     k: k.view(),
///     v: v.view(),
///     out: saved.out.view(),
///     lse: &saved.lse,
///     dout: saved.dout.view(),
/// };
/// let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|like| Tensor::poisoned(problem.dtype(), *like.layout()));
/// let mut gradients = Gradients { dq: dq.view_mut(), dk: dk.view_mut(), dv: dv.view_mut() };
/// backward(&Options::default(), &problem, &tensors, &Lengths::default(), &mut gradients)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A forward problem, tensors that do not match the problem, and options that are invalid or not
/// available on this machine. Gradients are then unchanged.
pub fn backward(
    options: &Options<'_>,
    problem: &Problem,
    tensors: &BackwardTensors<'_>,
    lengths: &Lengths<&[i32]>,
    gradients: &mut Gradients<TensorViewMut<'_>>,
) -> Result<(), CpuError> {
    problem.check_backward(tensors, gradients)?;
    let call = backward::Backward {
        problem,
        tensors: *tensors,
        sequences: &problem.sequences(lengths)?,
        arch: arch_of(options)?,
        config: options.config.unwrap_or(BACKWARD_CONFIG),
    };
    match options.pool {
        Some(pool) => pool.install(|| call.run(gradients)),
        None => call.run(gradients),
    }
    Ok(())
}

/// Tiles of the backward pass: both sides, P and dS fit in a megabyte of cache at the largest head_dim.
const BACKWARD_CONFIG: CpuConfig = CpuConfig {
    tile_q: 64,
    tile_kv: 64,
};

/// The instruction set of a call whose options are valid.
fn arch_of(options: &Options<'_>) -> Result<pulp::Arch, CpuError> {
    let level = options.simd.unwrap_or_else(SimdLevel::best);
    let Some(arch) = level.arch() else {
        let available: Vec<&str> = SimdLevel::available().iter().map(|level| level.name()).collect();
        return Err(CpuError::Simd {
            asked: level,
            available: available.join(", "),
        });
    };
    if let Some(config) = options.config {
        config.check()?;
    }
    Ok(arch)
}

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
