//! One step of a plan with the contents of its buffers on the host.

use flashcore_cuda::{CudaError, Function, ModuleOptions, Stream};
use flashcore_kernels::Step;

use super::guarded::Guarded;
use super::launch;
use crate::{BenchError, Result};

/// Runs a step once on the device and replaces the contents of its launch's buffers, in the order of
/// [`Launch::buffers`](flashcore_ir::Launch), by what it leaves. Builds that spill are run, too: those with a tap may.
///
/// # Errors
/// What the driver or the launch refuses, a fault, and [`BenchError::Failed`] if it wrote outside of a buffer.
pub fn run_step(stream: &Stream, step: &Step, contents: &mut [Vec<u8>]) -> Result<()> {
    let options = ModuleOptions {
        allow_local_memory: true,
        allow_performance_warnings: true,
        ..ModuleOptions::default()
    };
    let function = Function::load(stream.context(), &step.kernel, &options)?;
    let named = step.launch.buffers.iter().zip(contents.iter());
    let buffers = named.map(|(spec, bytes)| {
        let buffer = Guarded::new(stream, spec.name, bytes.len())?;
        buffer.as_slice().copy_from_host(stream, bytes)?;
        Ok(buffer)
    });
    let buffers = buffers.collect::<Result<Vec<Guarded>, CudaError>>()?;
    let slices: Vec<_> = buffers.iter().map(Guarded::as_slice).collect();
    launch::run(&function, stream, &step.launch, &slices)?;
    for (buffer, bytes) in buffers.iter().zip(contents) {
        buffer.as_slice().copy_to_host(stream, bytes)?;
        if let Some(written) = buffer.outside(stream)? {
            return Err(BenchError::Failed(format!("{}: {written}", step.kernel.name())));
        }
    }
    Ok(())
}
