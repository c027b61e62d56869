//! One product by itself: `S = scale·Q·Kᵀ` on tensor cores, without, and by whatever else the caller brings.

use flashcore_cuda::{DeviceBuffer, Function, ModuleOptions, PreparedLaunch, Stream};

use flashcore_kernels::ladder::scores::{Levers, plan};
use flashcore_problem::{
    Comparison, InputKind, Inputs, Layout, POISON, Problem, Tensor, Tolerance, compare_stage, reference_scores,
};

use super::{ClosureSubject, GpuStopwatch, GpuTools};
use crate::error::BenchError;
use crate::identity::{LaunchMode, SubjectInfo};
use crate::measure::{Measurement, measure};
use crate::options::{Mode, Options};
use crate::peers::Absent;
use crate::subject::Subject;

/// Runs in one graph.
const CHAIN: u32 = 64;

/// Times of `S = scale·Q·Kᵀ`, written in the problem's dtype.
#[derive(Clone, Debug)]
pub struct ScoreTimes {
    /// All that were timed against each other; the first is the baseline.
    pub measurement: Measurement,
    /// Kernels of this project that were not timed: refused, or wrong.
    pub absent: Vec<Absent>,
}

/// Times the product on a GPU, each kernel in graphs of 64 runs, after its scores have been compared with float64.
///
/// `others` come first, and are not inspected: a library's matrix product on tensors of its own, say. The
/// Python bindings' subjects are such; a PyTorch peer would call `torch.matmul(q, k.transpose(-1, -2))`.
///
/// # Errors
/// What the driver says, nothing to measure, or options out of range.
pub fn time_scores<'a>(
    stream: &'a Stream,
    tools: &'a GpuTools,
    problem: &Problem,
    levers: &[Levers],
    others: Vec<Box<dyn Subject + 'a>>,
    options: &Options,
) -> Result<ScoreTimes, BenchError> {
    let context = stream.context();
    let target = context.info().chip().target;
    let inputs = Inputs::generate(problem, InputKind::Normal, 1);
    let want = reference_scores(problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view())?;
    let q = DeviceBuffer::from_host(stream, inputs.q.bytes())?;
    let k = DeviceBuffer::from_host(stream, inputs.k.bytes())?;
    let scores = DeviceBuffer::new(context, want.len() * problem.dtype().size_bytes())?;
    let buffers = [q.as_slice(), k.as_slice(), scores.as_slice()];

    let mut subjects: Vec<Box<dyn Subject + '_>> = Vec::new();
    for other in others {
        subjects.push(other);
    }
    let mut absent = Vec::new();
    for &levers in levers {
        let label = levers.to_string();
        let mut leave_out = |reason: String| {
            absent.push(Absent {
                label: label.clone(),
                reason,
            });
        };
        let step = match plan(problem, levers, target) {
            Ok(step) => step,
            Err(refusal) => {
                leave_out(refusal.to_string());
                continue;
            }
        };
        let function = Function::load(context, &step.kernel, &ModuleOptions::default())?;
        let launch = function.prepare(&step.launch, &buffers)?;
        let found = inspect(stream, problem, &launch, &scores, &want)?;
        if !found.passed {
            leave_out(format!("its scores are wrong: {found}"));
            continue;
        }
        let work = move |stream: &Stream| (0..CHAIN).try_for_each(|_| launch.enqueue(stream));
        let info = SubjectInfo::new(label, LaunchMode::Graph(CHAIN));
        subjects.push(Box::new(ClosureSubject::new(info, stream, CHAIN, true, work)?));
    }
    let mut stopwatch = GpuStopwatch::new(tools, stream);
    Ok(ScoreTimes {
        measurement: measure(options, Mode::Hot, &mut subjects, 0, &mut stopwatch, &mut (), &mut ())?,
        absent,
    })
}

/// Runs a kernel once over poison, and compares what it wrote.
fn inspect(
    stream: &Stream,
    problem: &Problem,
    launch: &PreparedLaunch<'_>,
    scores: &DeviceBuffer,
    want: &[f64],
) -> Result<Comparison, BenchError> {
    scores.as_slice().fill(stream, POISON)?;
    launch.enqueue(stream)?;
    let mut written = Tensor::poisoned(problem.dtype(), Layout::bshd([1, 1, 1, want.len()]));
    scores.as_slice().copy_to_host(stream, written.bytes_mut())?;
    stream.synchronize()?;
    let got: Vec<f32> = (0..want.len()).map(|i| written.view().get(0, 0, 0, i)).collect();
    Ok(compare_stage(problem, &got, want, Tolerance::of(problem.dtype()))?)
}
