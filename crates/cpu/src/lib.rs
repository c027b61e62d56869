//! Fused attention on the CPU.
//!
//! Tiled online softmax in f32 on all cores, with AVX-512, AVX2 or NEON chosen at run time.
//! Supports every [`Problem`]: all dtypes (e4m3 is widened to f32 and scaled), any mask, grouped
//! heads, soft cap, offsets, strides, log-sum-exp, and every kind of lengths: packed sequences,
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

mod config;
mod error;
mod keys;
mod output;
mod panel;
mod rows;
mod schedule;
mod simd;
mod tile;
mod workspace;

pub use config::{CpuConfig, Options};
pub use error::CpuError;
use flashcore_problem::{Lengths, Problem, TensorView, TensorViewMut};
use output::Output;
use schedule::Schedule;
pub use simd::SimdLevel;

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
    let run = || {
        let threads = rayon::current_num_threads();
        let schedule = Schedule {
            problem,
            tensors: [q, k, v],
            sequences: &sequences,
            config: options.config.unwrap_or_else(|| default_config(problem, threads)),
            output: Output::new(out, lse),
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

/// The default tile sizes: 128 query rows, or fewer if that gives less than four tiles per thread.
pub fn default_config(problem: &Problem, threads: usize) -> CpuConfig {
    const TILES_A_THREAD: usize = 4;
    let rows = problem.lse_len();
    let rows = rows * schedule::key_ranges(rows, problem.seq_len_kv());
    let tile_q = [128, 64, 32]
        .into_iter()
        .find(|tile_q| rows / tile_q >= threads * TILES_A_THREAD)
        .unwrap_or(CpuConfig::TILE_Q_STEP);
    CpuConfig { tile_q, tile_kv: 128 }
}
