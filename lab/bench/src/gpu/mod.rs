//! Measuring on a CUDA device. Nothing above these modules touches a driver.

mod bed;
mod buffers;
mod guarded;
pub mod launch;
mod step;
mod subject;
mod tools;

pub use bed::{ForwardPass, GpuBed, TensorSet};
pub use buffers::Buffers;
pub use step::run_step;
pub use subject::{ClosureSubject, KernelSubject, Launching, PreparedPlan};
pub(crate) use tools::one_warp_on;
pub use tools::{GpuStopwatch, GpuTools};

use flashcore_cuda::Stream;

use crate::{Measured, Mode, Options, Result, Subject, measure};

/// Launches of the empty kernel in one graph.
const FLOOR_CHAIN: u32 = 64;

/// What an empty kernel takes in a chain, µs a run: no kernel can take less, and times near it say little about
/// the kernel.
pub fn floor(tools: &GpuTools, stream: &Stream) -> Result<Measured> {
    let work = |stream: &Stream| (0..FLOOR_CHAIN).try_for_each(|_| tools.nothing(stream));
    let subject = ClosureSubject::new("empty kernel", stream, FLOOR_CHAIN, work)?;
    let mut subjects: Vec<Box<dyn Subject + '_>> = vec![Box::new(subject)];
    let options = Options {
        budget_ms: 500.0,
        ..Options::default()
    };
    let mut stopwatch = GpuStopwatch::new(tools, stream);
    let mut measurement = measure(&options, Mode::Hot, &mut subjects, 0, &mut stopwatch, None, &mut ())?;
    Ok(measurement.subjects.remove(0))
}
