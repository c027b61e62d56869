//! Operands in device memory: [`Cuda`], and [`CudaTensor`], a tensor that owns its memory.

use std::marker::PhantomData;

use flashcore_cuda::{DeviceBuffer, DeviceSlice};
use flashcore_problem::view::sealed::Sealed;
use flashcore_problem::{Access, ElementType, Layout, Memory, Operands, TensorSpec, View, ViewMut};

use crate::Schedule;

/// Device memory of a GPU, as [`Host`](crate::Host) is that of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuda {}

impl Sealed for Cuda {}

impl Memory for Cuda {
    type Ref<'a> = DeviceSlice<'a>;
    type Mut<'a> = DeviceSliceMut<'a>;
    type Schedule<'a> = &'a mut Schedule;

    fn extent(memory: DeviceSlice<'_>) -> (u64, u64) {
        (memory.address(), memory.len() as u64)
    }

    fn shorter<'m, 'a: 'm>(memory: &'m DeviceSlice<'a>) -> DeviceSlice<'m> {
        *memory
    }

    fn shared<'m>(memory: &'m DeviceSliceMut<'_>) -> DeviceSlice<'m> {
        memory.0
    }
}

/// A slice of device memory that a call writes: that of a [`CudaTensor`] that is borrowed mutably.
#[derive(Debug)]
pub struct DeviceSliceMut<'a>(DeviceSlice<'a>, PhantomData<&'a mut ()>);

impl<'a> DeviceSliceMut<'a> {
    /// A slice of another library, to be written. [`DeviceSlice`] is `Copy`, so it does not say that nothing else has
    /// the memory:
    ///
    /// ```compile_fail,E0277
    /// fn write<'a>(memory: flashcore::unstable::cuda::DeviceSlice<'a>) -> flashcore::DeviceSliceMut<'a> {
    ///     memory.into()
    /// }
    /// ```
    ///
    /// # Safety
    /// Nothing else uses the memory during `'a`, but for work on the device that is ordered before or after the calls
    /// that have this slice.
    #[allow(unsafe_code)]
    pub unsafe fn new(memory: DeviceSlice<'a>) -> DeviceSliceMut<'a> {
        DeviceSliceMut::of(memory)
    }

    /// Of memory that is borrowed mutably.
    pub(crate) fn of(memory: DeviceSlice<'a>) -> DeviceSliceMut<'a> {
        DeviceSliceMut(memory, PhantomData)
    }
}

/// A tensor in device memory, dense or strided: what [`Queue::upload`](crate::Queue::upload) and
/// [`Queue::empty`](crate::Queue::empty) make.
///
/// It may be used in any queue of its device: a call waits, on the device, for what other queues did with it before.
/// When it is dropped, and graphs that use it are, its memory is freed after the work that uses it. Operands do not
/// outlive it:
///
/// ```compile_fail,E0515
/// use flashcore::{Cuda, CudaTensor, Operands, Queue};
/// fn operands<'a>(q: &'a CudaTensor, out: &'a mut CudaTensor, queue: &mut Queue) -> Operands<'a, Cuda> {
///     let k = queue.upload(&[0f32; 8]).unwrap();
///     Operands::forward(q, &k, &k, out)
/// }
/// ```
#[derive(Debug)]
pub struct CudaTensor {
    element: ElementType,
    layout: Layout,
    memory: DeviceBuffer,
}

impl CudaTensor {
    pub(crate) fn new(element: ElementType, layout: Layout, memory: DeviceBuffer) -> CudaTensor {
        CudaTensor {
            element,
            layout,
            memory,
        }
    }

    /// What it holds.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its memory: the elements, gaps included.
    pub fn as_slice(&self) -> DeviceSlice<'_> {
        self.memory.as_slice()
    }
}

impl<'a> From<&'a CudaTensor> for View<'a, Cuda> {
    fn from(tensor: &'a CudaTensor) -> View<'a, Cuda> {
        View::new(tensor.element, tensor.layout, tensor.as_slice())
    }
}

impl<'a> From<&'a mut CudaTensor> for ViewMut<'a, Cuda> {
    fn from(tensor: &'a mut CudaTensor) -> ViewMut<'a, Cuda> {
        ViewMut::new(tensor.element, tensor.layout, DeviceSliceMut::of(tensor.as_slice()))
    }
}

/// The operands that these tensors of a task are.
pub(crate) fn on_device(tensors: &mut [(TensorSpec, CudaTensor)]) -> Operands<'_, Cuda> {
    let mut operands = Operands::new();
    for (TensorSpec { name, access, .. }, tensor) in tensors {
        operands = match access {
            Access::Read => operands.with(*name, &*tensor),
            Access::Write | Access::ReadWrite => operands.with_mut(*name, tensor),
        };
    }
    operands
}
