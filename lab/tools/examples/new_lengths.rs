//! Host time of a length that is new while its kernel is not: 400 decode steps and 100 prefills.
//!
//! ```sh
//! cargo run --release -p flashcore-tools --example new_lengths           # choice and launch, on any machine
//! cargo run --release -p flashcore-tools --example new_lengths -- --gpu  # with the copy of work lists to a GPU
//! ```

use std::error::Error;
use std::time::Instant;

use flashcore::{Attention, DType, Device, Mask, Problem, ProblemError};
use flashcore_bench::stats::quantile;
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, select};

/// Heads of Q, and of K and V, of Llama 8B.
const HEADS: (usize, usize) = (32, 8);

fn problem(heads: (usize, usize), rows: usize, keys: usize, mask: Mask) -> Result<Problem, ProblemError> {
    let problem = Problem::builder()
        .heads(heads.0, heads.1)
        .head_dim(128)
        .dtype(DType::BF16);
    problem.seq_len_q(rows).seq_len_kv(keys).mask(mask).build()
}

/// Microseconds of each of these problems.
fn times(
    problems: &[Problem],
    mut plan: impl FnMut(&Problem) -> Result<(), Box<dyn Error>>,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let time = |problem| {
        let start = Instant::now();
        plan(problem)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    problems.iter().map(time).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let lengths = || (0..100).map(|i| 100 + 7919 * i % 8093);
    let decode = (3000..3400).map(|keys| problem(HEADS, 1, keys, Mask::CAUSAL));
    let sets = [
        ("decode", decode.collect::<Result<Vec<_>, _>>()?),
        (
            "prefill causal",
            lengths()
                .map(|n| problem(HEADS, n, n, Mask::CAUSAL))
                .collect::<Result<_, _>>()?,
        ),
        (
            "prefill full",
            lengths()
                .map(|n| problem(HEADS, n, n, Mask::FULL))
                .collect::<Result<_, _>>()?,
        ),
    ];
    let gpu = std::env::args().any(|arg| arg == "--gpu");
    let attention = gpu.then(|| Device::cuda(0).and_then(Attention::new)).transpose()?;
    let kernels = KernelCache::default();
    let mut plan = |problem: &Problem| -> Result<(), Box<dyn Error>> {
        match &attention {
            Some(attention) => drop(attention.prepare(problem)?),
            None => drop(select(problem, Target::Sm90a, 16, &kernels)?),
        }
        Ok(())
    };
    println!("host time of a new length, µs");
    for (name, problems) in sets {
        times(&problems, &mut plan)?;
        // These take the places of the plans above, and more memory than unused lists may.
        let others = (0..800).map(|i| problem((36, 9), 6000 + i, 6000 + i, Mask::CAUSAL));
        times(&others.collect::<Result<Vec<_>, _>>()?, &mut plan)?;
        let mut times = times(&problems, &mut plan)?;
        times.sort_by(f64::total_cmp);
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&times, share));
        println!("{name:<15} p50 {p50:8.2}  p90 {p90:8.2}  p99 {p99:8.2}  max {max:8.2}");
    }
    Ok(())
}
