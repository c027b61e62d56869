//! Parameters of a kernel and the arguments of its launches, declared once.
//!
//! A parameter is declared with the function that computes its argument from what a launch is made for, its
//! [`Request`]. The functions are kept with the kernel, in the order of its parameters, so that no argument can be in
//! the place of another. They capture what is baked into the kernel, and nothing of the problem that it was first
//! built for: `KernelCache` builds kernels by functions that capture nothing.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use flashcore_ir::types::Literal;
use flashcore_ir::{
    Arg, BufferSpec, BuildErrors, Element, GlobalPtr, Kernel, KernelBuilder, Launch, Table, TensorBox, TensorMap,
    TensorMapRecipe, Val,
};
use flashcore_problem::{Layout, Name, Problem};

use crate::Refusal;
use crate::attention::divisor::{Divisor, ParamDivisor};
use crate::attention::lengths::{TensorParam, row_strides};
use crate::step::Step;

/// Alignment of most parts of the workspace in bytes: as the widest accesses need.
pub(crate) const ALIGN: u32 = 16;

/// What a launch is made for: a problem, and what the plan decides.
pub(crate) trait Request: Send + Sync + 'static {
    fn problem(&self) -> &Problem;
}

impl Request for Problem {
    fn problem(&self) -> &Problem {
        self
    }
}

/// The layout of q, k, v, the output or a gradient.
///
/// # Errors
/// A gradient of a forward pass.
pub(crate) fn layout_of(problem: &Problem, tensor: Name) -> Result<&Layout, Refusal> {
    let gradients = problem.gradient_layouts();
    let layout = match tensor {
        Name::Q => Some(problem.q_layout()),
        Name::K => Some(problem.k_layout()),
        Name::V => Some(problem.v_layout()),
        Name::Out => Some(problem.o_layout()),
        Name::Dout => gradients.map(|of| &of.dout),
        Name::Dq => gradients.map(|of| &of.dq),
        Name::Dk => gradients.map(|of| &of.dk),
        Name::Dv => gradients.map(|of| &of.dv),
        _ => None,
    };
    layout.ok_or_else(|| Refusal::Build(format!("a forward pass has no `{tensor}`")))
}

/// A part of the workspace: bytes of all of it, and where the part begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub bytes: u64,
    pub offset: u64,
    /// Alignment of the workspace, bytes.
    pub align: u32,
}

impl Part {
    /// A part of a workspace that is aligned to [`ALIGN`].
    pub(crate) fn new(bytes: u64, offset: u64) -> Part {
        let align = ALIGN;
        Part { bytes, offset, align }
    }

    /// The slot of the workspace.
    pub(crate) fn push(self, launch: &mut Launch, written: bool) -> usize {
        push_buffer(launch, "workspace", self.bytes as usize, self.align, written)
    }
}

/// The slot of a buffer, which is as large as the largest of its parts that were added.
pub(crate) fn push_buffer(launch: &mut Launch, name: &'static str, bytes: usize, align: u32, written: bool) -> usize {
    if let Some(slot) = launch.buffers.iter().position(|buffer| buffer.name == name) {
        let buffer = &mut launch.buffers[slot];
        (buffer.bytes, buffer.align) = (buffer.bytes.max(bytes as u64), buffer.align.max(align));
        buffer.written |= written;
        return slot;
    }
    launch.buffers.push(BufferSpec {
        name,
        bytes: bytes as u64,
        written,
        align,
    });
    launch.buffers.len() - 1
}

/// Computes an argument from what a launch is made for.
pub(crate) trait Of<R, T>: Fn(&R) -> T + Send + Sync + 'static {}

impl<R, T, F: Fn(&R) -> T + Send + Sync + 'static> Of<R, T> for F {}

/// Adds the arguments of one declaration to a launch.
type Source<R> = Box<dyn Fn(&mut Launch, &R) -> Result<(), Refusal> + Send + Sync>;

/// Declares the parameters of a kernel while it is built, and keeps the sources of their arguments.
pub(crate) struct Args<'k, R> {
    k: &'k KernelBuilder,
    sources: RefCell<Vec<Source<R>>>,
}

