//! Tensors of a task in device memory.

use flashcore::{Cuda, CudaTensor, DType, Host, Name, Operands, Queue, Scalar, Task, Tensor, TensorSpec, View};

/// The tensors of a task, by name.
pub(crate) struct OnDevice(pub(crate) Vec<(TensorSpec, CudaTensor)>);

impl OnDevice {
    /// With these values, and zeros in all others.
    pub(crate) fn new(queue: &mut Queue, task: &impl Task, values: &Operands<'_, Host>) -> OnDevice {
        let upload = |spec: TensorSpec| {
            let zeros = Tensor::filled(DType::F32, [spec.bytes().div_ceil(4) as usize].into(), 0);
            let bytes = values.get(spec.name).map_or(zeros.bytes(), |view| view.memory());
            let bytes = &bytes[..spec.bytes() as usize];
            let view = View::<Host>::new(spec.element, spec.layout, bytes);
            (spec, queue.upload(view).unwrap())
        };
        OnDevice(task.tensors().into_iter().map(upload).collect())
    }

    pub(crate) fn operands(&mut self) -> Operands<'_, Cuda> {
        let mut operands = Operands::new();
        for (spec, tensor) in &mut self.0 {
            operands = if spec.is_written() {
                operands.with_mut(spec.name, tensor)
            } else {
                operands.with(spec.name, &*tensor)
            };
        }
        operands
    }

    pub(crate) fn get(&mut self, name: Name) -> &mut CudaTensor {
        let found = self.0.iter_mut().find(|(spec, _)| spec.name == name);
        &mut found.unwrap().1
    }

    pub(crate) fn write<T: Scalar>(&mut self, queue: &mut Queue, name: Name, values: &[T]) {
        queue.write(self.get(name), values).unwrap();
    }
}
