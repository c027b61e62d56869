//! The library's launches, all in one place.

use flashcore_cuda::{DeviceSlice, Function, PreparedLaunch, Stream};
use flashcore_ir::Launch;

use crate::Error;

/// Enqueues steps of plans in order, once all of them can be.
#[allow(unsafe_code)]
pub(super) fn on<'l, 'a>(
    stream: &Stream,
    steps: impl IntoIterator<Item = (&'l Launch, &'l Function, Vec<DeviceSlice<'a>>)>,
) -> Result<(), Error> {
    let prepare = |(launch, function, buffers): (&'l Launch, &'l Function, Vec<DeviceSlice<'a>>)| {
        // SAFETY: kernel and launch are of one step of `flashcore-kernels`, whose kernels touch what the launch
        // declares for operands of any values: the simulator checks that of every family.
        unsafe { function.prepare(launch, &buffers) }
    };
    let launches = steps.into_iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
    // SAFETY: memory of `DeviceBuffer`s is kept until the work that uses it has ended, and the stream waits for what
    // others do with it; that of `DeviceSlice::from_raw` is kept by its caller. The workspace is that of a `Queue`,
    // whose work is in one stream, one of this call alone, or what the caller of `Attention::run_foreign` promised.
    Ok(unsafe { PreparedLaunch::enqueue_all(&launches, stream) }?)
}
