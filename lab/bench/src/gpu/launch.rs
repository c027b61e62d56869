//! The lab's launches, all in one place.
//!
//! A program that judges kernels launches kernels that may be wrong: this is where that is allowed. What such a kernel
//! can reach is the memory of this process, so whoever calls these runs in a process that has nothing to lose, and
//! holds the buffers until the stream was waited for. `SECURITY.md` says what that means.

use flashcore_cuda::{Context, CudaError, DeviceSlice, Function, Module, ModuleOptions, PreparedLaunch, Stream};
use flashcore_ir::Launch;
use flashcore_ptx::PtxModule;

use crate::BenchError;

/// [`Module::load`] of a text with what it declares.
///
/// # Errors
/// As that; a text that is no PTX.
#[allow(unsafe_code)]
pub fn load(context: &Context, ptx: &str, options: &ModuleOptions) -> crate::Result<Module> {
    let declared = PtxModule::declarations(ptx).map_err(|error| BenchError::Given(error.to_string()))?;
    // SAFETY: the kernels are those of the text.
    Ok(unsafe { Module::load(context, ptx, &declared.kernels(), options)? })
}

/// [`Function::prepare`] of a kernel that is judged, or of one of the lab's own.
///
/// # Errors
/// As that.
#[allow(unsafe_code)]
pub fn prepare<'a>(
    function: &Function,
    launch: &Launch,
    buffers: &[DeviceSlice<'a>],
) -> Result<PreparedLaunch<'a>, CudaError> {
    // SAFETY: plans are of `flashcore-kernels`, which the simulator checks; kernels of the user run only where they are
    // trusted; planted ones stay within the guarded memory of a bed.
    unsafe { function.prepare(launch, buffers) }
}

/// [`PreparedLaunch::enqueue`] of what [`prepare`] gave.
///
/// # Errors
/// As that.
#[allow(unsafe_code)]
pub fn enqueue(launch: &PreparedLaunch<'_>, stream: &Stream) -> Result<(), CudaError> {
    // SAFETY: as `enqueue_all`.
    unsafe { launch.enqueue(stream) }
}

/// [`PreparedLaunch::enqueue_all`] of what [`prepare`] gave.
///
/// # Errors
/// As that.
#[allow(unsafe_code)]
pub fn enqueue_all(launches: &[PreparedLaunch<'_>], stream: &Stream) -> Result<(), CudaError> {
    // SAFETY: a bed owns its tensors and waits for its stream before it is dropped, and nothing else uses them: a bench
    // has one stream.
    unsafe { PreparedLaunch::enqueue_all(launches, stream) }
}

/// [`Function::run`], likewise.
///
/// # Errors
/// As that.
#[allow(unsafe_code)]
pub fn run(
    function: &Function,
    stream: &Stream,
    launch: &Launch,
    buffers: &[DeviceSlice<'_>],
) -> Result<(), CudaError> {
    // SAFETY: as `prepare` and `enqueue_all`.
    unsafe { function.run(stream, launch, buffers) }
}
