//! `Q·Kᵀ` by itself on a GPU: tensor cores against plain FMAs, scores written in the problem's
//! dtype.

use std::error::Error;

use flashcore::cuda::{Context, Stream};
use flashcore_bench::gpu::{ClosureSubject, GpuStopwatch, GpuTools};
use flashcore_bench::{self as bench, Mode, Subject, measure, problems};
use flashcore_cuda::{DeviceBuffer, Function, ModuleOptions, PreparedLaunch};
use flashcore_kernels::ladder::scores::{Levers, plan};
use flashcore_problem::{
    Comparison, InputKind, Inputs, Layout, POISON, Problem, Tensor, Tolerance, compare_tap, reference_scores,
};

/// Runs in one graph.
const CHAIN: u32 = 64;

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
        println!("{} on {}", case.problem, context.info().name);
        time(&stream, &tools, &case.problem)?;
    }
    crate::verdict(true)
}

/// Times each kernel in graphs, after its scores have been compared with float64.
fn time(stream: &Stream, tools: &GpuTools, problem: &Problem) -> Result<(), Box<dyn Error>> {
    let context = stream.context();
    let inputs = Inputs::generate(problem, InputKind::Normal, 1);
    let want = reference_scores(problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view())?;
    let q = DeviceBuffer::from_host(stream, inputs.q.bytes())?;
    let k = DeviceBuffer::from_host(stream, inputs.k.bytes())?;
    let scores = DeviceBuffer::new(context, want.len() * problem.dtype().size_bytes())?;
    let mut subjects: Vec<Box<dyn Subject + '_>> = Vec::new();
    for levers in Levers::all() {
        let label = levers.to_string();
        let step = match plan(problem, levers, context.info().chip().target) {
            Ok(step) => step,
            Err(refusal) => {
                println!("  {label:<24} {refusal}");
                continue;
            }
        };
        let function = Function::load(context, &step.kernel, &ModuleOptions::default())?;
        let launch = function.prepare(&step.launch, &[q.as_slice(), k.as_slice(), scores.as_slice()])?;
        let found = compared(stream, problem, &launch, &scores, &want)?;
        if !found.passed {
            println!("  {label:<24} its scores are wrong: {found}");
            continue;
        }
        let work = move |stream: &Stream| (0..CHAIN).try_for_each(|_| launch.enqueue(stream));
        subjects.push(Box::new(ClosureSubject::new(&label, stream, CHAIN, work)?));
    }
    let (options, mut stopwatch) = (bench::Options::default(), GpuStopwatch::new(tools, stream));
    let measured = measure(&options, Mode::Hot, &mut subjects, 0, &mut stopwatch, None, &mut ())?;
    let pairs = (problem.lse_len() * problem.seq_len_kv()) as f64;
    for subject in &measured.subjects {
        let label = &subject.info.label;
        let Some(times) = subject.summary else {
            println!("  {label:<24} {}", subject.trouble.as_deref().unwrap_or("not timed"));
            continue;
        };
        println!(
            "  {label:<24} {:8.2} µs ({:.2} to {:.2})  {:7.1} TFLOP/s  {:6.0} GB/s written",
            times.p50,
            times.interval.lo,
            times.interval.hi,
            2.0 * problem.head_dim() as f64 * pairs / times.p50 / 1e6,
            problem.dtype().size_bytes() as f64 * pairs / times.p50 / 1e3,
        );
    }
    Ok(())
}

/// Runs a kernel once over poison, and compares what it wrote.
fn compared(
    stream: &Stream,
    problem: &Problem,
    launch: &PreparedLaunch<'_>,
    scores: &DeviceBuffer,
    want: &[f64],
) -> Result<Comparison, Box<dyn Error>> {
    scores.as_slice().fill(stream, POISON)?;
    launch.enqueue(stream)?;
    let mut written = Tensor::poisoned(problem.dtype(), Layout::bshd([1, 1, 1, want.len()]));
    scores.as_slice().copy_to_host(stream, written.bytes_mut())?;
    stream.synchronize()?;
    let got: Vec<f32> = (0..want.len()).map(|i| written.view().get(0, 0, 0, i)).collect();
    Ok(compare_tap(problem, &got, want, Tolerance::of(problem.dtype()))?)
}
