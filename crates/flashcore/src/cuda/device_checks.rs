//! Values on the device are checked before a call reads them, where `FLASHCORE_CHECK=1` or
//! [`Options::checks`](crate::Options::checks) asks for it.
//!
//! The kernel of [`flashcore_kernels::checks`] is enqueued first, in the call's stream. Outside of a capture the host
//! waits for its record, and refuses the call before any other kernel of it is enqueued. In a graph the
//! kernel is a node, so each replay checks the values of that time; the next call outside reads its record.
//!
//! Records belong to the device, not to an `Attention` or a stream: one that all captured calls write to, and one for
//! each call that waits at the same time. None is ever freed, nor is the device's primary context released then, since
//! nothing says how long a graph of another library may be replayed.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_cuda::{Context, CudaError, DeviceBuffer, DeviceSlice, Function, Stream};
use flashcore_kernels::Step;
use flashcore_kernels::checks::{RECORD_WORDS, violation};
use flashcore_problem::ProblemError;

use super::{launch, memory_of};
use crate::Error;

/// Whether the environment asks for checks: `FLASHCORE_CHECK` is set, and neither empty nor 0.
pub(crate) fn of_environment() -> bool {
    is_on(std::env::var_os("FLASHCORE_CHECK"))
}

pub(super) fn is_on(value: Option<OsString>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// A launch that checks, and its compiled kernel.
#[derive(Debug)]
pub(crate) struct Check {
    pub(super) step: Step,
    pub(super) function: Function,
}

impl Check {
    fn enqueue<'a>(
        &self,
        stream: &Stream,
        record: DeviceSlice<'a>,
        named: impl Fn(&str) -> Option<DeviceSlice<'a>>,
    ) -> Result<(), Error> {
        let buffers = self.step.launch.buffers.iter().map(|spec| match spec.name {
            "record" => Ok(record),
            name => memory_of(spec, named(name)),
        });
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        launch::on(stream, [(&self.step.launch, &self.function, buffers)])
    }
}

/// The records of a device.
pub(super) struct Records {
    context: Context,
    /// What graphs write to.
    captured: DeviceBuffer,
    /// Whether some graph does.
    is_captured: AtomicBool,
    /// Those that no call waits for. All are empty.
    free: Mutex<Vec<DeviceBuffer>>,
}

impl Records {
    /// Those of a device, allocated at the first use.
    pub(super) fn of(context: &Context) -> Result<Arc<Records>, CudaError> {
        static ALL: Mutex<Option<HashMap<u32, Arc<Records>>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(records) = all.get(&context.ordinal()) {
            return Ok(records.clone());
        }
        let records = Arc::new(Records {
            captured: Records::empty(context)?,
            context: context.clone(),
            is_captured: AtomicBool::new(false),
            free: Mutex::default(),
        });
        all.insert(context.ordinal(), records.clone());
        Ok(records)
    }

    /// An empty record, by a stream for itself: a captured one would empty it at each replay.
    fn empty(context: &Context) -> Result<DeviceBuffer, CudaError> {
        DeviceBuffer::from_host(&Stream::new(context)?, &[0u32; RECORD_WORDS])
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<DeviceBuffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a record has after the work in the stream; it is empty afterwards.
    fn take(&self, record: &DeviceBuffer, stream: &Stream) -> Result<Option<ProblemError>, CudaError> {
        let words = record.to_vec::<u32>(stream)?;
        let found = words.first_chunk().and_then(violation);
        if found.is_some() {
            record.as_slice().copy_from_host(stream, &[0; 4 * RECORD_WORDS])?;
        }
        Ok(found)
    }

    /// Checks a call's values, whose memory `named` gives, unless it has none; then what graphs have found.
    pub(super) fn check<'a>(
        &self,
        stream: &Stream,
        check: Option<&Check>,
        named: impl Fn(&str) -> Option<DeviceSlice<'a>>,
    ) -> Result<(), Error> {
        if stream.is_captured()? {
            if let Some(check) = check {
                self.is_captured.store(true, Ordering::Relaxed);
                check.enqueue(stream, self.captured.as_slice(), |name| named(name))?;
            }
            return Ok(());
        }
        if let Some(check) = check {
            let free = self.free().pop();
            let record = free.map_or_else(|| Records::empty(&self.context), Ok)?;
            // After an error the record goes: work that did not end may write to it.
            let found = check
                .enqueue(stream, record.as_slice(), |name| named(name))
                .and_then(|()| Ok(self.take(&record, stream)?))?;
            self.free().push(record);
            if let Some(error) = found {
                return Err(error.into());
            }
        }
        if self.is_captured.load(Ordering::Relaxed)
            && let Some(error) = self.take(&self.captured, stream)?
        {
            return Err(Error::Captured(error));
        }
        Ok(())
    }
}
