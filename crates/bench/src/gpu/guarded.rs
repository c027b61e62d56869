//! Device memory between guards: a kernel that writes a little beside what it was given faults nowhere, and on the guards
//! it shows.

use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};

/// Bytes on either side: two tiles of 128 rows of 128 elements of fp16. A multiple of 256, so that what is between is
/// aligned as a buffer of its own is.
const GUARD_BYTES: usize = 64 << 10;
/// What guards are filled with: no poison, which a kernel may copy.
const GUARD: u8 = 0x5c;

/// A buffer between guards.
#[derive(Debug)]
pub(super) struct Guarded {
    name: &'static str,
    bytes: usize,
    memory: DeviceBuffer,
}

impl Guarded {
    /// Allocates a buffer, its values not set. One of no bytes has no guards, for nothing is at its address.
    pub(super) fn new(stream: &Stream, name: &'static str, bytes: usize) -> Result<Guarded, CudaError> {
        let guards = if bytes == 0 { 0 } else { 2 * GUARD_BYTES };
        let memory = DeviceBuffer::new(stream.context(), bytes.saturating_add(guards))?;
        let guarded = Guarded { name, bytes, memory };
        for guard in guarded.guards() {
            guard.fill(stream, GUARD)?;
        }
        Ok(guarded)
    }

    /// The buffer.
    pub(super) fn as_slice(&self) -> DeviceSlice<'_> {
        let begin = if self.bytes == 0 { 0 } else { GUARD_BYTES };
        self.part(begin, self.bytes)
    }

    fn guards(&self) -> [DeviceSlice<'_>; 2] {
        match self.bytes {
            0 => [self.part(0, 0); 2],
            bytes => [self.part(0, GUARD_BYTES), self.part(GUARD_BYTES + bytes, GUARD_BYTES)],
        }
    }

    fn part(&self, begin: usize, bytes: usize) -> DeviceSlice<'_> {
        let part = self.memory.as_slice().range(begin..begin + bytes);
        part.unwrap_or_else(|error| unreachable!("guards are part of what was allocated: {error}"))
    }

    /// What was written on the guards, in a sentence.
    pub(super) fn outside(&self, stream: &Stream) -> Result<Option<String>, CudaError> {
        let [before, after] = self.guards();
        let mut read = vec![GUARD; before.len()];
        before.copy_to_host(stream, &mut read)?;
        // From the tensor's end backwards: the nearest is told.
        if let Some(near) = read.iter().rposition(|&byte| byte != GUARD) {
            let count = written(&read);
            let away = read.len() - near;
            let name = self.name;
            return Ok(Some(format!(
                "{count} B were written ahead of {name}, the nearest {away} B before it"
            )));
        }
        after.copy_to_host(stream, &mut read)?;
        Ok(read.iter().position(|&byte| byte != GUARD).map(|near| {
            let (count, name) = (written(&read), self.name);
            format!("{count} B were written past {name}, the nearest {near} B after its end")
        }))
    }
}

fn written(guard: &[u8]) -> usize {
    guard.iter().filter(|&&byte| byte != GUARD).count()
}
