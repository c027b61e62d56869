//! [`View`]: a borrowed tensor in host or device memory. Operands of calls are views.

use std::fmt::Debug;

use crate::{DType, Element, Layout, ProblemError, Tensor, TensorView};

/// What a tensor holds. Q, K, V, O and their gradients are of a [`DType`]; lengths, tables and slots are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Floating-point numbers.
    Float(DType),
    /// Integers of 32 bits: lengths, offsets, pages, slots.
    I32,
    /// Integers of 64 bits: slots.
    I64,
}

impl ElementType {
    /// f32, of scales, slopes and the log-sum-exp.
    pub const F32: ElementType = ElementType::Float(DType::F32);

    /// Bytes per element.
    pub const fn size_bytes(self) -> usize {
        match self {
            ElementType::Float(dtype) => dtype.size_bytes(),
            ElementType::I32 => 4,
            ElementType::I64 => 8,
        }
    }

    /// The dtype of floating-point numbers.
    #[doc(hidden)]
    pub const fn float(self) -> Option<DType> {
        match self {
            ElementType::Float(dtype) => Some(dtype),
            ElementType::I32 | ElementType::I64 => None,
        }
    }

    /// Refuses another Rust type than the elements are of.
    #[doc(hidden)]
    pub fn check_is<T: Scalar>(self) -> Result<(), ProblemError> {
        if self == T::ELEMENT {
            return Ok(());
        }
        let values = T::ELEMENT;
        let message = format!("the tensor holds {self}, and the values are {values}; give or read values of {self}");
        ProblemError::tensor("the tensor", message)
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> ElementType {
        ElementType::Float(dtype)
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            ElementType::Float(dtype) => dtype.name(),
            ElementType::I32 => "i32",
            ElementType::I64 => "i64",
        })
    }
}

/// A Rust type that an operand can hold: an [`Element`] of floating point, `i32`, or `i64`.
pub trait Scalar: bytemuck::Pod {
    /// What a tensor of it holds.
    const ELEMENT: ElementType;
}

impl<T: Element> Scalar for T {
    const ELEMENT: ElementType = ElementType::Float(T::DTYPE);
}

impl Scalar for i32 {
    const ELEMENT: ElementType = ElementType::I32;
}

impl Scalar for i64 {
    const ELEMENT: ElementType = ElementType::I64;
}

/// Where operands are: [`Host`], or the device memory of a GPU (`Cuda` of the crate `flashcore`).
pub trait Memory: sealed::Sealed + Debug + Sized + 'static {
    /// Bytes that are read.
    type Ref<'a>: Copy + Debug;
    /// Bytes that are written.
    type Mut<'a>: Debug;
    /// A schedule that a call uses: see [`Operands::schedule`](crate::Operands::schedule).
    type Schedule<'a>: Debug;

    /// The address of the first byte, and how many there are.
    #[doc(hidden)]
    fn extent(memory: Self::Ref<'_>) -> (u64, u64);
    /// The same bytes for a shorter time.
    #[doc(hidden)]
    fn shorter<'m, 'a: 'm>(memory: &'m Self::Ref<'a>) -> Self::Ref<'m>;
    /// The same bytes, to read.
    #[doc(hidden)]
    fn shared<'m>(memory: &'m Self::Mut<'_>) -> Self::Ref<'m>;
}

#[doc(hidden)]
pub mod sealed {
    /// Only this project's crates implement it.
    pub trait Sealed {}
}

/// Host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {}

impl sealed::Sealed for Host {}

impl Memory for Host {
    type Ref<'a> = &'a [u8];
    type Mut<'a> = &'a mut [u8];
    type Schedule<'a> = std::convert::Infallible;

    fn extent(memory: &[u8]) -> (u64, u64) {
        (memory.as_ptr() as u64, memory.len() as u64)
    }

    fn shorter<'m, 'a: 'm>(memory: &'m &'a [u8]) -> &'m [u8] {
        memory
    }

    fn shared<'m>(memory: &'m &mut [u8]) -> &'m [u8] {
        memory
    }
}

/// A borrowed tensor that a call reads. A call checks it against what the task needs, so making one checks nothing.
#[derive(Debug)]
pub struct View<'a, M: Memory> {
    pub(crate) element: ElementType,
    pub(crate) layout: Layout,
    pub(crate) memory: M::Ref<'a>,
}

// Derived ones would want `M: Clone`.
impl<M: Memory> Clone for View<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Memory> Copy for View<'_, M> {}

impl<'a, M: Memory> View<'a, M> {
    /// A tensor whose element `[0, 0, 0, 0]` is at the start of `memory`.
    pub fn new(element: impl Into<ElementType>, layout: impl Into<Layout>, memory: M::Ref<'a>) -> View<'a, M> {
        let (element, layout) = (element.into(), layout.into());
        View {
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

    /// The same for a shorter time: all operands of a call are borrowed for one.
    pub fn reborrow(&self) -> View<'_, M> {
        View::new(self.element, self.layout, M::shorter(&self.memory))
    }

    /// Its memory.
    pub fn memory(&self) -> M::Ref<'a> {
        self.memory
    }
}

/// A borrowed tensor that a call writes. A call checks it against what the task needs, so making one checks nothing.
#[derive(Debug)]
pub struct ViewMut<'a, M: Memory> {
    pub(crate) element: ElementType,
    pub(crate) layout: Layout,
    pub(crate) memory: M::Mut<'a>,
}

