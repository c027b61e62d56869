//! [`Buffers`]: device memory by the names that launches have for their buffers.

use flashcore::unstable::cuda::DeviceSlice;
use flashcore::{Cuda, DeviceSliceMut, Error, Name, Operands, Task, View, ViewMut};

/// Memory of a problem's tensors and of its workspace, by name.
#[derive(Clone, Debug, Default)]
pub struct Buffers<'a>(Vec<(&'static str, DeviceSlice<'a>)>);

impl<'a> Buffers<'a> {
    /// With this memory, in place of other of the name.
    #[must_use]
    pub fn with(mut self, name: &'static str, memory: DeviceSlice<'a>) -> Buffers<'a> {
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, memory));
        self
    }

    /// The memory of a name, if there is any.
    pub fn named(&self, name: &str) -> Option<DeviceSlice<'a>> {
        let found = self.0.iter().find(|(other, _)| *other == name);
        found.map(|(_, memory)| *memory)
    }

    /// The same, which must be there.
    ///
    /// # Errors
    /// It is not.
    pub fn get(&self, name: &'static str, bytes: u64) -> Result<DeviceSlice<'a>, Error> {
        self.named(name).ok_or(Error::DeviceBuffer {
            tensor: name,
            needed: bytes,
            given: None,
        })
    }

    /// The operands of a task among these.
    pub fn operands(&self, task: &impl Task) -> Operands<'_, Cuda> {
        let mut operands = Operands::new();
        for spec in task.tensors() {
            let (element, layout): (_, flashcore::Layout) = (spec.element, spec.layout);
            operands = match self.named(Name::as_str(spec.name)) {
                None => operands,
                Some(memory) if spec.is_written() => {
                    // SAFETY: all work on these buffers is put into one stream.
                    #[allow(unsafe_code)]
                    let memory = unsafe { DeviceSliceMut::new(memory) };
                    operands.with_mut(spec.name, ViewMut::new(element, layout, memory))
                }
                Some(memory) => operands.with(spec.name, View::new(element, layout, memory)),
            };
        }
        operands
    }
}