impl<R> Deref for Args<'_, R> {
    type Target = KernelBuilder;

    fn deref(&self) -> &KernelBuilder {
        self.k
    }
}

impl<'k, R: 'static> Args<'k, R> {
    /// The source of arguments, which may add buffers to a launch.
    fn source<A: IntoIterator<Item = Arg>>(
        &self,
        of: impl Fn(&mut Launch, &R) -> Result<A, Refusal> + Send + Sync + 'static,
    ) {
        self.sources.borrow_mut().push(Box::new(move |launch, request| {
            let args = of(launch, request)?;
            launch.args.extend(args);
            Ok(())
        }));
    }

    /// A number.
    #[track_caller]
    pub(crate) fn number<T: Literal + Into<Arg>>(&self, name: &str, value: impl Of<R, T>) -> Val<'k, T> {
        self.try_number(name, move |request| Ok(value(request)))
    }

    /// A number that not every request has.
    #[track_caller]
    pub(crate) fn try_number<T: Literal + Into<Arg>>(
        &self,
        name: &str,
        value: impl Of<R, Result<T, Refusal>>,
    ) -> Val<'k, T> {
        self.source(move |_, request| Ok([value(request)?.into()]));
        self.k.param(name)
    }

    /// A number to divide by, in which 0 counts as 1.
    #[track_caller]
    pub(crate) fn divisor(&self, name: &str, of: impl Of<R, Result<u32, Refusal>>) -> ParamDivisor<'k> {
        self.source(move |_, request| Ok(Divisor::from(of(request)?.max(1)).args()));
        ParamDivisor::declare(self.k, name)
    }

    /// The address of so many elements that the kernel only reads, in a buffer for them.
    #[track_caller]
    pub(crate) fn input<E: Element>(&self, name: &'static str, align: u32, len: impl Of<R, usize>) -> GlobalPtr<'k, E> {
        self.buffer(name, align, false, len)
    }

    /// The address of so many elements that the kernel writes.
    #[track_caller]
    pub(crate) fn output<E: Element>(
        &self,
        name: &'static str,
        align: u32,
        len: impl Of<R, usize>,
    ) -> GlobalPtr<'k, E> {
        self.buffer(name, align, true, len)
    }

    #[track_caller]
    fn buffer<E: Element>(
        &self,
        name: &'static str,
        align: u32,
        written: bool,
        len: impl Of<R, usize>,
    ) -> GlobalPtr<'k, E> {
        self.source(move |launch, request| {
            let bytes = len(request) * E::BYTES as usize;
            let slot = push_buffer(launch, name, bytes, align, written);
            Ok([Arg::Buffer { slot, byte_offset: 0 }])
        });
        self.k.param_pointer(name, written)
    }

    /// The address of a part of the workspace, which the kernel only reads, or writes as well.
    #[track_caller]
    pub(crate) fn part<E: Element>(
        &self,
        name: &str,
        written: bool,
        of: impl Of<R, Result<Part, Refusal>>,
    ) -> GlobalPtr<'k, E> {
        self.source(move |launch, request| {
            let part = of(request)?;
            let (slot, byte_offset) = (part.push(launch, written), part.offset);
            Ok([Arg::Buffer { slot, byte_offset }])
        });
        self.k.param_pointer(name, written)
    }

    /// Numbers that come with the launch.
    #[track_caller]
    pub(crate) fn table(&self, name: &str, of: impl Of<R, Result<Table, Refusal>>) -> GlobalPtr<'k, u32> {
        self.source(move |_, request| Ok([Arg::Table(of(request)?)]));
        self.k.param_ptr(name)
    }

    /// A tensor in a buffer: its address and its outer strides. `of` gives the bytes and the strides, in elements.
    #[track_caller]
    pub(crate) fn strided<E: Element>(
        &self,
        [name, buffer]: [&'static str; 2],
        align: u32,
        written: bool,
        of: impl Of<R, Result<(usize, [u32; 3]), Refusal>>,
    ) -> TensorParam<'k, E> {
        self.source(move |launch, request| {
            let (bytes, strides) = of(request)?;
            let slot = push_buffer(launch, buffer, bytes, align, written);
            let address = Arg::Buffer { slot, byte_offset: 0 };
            Ok(std::iter::once(address).chain(strides.map(Arg::U32)))
        });
        TensorParam::declare(self.k, name, self.k.param_pointer(name, written))
    }

    /// A tensor map of these boxes. `of` gives the recipe of the tensor.
    #[track_caller]
    pub(crate) fn tensor_map(
        &self,
        name: &str,
        written: bool,
        boxes: TensorBox,
        of: impl Fn(&mut Launch, &R) -> Result<TensorMapRecipe, Refusal> + Send + Sync + 'static,
    ) -> TensorMap<'k> {
        self.source(move |launch, request| Ok([Arg::TensorMap(of(launch, request)?)]));
        self.k.param_map(name, boxes, written)
    }
}

