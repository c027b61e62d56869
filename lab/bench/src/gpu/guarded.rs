//! Device memory between guards. A kernel that writes slightly out of bounds does not fault, but it changes the guards.

use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Stream};

/// Bytes on either side: two tiles of 128 rows of 128 elements of fp16. A multiple of 256, so that what is between is
/// aligned as a separate buffer would be.
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

    /// The guards before and after it.
    fn guards(&self) -> [DeviceSlice<'_>; 2] {
        match self.bytes {
            0 => [self.part(0, 0); 2],
            bytes => [self.part(0, GUARD_BYTES), self.part(GUARD_BYTES + bytes, GUARD_BYTES)],
        }
    }

    fn part(&self, begin: usize, bytes: usize) -> DeviceSlice<'_> {
        part(&self.memory, begin, bytes)
    }
}

fn part(memory: &DeviceBuffer, begin: usize, bytes: usize) -> DeviceSlice<'_> {
    let part = memory.as_slice().range(begin..begin + bytes);
    part.unwrap_or_else(|error| unreachable!("guards are part of what was allocated: {error}"))
}

/// Looks at the guards of several buffers at once: they are gathered on the device, and copied to the host together.
#[derive(Debug)]
pub(super) struct Lookout {
    /// Buffers whose guards it holds.
    at_once: usize,
    gathered: DeviceBuffer,
}

impl Lookout {
    /// For so many buffers at once.
    pub(super) fn new(stream: &Stream, at_once: usize) -> Result<Lookout, CudaError> {
        Ok(Lookout {
            at_once,
            gathered: DeviceBuffer::new(stream.context(), at_once * 2 * GUARD_BYTES)?,
        })
    }

    /// What was written on the guards of the first of these buffers that has anything, in a sentence.
    pub(super) fn outside(&self, stream: &Stream, buffers: &[&Guarded]) -> Result<Option<String>, CudaError> {
        let guarded: Vec<&Guarded> = buffers.iter().copied().filter(|buffer| buffer.bytes > 0).collect();
        for some in guarded.chunks(self.at_once) {
            let guards = some.iter().flat_map(|buffer| buffer.guards());
            for (at, guard) in guards.enumerate() {
                part(&self.gathered, at * GUARD_BYTES, GUARD_BYTES).copy_from(stream, guard)?;
            }
            let mut read = vec![0; some.len() * 2 * GUARD_BYTES];
            part(&self.gathered, 0, read.len()).copy_to_host(stream, &mut read)?;
            let mut pairs = some.iter().zip(read.chunks_exact(2 * GUARD_BYTES));
            let outside = pairs.find_map(|(buffer, guards)| {
                let (before, after) = guards.split_at(GUARD_BYTES);
                on_guards(buffer.name, before, after)
            });
            if outside.is_some() {
                return Ok(outside);
            }
        }
        Ok(None)
    }
}

/// What was written on a buffer's guards, in a sentence.
fn on_guards(name: &str, before: &[u8], after: &[u8]) -> Option<String> {
    let is_written = |byte: &u8| *byte != GUARD;
    let written = |guard: &[u8]| guard.iter().filter(|byte| is_written(byte)).count();
    // From the buffer's end backwards: the nearest is told.
    if let Some(near) = before.iter().rposition(is_written) {
        let (count, away) = (written(before), before.len() - near);
        return Some(format!(
            "{count} B were written ahead of {name}, the nearest {away} B before it"
        ));
    }
    let near = after.iter().position(is_written)?;
    let count = written(after);
    Some(format!(
        "{count} B were written past {name}, the nearest {near} B after its end"
    ))
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
