//! `Q·Kᵀ` by itself on a GPU: tensor cores against plain FMAs, scores written in the problem's
//! dtype.

use flashcore::{Context, Stream};
use flashcore_bench::gpu::{GpuTools, time_scores};
use flashcore_bench::{self as bench, problems};
use flashcore_kernels::ladder::scores::Levers;

/// Times Q·Kᵀ by itself.
///
/// For cuBLAS, `python scripts/bench_matmul.py` times `torch.matmul` on the same shapes, in graphs
/// of as many runs. Run both in one session, in turns: they are not interleaved.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A problem, a set or a file of them.
    #[arg(default_value = "mission")]
    problems: String,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let tools = GpuTools::new(&stream)?;
    for case in problems::cases(&options.problems, None)? {
        let problem = &case.problem;
        let found = time_scores(
            &stream,
            &tools,
            problem,
            &Levers::all(),
            Vec::new(),
            &bench::Options::default(),
        )?;
        let pairs = (problem.lse_len() * problem.seq_len_kv()) as f64;
        println!("{problem} on {}", context.info().name);
        for subject in &found.measurement.subjects {
            let Some(times) = subject.summary else {
                println!(
                    "  {:<24} {}",
                    subject.info.label,
                    subject.trouble.as_deref().unwrap_or("not timed")
                );
                continue;
            };
            println!(
                "  {:<24} {:8.2} µs ({:.2} to {:.2})  {:7.1} TFLOP/s  {:6.0} GB/s written",
                subject.info.label,
                times.p50,
                times.interval.lo,
                times.interval.hi,
                2.0 * problem.head_dim() as f64 * pairs / times.p50 / 1e6,
                problem.dtype().size_bytes() as f64 * pairs / times.p50 / 1e3,
            );
        }
        for absent in &found.absent {
            println!("  {:<24} {}", absent.label, absent.reason);
        }
    }
    crate::verdict(true)
}