impl<'k, R: Request> Args<'k, R> {
    /// A number of the problem's.
    #[track_caller]
    pub(crate) fn count(&self, name: &str, of: impl Of<Problem, usize>) -> Val<'k, u32> {
        self.number(name, move |request| of(request.problem()) as u32)
    }

    /// A tensor of the problem that the kernel only reads.
    #[track_caller]
    pub(crate) fn reads<E: Element>(&self, tensor: Name, align: u32) -> TensorParam<'k, E> {
        self.tensor(tensor.as_str(), tensor, align, false)
    }

    /// A tensor of the problem that the kernel writes.
    #[track_caller]
    pub(crate) fn writes<E: Element>(&self, tensor: Name, align: u32) -> TensorParam<'k, E> {
        self.tensor(tensor.as_str(), tensor, align, true)
    }

    /// The same by a parameter of another name.
    #[track_caller]
    pub(crate) fn tensor<E: Element>(
        &self,
        name: &'static str,
        tensor: Name,
        align: u32,
        written: bool,
    ) -> TensorParam<'k, E> {
        self.strided([name, tensor.as_str()], align, written, move |request| {
            let layout = layout_of(request.problem(), tensor)?;
            Ok((layout.span() * E::BYTES as usize, row_strides(layout)))
        })
    }
}

/// A kernel with the sources of its arguments.
pub(crate) struct Built<R> {
    pub(crate) kernel: Arc<Kernel>,
    sources: Vec<Source<R>>,
}

impl<R: 'static> Built<R> {
    pub(crate) fn build(
        name: impl Into<String>,
        threads: u32,
        body: impl FnOnce(&Args<'_, R>),
    ) -> Result<Built<R>, BuildErrors> {
        let mut sources = Vec::new();
        let kernel = Kernel::build(name, threads, |k| {
            let args = Args {
                k,
                sources: RefCell::default(),
            };
            body(&args);
            sources = args.sources.into_inner();
        })?;
        let kernel = Arc::new(kernel);
        Ok(Built { kernel, sources })
    }

    /// The kernel and its launch over a grid.
    ///
    /// # Errors
    /// What a source refuses, or a parameter that was declared without one.
    pub(crate) fn step(&self, grid: [u32; 3], request: &R) -> Result<Step, Refusal> {
        let mut launch = Launch::of(&self.kernel, grid);
        let parameters = self.kernel.params().len();
        launch.args.reserve_exact(parameters);
        self.sources
            .iter()
            .try_for_each(|source| source(&mut launch, request))?;
        if launch.args.len() != parameters {
            let (name, given) = (self.kernel.name(), launch.args.len());
            let why = format!("{name} declares {parameters} parameters, and {given} arguments for them");
            return Err(Refusal::Build(why));
        }
        let kernel = self.kernel.clone();
        Ok(Step { kernel, launch })
    }
}

/// Calls a kernel's body for the element that a dtype has: `with_element!(sixteen_bits dtype => body(k, shape))`.
/// Families refuse what is not among `sixteen_bits`, or among `floats`.
macro_rules! with_element {
    (sixteen_bits $dtype:expr => $($body:ident)::+($($arg:expr),*)) => {
        match $dtype {
            flashcore_problem::DType::F16 => $($body)::+::<half::f16>($($arg),*),
            _ => $($body)::+::<half::bf16>($($arg),*),
        }
    };
    (floats $dtype:expr => $($body:ident)::+($($arg:expr),*)) => {
        match $dtype {
            flashcore_problem::DType::F32 => $($body)::+::<f32>($($arg),*),
            dtype => $crate::args::with_element!(sixteen_bits dtype => $($body)::+($($arg),*)),
        }
    };
}
pub(crate) use with_element;