impl<'a, M: Memory> ViewMut<'a, M> {
    /// A tensor whose element `[0, 0, 0, 0]` is at the start of `memory`.
    pub fn new(element: impl Into<ElementType>, layout: impl Into<Layout>, memory: M::Mut<'a>) -> ViewMut<'a, M> {
        let (element, layout) = (element.into(), layout.into());
        ViewMut {
            element,
            layout,
            memory,
        }
    }

    /// Its memory.
    pub fn into_memory(self) -> M::Mut<'a> {
        self.memory
    }
}

impl<'a> View<'a, Host> {
    /// A tensor of these values, from element `[0, 0, 0, 0]` on. Arrays of one to three sizes stand for a dense layout,
    /// such as `[num_heads]`.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{ElementType, View};
    /// let table = [4, -1, 0, 2];
    /// let view = View::from_slice([2, 2], &table); // [batch, max_pages]
    /// assert_eq!((view.element(), view.layout().shape), (ElementType::I32, [1, 1, 2, 2]));
    /// ```
    pub fn from_slice<T: Scalar>(layout: impl Into<Layout>, values: &'a [T]) -> View<'a, Host> {
        View::new(T::ELEMENT, layout, bytemuck::cast_slice(values))
    }

    /// All values, gaps included.
    ///
    /// # Errors
    /// It holds others than `T`, or its memory is too short or not aligned to them.
    pub fn values<T: Scalar>(&self) -> Result<&'a [T], ProblemError> {
        let end = whole::<T>(self.element, &self.layout, self.memory)?;
        Ok(bytemuck::cast_slice(&self.memory[..end]))
    }

    /// The same tensor with methods for its elements.
    ///
    /// # Errors
    /// It holds integers, or as [`TensorView::new`].
    pub fn tensor(&self, name: &'static str) -> Result<TensorView<'a>, ProblemError> {
        let why = || format!("{name} holds {}; it must hold floating-point numbers", self.element);
        let dtype = self
            .element
            .float()
            .map_or_else(|| ProblemError::tensor(name, why()), Ok)?;
        TensorView::new(name, dtype, self.layout, self.memory)
    }
}

impl<'a> ViewMut<'a, Host> {
    /// As [`View::from_slice`].
    pub fn from_slice<T: Scalar>(layout: impl Into<Layout>, values: &'a mut [T]) -> ViewMut<'a, Host> {
        ViewMut::new(T::ELEMENT, layout, bytemuck::cast_slice_mut(values))
    }

    /// All values, gaps included.
    ///
    /// # Errors
    /// As [`View::values`].
    pub fn into_values<T: Scalar>(self) -> Result<&'a mut [T], ProblemError> {
        let end = whole::<T>(self.element, &self.layout, self.memory)?;
        Ok(bytemuck::cast_slice_mut(&mut self.memory[..end]))
    }
}

/// The bytes that all values of `T` take.
fn whole<T: Scalar>(element: ElementType, layout: &Layout, memory: &[u8]) -> Result<usize, ProblemError> {
    element.check_is::<T>()?;
    bytes_needed("the tensor", element, layout, memory)
}

/// The bytes of a tensor from its first element to its last, if its memory has them, and aligned to its elements.
pub(crate) fn bytes_needed(
    tensor: &'static str,
    element: ElementType,
    layout: &Layout,
    memory: &[u8],
) -> Result<usize, ProblemError> {
    let (size, given) = (element.size_bytes(), memory.len());
    let Some(needed) = layout.span_bytes(size) else {
        let why = format!("they reach before its memory, which has {given} bytes, or past all memory");
        return ProblemError::strides(tensor, layout, &why);
    };
    let message = if given < needed {
        format!("{tensor} needs {needed} bytes for its shape and strides; the buffer has {given}")
    } else if !memory.as_ptr().addr().is_multiple_of(size) {
        format!("{tensor}'s data is not aligned to its {element} elements ({size} bytes); copy it to memory that is")
    } else {
        return Ok(needed);
    };
    ProblemError::tensor(tensor, message)
}

/// What the tensor carries (scales, sinks, slopes) is not of the view: they are operands by their own names.
impl<'a> From<TensorView<'a>> for View<'a, Host> {
    fn from(tensor: TensorView<'a>) -> View<'a, Host> {
        View::new(tensor.dtype(), *tensor.layout(), tensor.bytes())
    }
}

impl<'a> From<&'a Tensor> for View<'a, Host> {
    fn from(tensor: &'a Tensor) -> View<'a, Host> {
        tensor.view().into()
    }
}

impl<'a> From<&'a mut Tensor> for ViewMut<'a, Host> {
    fn from(tensor: &'a mut Tensor) -> ViewMut<'a, Host> {
        let (dtype, layout) = (tensor.dtype(), *tensor.layout());
        ViewMut::new(dtype, layout, tensor.bytes_mut())
    }
}

macro_rules! from_values {
    ($($values:ty $(, const $count:ident)?;)*) => {$(
        /// Values in one dimension, as lengths and other operands that are dense may be given.
        impl<'a, T: Scalar $(, const $count: usize)?> From<&'a $values> for View<'a, Host> {
            fn from(values: &'a $values) -> View<'a, Host> {
                View::from_slice([values.len()], values)
            }
        }

        /// As of [`View`].
        impl<'a, T: Scalar $(, const $count: usize)?> From<&'a mut $values> for ViewMut<'a, Host> {
            fn from(values: &'a mut $values) -> ViewMut<'a, Host> {
                ViewMut::from_slice([values.len()], values)
            }
        }
    )*};
}

from_values! {
    [T];
    Vec<T>;
    [T; N], const N;
}
