//! Device memory between guards. A kernel that writes slightly out of bounds does not fault, but it changes the guards.

use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};

/// Bytes on either side: two tiles of 128 rows of 128 elements of fp16. A multiple of 256, so that what is between is
/// aligned as a separate buffer would be.
const GUARD_BYTES: usize = 64 << 10;
/// What guards are filled with: no poison, which a kernel may copy.
const GUARD: u8 = 0x5c;
/// Where guards begin: on a large page. Of equal kernels on equal buffers one is up to 2 % faster if their buffers do
/// not lie alike in pages.
const ALIGN: usize = 2 << 20;

#[derive(Debug)]
pub(super) struct Guarded {
    name: &'static str,
    bytes: usize,
    memory: DeviceBuffer,
    /// Bytes of `memory` ahead of the guards.
    ahead: usize,
}

impl Guarded {
    /// Allocates a buffer, its values not set. One of no bytes has no guards, for nothing is at its address.
    pub(super) fn new(stream: &Stream, name: &'static str, bytes: usize) -> Result<Guarded, CudaError> {
        let more = if bytes == 0 { 0 } else { 2 * GUARD_BYTES + ALIGN };
        let memory = DeviceBuffer::new(stream.context(), bytes.saturating_add(more))?;
        let guarded = Guarded {
            name,
            bytes,
            ahead: memory.as_slice().address().wrapping_neg() as usize % ALIGN,
            memory,
        };
        for guard in guarded.guards() {
            guard.fill(stream, GUARD)?;
        }
        Ok(guarded)
    }

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
        let (context, address) = (self.memory.context(), self.memory.as_slice().address());
        // By its address, so that no stream waits for what a kernel does in another: that is the kernel's to do.
        // SAFETY: guards are part of what was allocated, and dropping it waits for the device.
        #[allow(unsafe_code)]
        unsafe {
            DeviceSlice::from_raw(context, address + (self.ahead + begin) as u64, bytes)
        }
    }

    /// What was written on its guards, in a sentence, after the work in the stream.
    pub(super) fn outside(&self, stream: &Stream) -> Result<Option<String>, CudaError> {
        let read = |guard: DeviceSlice<'_>| -> Result<Vec<u8>, CudaError> {
            let mut bytes = vec![0; guard.len()];
            guard.copy_to_host(stream, &mut bytes)?;
            Ok(bytes)
        };
        let [before, after] = self.guards();
        Ok(on_guards(self.name, &read(before)?, &read(after)?))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A lost context has nothing that runs.
        let _ = self.memory.context().synchronize();
    }
}

fn on_guards(name: &str, before: &[u8], after: &[u8]) -> Option<String> {
    let is_written = |byte: &u8| *byte != GUARD;
    let written = |guard: &[u8]| guard.iter().filter(|byte| is_written(byte)).count();
    // From the buffer's end backwards: the nearest is told.
    if let Some(near) = before.iter().rposition(is_written) {
        let (count, away) = (written(before), before.len() - near);
        let nearest = format!("the nearest {away} B before it");
        return Some(format!("{count} B were written ahead of {name}, {nearest}"));
    }
    let near = after.iter().position(is_written)?;
    let count = written(after);
    let nearest = format!("the nearest {near} B after its end");
    Some(format!("{count} B were written past {name}, {nearest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearest_to_a_buffer_is_told() {
        let clean = [GUARD; 8];
        assert_eq!(on_guards("out", &clean, &clean), None);
        let mut before = clean;
        (before[1], before[6]) = (0, 1);
        let said = "2 B were written ahead of out, the nearest 2 B before it";
        assert_eq!(on_guards("out", &before, &clean).as_deref(), Some(said));
        let mut after = clean;
        after[3..6].fill(7);
        let said = "3 B were written past out, the nearest 3 B after its end";
        assert_eq!(on_guards("out", &clean, &after).as_deref(), Some(said));
    }
}