/// [Builds](Built::build) a kernel whose body is generic in the element: its name, its threads, and the body as
/// `with_element!` takes it, with what it declares its parameters with as the first argument.
macro_rules! build {
    ($name:expr, $threads:expr, $of:ident $dtype:expr => $($body:ident)::+($k:ident $(, $arg:expr)*)) => {
        $crate::args::Built::build($name, $threads, |$k| {
            $crate::args::with_element!($of $dtype => $($body)::+($k $(, $arg)*))
        })
    };
}
pub(crate) use build;

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;
    use flashcore_ir::proof::prove_launch;

    use super::*;

    fn problem(rows: usize) -> Problem {
        let problem = Problem::builder().heads(6, 2).seq_len_q(rows).seq_len_kv(70);
        problem.head_dim(64).build().unwrap()
    }

    /// Wherever a parameter is declared, its argument is there: also among others of its size.
    #[test]
    fn arguments_are_in_the_order_of_declarations() {
        let built = |swapped: bool| {
            let body = |k: &Args<'_, Problem>| {
                let rows = |k: &Args<'_, Problem>| {
                    k.count("seq_len_q", Problem::seq_len_q);
                };
                if !swapped {
                    rows(k);
                }
                let heads = k.count("num_heads", Problem::num_heads);
                if swapped {
                    rows(k);
                }
                k.part::<u32>("sums", true, |_| {
                    Ok(Part {
                        bytes: 512,
                        offset: 256,
                        align: 128,
                    })
                })
                .store(heads);
                k.number("scale", Problem::softmax_scale);
                k.writes::<f32>(Name::Out, 4);
            };
            Built::build("swapped", 32, body).unwrap()
        };
        for (swapped, numbers) in [(false, [31, 6]), (true, [6, 31])] {
            let kernel = built(swapped);
            let step = kernel.step([2, 1, 1], &problem(31)).unwrap();
            let slot = |slot, byte_offset| Arg::Buffer { slot, byte_offset };
            let strides = row_strides(problem(31).o_layout()).map(Arg::U32);
            let mut args = numbers.map(Arg::U32).to_vec();
            args.extend([slot(0, 256), Arg::F32(0.125), slot(1, 0)]);
            args.extend(strides);
            assert_eq!(step.launch.args, args);
            assert_eq!(prove_launch(&step.kernel, &step.launch, Target::Sm80, None), []);
            let named = |spec: &BufferSpec| (spec.name, spec.bytes, spec.written, spec.align);
            let buffers: Vec<_> = step.launch.buffers.iter().map(named).collect();
            assert_eq!(
                buffers,
                [("workspace", 512, true, 128), ("out", 4 * 31 * 6 * 64, true, 4)]
            );
            // The kernel is that of any problem.
            assert_eq!(
                kernel.step([2, 1, 1], &problem(32)).unwrap().launch.args[usize::from(swapped)],
                Arg::U32(32)
            );
        }
    }

    #[test]
    fn what_has_no_argument_is_refused() {
        let bare = Built::build("bare", 32, |k: &Args<'_, Problem>| {
            k.count("seq_len_q", Problem::seq_len_q);
            k.param::<u32>("forgotten");
        });
        let refusal = bare.unwrap().step([1, 1, 1], &problem(1)).unwrap_err().to_string();
        assert!(
            refusal.contains("bare declares 2 parameters, and 1 arguments for them"),
            "{refusal}"
        );
        let gradient = Built::build("gradient", 32, |k: &Args<'_, Problem>| {
            k.writes::<f32>(Name::Dq, 4);
        });
        let refusal = gradient.unwrap().step([1, 1, 1], &problem(1)).unwrap_err().to_string();
        assert!(refusal.contains("a forward pass has no `dq`"), "{refusal}");
    }
}
