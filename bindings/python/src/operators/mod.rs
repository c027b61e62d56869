//! PyTorch's operators: `flashcore::fwd` and `::fwd.scaled` for equal lengths, `::fwd_varlen` and
//! `::fwd_kvcache` for others ([`lengths`]), `::append_kv` before the latter ([`append`]), `::bwd` and
//! `::bwd_varlen` for gradients ([`backward`]). Their kernels run without Python; fake kernels and autograd are in
//! `python/flashcore/_operators.py`.

mod append;
pub(crate) mod backward;
mod lengths;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::OnceLock;

use flashcore::cuda::{DeviceSlice, Stream};
use flashcore::{
    Alibi, BackwardTensors, DType, Device, DeviceGradients, DeviceScales, DeviceTensors, Gradients, Layout, Lengths,
    Mask, Problem, ProblemError, TensorView, TensorViewMut,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::call::{attention_on, problem_of};
use crate::error::forked;
use crate::head_values::read;
use crate::libtorch::{Described, Error, Kernel, Libtorch, Tensor};
use crate::options::{Axes, Options};
use crate::tensor::{Place, layout_of};

static TORCH: OnceLock<Libtorch> = OnceLock::new();

const NAMES: [&str; 6] = ["q", "k", "v", "q_scale", "k_scale", "v_scale"];

/// Each operator with its kernel. `out_bhsd`: the memory of `out` is in the order `[batch, heads,
/// seq, head_dim]`. A negative side of the window has no limit; a softcap of 0 is none. `deterministic` is for the
/// gradients: whether they are the same bits in every run. `sm_margin` multiprocessors are left to other work; a problem
/// with `split_keys` over 0 is batch-invariant. `modified` operators have sinks `[heads]` or ALiBi slopes `[heads]` or
/// `[batch, heads]`; one of one dimension without elements is not given.
const OPERATORS: [(&str, Kernel); 10] = [
    (
        "fwd(Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal, int window_left, int window_right, \
         float softcap, bool out_bhsd, bool deterministic=False, int sm_margin=0, int split_keys=0) \
         -> (Tensor out, Tensor lse)",
        forward,
    ),
    (
        "fwd.scaled(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, \
         float softmax_scale, bool causal, int window_left, int window_right, float softcap, bool out_bhsd, \
         int sm_margin=0, int split_keys=0) -> (Tensor out, Tensor lse)",
        forward_scaled,
    ),
    (
        "fwd.modified(Tensor q, Tensor k, Tensor v, Tensor sinks, Tensor alibi_slopes, float softmax_scale, bool causal, \
         int window_left, int window_right, float softcap, bool out_bhsd, int sm_margin=0, int split_keys=0) \
         -> (Tensor out, Tensor lse)",
        forward_modified,
    ),
    (lengths::VARLEN_MODIFIED, lengths::forward_varlen_modified),
    (lengths::KVCACHE_MODIFIED, lengths::forward_kvcache_modified),
    (lengths::VARLEN, lengths::forward_varlen),
    (lengths::KVCACHE, lengths::forward_kvcache),
    (append::APPEND, append::append),
    (backward::EQUAL, backward::backward),
    (backward::VARLEN, backward::backward_varlen),
];

/// Registers PyTorch's operators; the paths are those of libtorch_cpu and, where there is one,
/// libtorch_cuda.
#[pyfunction]
pub(crate) fn register_operators(cpu: &str, cuda: Option<&str>) -> PyResult<()> {
    let register = || {
        let torch = Libtorch::find(cpu, cuda)?;
        torch.register("flashcore", &OPERATORS)?;
        let _ = TORCH.set(torch); // it was empty
        Ok(())
    };
    match TORCH.get() {
        Some(_) => Ok(()),
        None => register().map_err(|error: Error| PyRuntimeError::new_err(error.to_string())),
    }
}

/// The output and its log-sum-exp, three gradients, or nothing; or why not.
type Results<'a, const N: usize> = Result<[Tensor<'a>; N], Error>;

/// Runs an operator: takes the tensors from its stack, which has `numbers` numbers after them, and
/// puts the results there.
///
/// # Safety
/// PyTorch passes the stack, for a schema that begins with tensors, has `numbers` numbers after them
/// and `N` tensors as results.
unsafe fn serve<const N: usize>(
    stack: *mut u64,
    inputs: u64,
    numbers: usize,
    compute: for<'a> fn(&'a Libtorch, &[Tensor], &[u64]) -> Results<'a, N>,
) {
    let Some(torch) = TORCH.get() else { return }; // it was set before this was registered
    // SAFETY: PyTorch passes as many arguments as `inputs` says, and no fewer than results.
    let stack = unsafe { slice::from_raw_parts_mut(stack, inputs as usize) };
    let (handles, numbers) = stack.split_at(stack.len() - numbers);
    // SAFETY: the schemas begin with tensors, which are the kernel's to give back.
    let inputs: Vec<Tensor> = handles.iter().map(|&handle| unsafe { torch.take(handle) }).collect();
    let result = catch_unwind(AssertUnwindSafe(|| match forked() {
        None => compute(torch, &inputs, numbers),
        Some(why) => Err(why.into()),
    }));
    drop(inputs);
    let message = match result {
        Ok(Ok(results)) => {
            stack[..N].copy_from_slice(&results.map(Tensor::into_stack));
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "flashcore panicked, which is a bug; the message is on standard error".to_string(),
    };
    torch.raise(&message);
}

unsafe extern "C-unwind" fn forward(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with nine numbers.
    unsafe { serve(stack, inputs, 9, compute) }
}

unsafe extern "C-unwind" fn forward_scaled(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with eight numbers.
    unsafe { serve(stack, inputs, 8, compute) }
}

unsafe extern "C-unwind" fn forward_modified(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with eight numbers.
    unsafe { serve(stack, inputs, 8, compute_modified) }
}

fn compute_modified<'a>(torch: &'a Libtorch, inputs: &[Tensor], numbers: &[u64]) -> Results<'a, 2> {
    compute_with(torch, &inputs[..3], &inputs[3..], numbers)
}

/// `flashcore::fwd` and `::fwd.scaled`.
fn compute<'a>(torch: &'a Libtorch, inputs: &[Tensor], numbers: &[u64]) -> Results<'a, 2> {
    compute_with(torch, inputs, &[], numbers)
}

/// The same with sinks and slopes, or neither.
fn compute_with<'a>(torch: &'a Libtorch, inputs: &[Tensor], head_values: &[Tensor], numbers: &[u64]) -> Results<'a, 2> {
    let of = |n: usize| inputs[n].describe::<4>(NAMES[n]);
    let tensors = [of(0)?, of(1)?, of(2)?].map(Rows::from);
    let [q, k, v] = &tensors;
    let (place, dtype) = q.agree(&[k, v])?;
    let out_bhsd = numbers[5] as u8 != 0;
    let ([batch, seq, heads, _], [.., head_dim_v]) = (q.layout.shape, v.layout.shape);
    let o_layout = if out_bhsd { Layout::bhsd } else { Layout::bshd }([batch, seq, heads, head_dim_v]);
    let mut options = forward_options(numbers)?;
    let head_values = HeadValues::new(head_values, place, [batch, heads], &mut options)?;
    let problem = problem_of(dtype, [&q.layout, &k.layout, &v.layout, &o_layout], &options)?;
    let scales = inputs[3..]
        .iter()
        .zip(&NAMES[3..])
        .map(|(scale, name)| scale_of(scale, name, &problem, place));
    let scales = scales.collect::<Result<Vec<_>, _>>()?;
    if scales.is_empty() != (problem.num_scales() == 0) {
        return Err(format!("q holds {dtype}; float8_e4m3fn tensors have scales, and no others").into());
    }

    let out = torch.empty(o_layout.shape, o_layout.strides, Some(dtype.output()), place)?;
    let lse_strides = [(heads * seq) as i64, seq as i64, 1];
    let lse = torch.empty([batch, heads, seq], lse_strides, Some(DType::F32), place)?;
    let call = Call {
        torch,
        place,
        sm_margin: options.sm_margin,
        problem,
        tensors,
        scales,
        head_values,
        lengths: Lengths::default(),
        outputs: [out.first()?, lse.first()?],
        gradients: None,
    };
    call.run()?;
    Ok([out, lse])
}

/// The options that the numbers of an operator begin with: scale, causal, both sides of the window,
/// soft cap.
fn options_of(numbers: &[u64]) -> Options {
    let side = |bits: u64| u32::try_from(bits as i64).ok();
    let (causal, softcap) = (numbers[1] as u8 != 0, f64::from_bits(numbers[4]));
    Options {
        mask: Mask::window(side(numbers[2]), if causal { Some(0) } else { side(numbers[3]) }),
        softcap: (softcap != 0.0).then_some(softcap as f32),
        scale: Some(f64::from_bits(numbers[0]) as f32),
        return_lse: true,
        sinks: None,
        alibi: None,
        kernel: None,
        axes: Axes::Bshd,
        sm_margin: 0,
        batch_invariant: None,
    }
}

/// The options of an operator without gradients, whose last two numbers are `sm_margin` and `split_keys`: 0 for splits that
/// follow the batch.
fn forward_options(numbers: &[u64]) -> Result<Options, Error> {
    let [first @ .., split_keys] = numbers else {
        return Ok(options_of(numbers)); // all schemas have it
    };
    let split_keys = usize::try_from(*split_keys as i64)
        .map_err(|_| format!("batch_invariant is {}; a split has 1 key or more", *split_keys as i64))?;
    Ok(Options {
        sm_margin: sm_margin_of(first.last())?,
        batch_invariant: (split_keys > 0).then_some(split_keys),
        ..options_of(numbers)
    })
}

/// Multiprocessors that are left to other work.
fn sm_margin_of(number: Option<&u64>) -> Result<u32, Error> {
    let given = number.map_or(0, |&bits| bits as i64);
    u32::try_from(given)
        .map_err(|_| format!("sm_margin is {given}; it is a number of multiprocessors, at least 0").into())
}

/// q, k or v; of a backward pass also out and its gradient.
struct Rows {
    name: &'static str,
    dtype: DType,
    place: Place,
    layout: Layout,
    first: *mut u8,
}

impl From<Described<4>> for Rows {
    fn from(tensor: Described<4>) -> Rows {
        Rows {
            name: tensor.name,
            dtype: tensor.dtype,
            place: tensor.place,
            layout: layout_of(tensor.shape, tensor.strides),
            first: tensor.first,
        }
    }
}

impl Rows {
    /// The place and dtype of q, which must be those of the others.
    fn agree(&self, others: &[&Rows]) -> Result<(Place, DType), Error> {
        let (place, dtype) = (self.place, self.dtype);
        for other in others {
            let name = other.name;
            if other.place != place {
                let theirs = other.place;
                return Err(format!("{name} is on {theirs} and q on {place}; move all tensors to one device").into());
            }
            if other.dtype != dtype {
                return Err(format!("{name} holds {} and q {dtype}; convert one", other.dtype).into());
            }
        }
        Ok((place, dtype))
    }
}

/// Sinks and slopes of an operator, dense on the tensors' device; slopes `[batch, heads]` as one dimension.
#[derive(Default)]
struct HeadValues {
    sinks: Option<Described<1>>,
    slopes: Option<Described<1>>,
}

impl HeadValues {
    /// Those of a `modified` operator, which the options then mention; of others none.
    fn new(
        given: &[Tensor],
        place: Place,
        [batch, heads]: [usize; 2],
        options: &mut Options,
    ) -> Result<HeadValues, Error> {
        let [sinks, slopes] = given else {
            return Ok(HeadValues::default());
        };
        let floats = [DType::F32, DType::F16, DType::BF16];
        let sinks = (!sinks.is_absent("sinks")?).then(|| sinks.describe::<1>("sinks")?.check(&floats, [heads], place));
        let sinks = sinks.transpose()?;
        let slopes = match slopes.dims()? {
            _ if slopes.is_absent("alibi_slopes")? => None,
            2 => {
                let slopes = slopes.describe::<2>("alibi_slopes")?;
                options.alibi = Some(Alibi::BatchHeads);
                Some(slopes.check(&[DType::F32], [batch, heads], place)?.flat())
            }
            _ => {
                let slopes = slopes.describe::<1>("alibi_slopes")?;
                options.alibi = Some(Alibi::Heads);
                Some(slopes.check(&[DType::F32], [heads], place)?)
            }
        };
        options.sinks = sinks.as_ref().map(|sinks| sinks.dtype);
        Ok(HeadValues { sinks, slopes })
    }
}

/// int32 numbers on the tensors' device.
#[derive(Clone, Copy)]
struct Array {
    first: *mut i32,
    len: usize,
}

/// A problem and its tensors.
struct Call<'a> {
    torch: &'a Libtorch,
    place: Place,
    /// Multiprocessors that are left to other work.
    sm_margin: u32,
    problem: Problem,
    tensors: [Rows; 3],
    scales: Vec<*mut u8>,
    head_values: HeadValues,
    lengths: Lengths<Array>,
    /// The output and its log-sum-exp, as large as the problem says: written, or read by a backward pass.
    outputs: [*mut u8; 2],
    /// dout, dq, dk and dv of a backward pass.
    gradients: Option<[*mut u8; 4]>,
}

impl Call<'_> {
    fn run(&self) -> Result<(), Error> {
        let attention = attention_on(self.place, None, self.sm_margin)?;
        match (attention.device(), self.place, self.gradients) {
            (Device::Cuda(context), Place::Cuda(ordinal), _) => self.run_on_cuda(&attention, &context, ordinal),
            (_, _, None) => self.forward_on_host(&attention),
            (_, _, Some(gradients)) => self.backward_on_host(&attention, gradients),
        }
    }

    fn run_on_cuda(
        &self,
        attention: &flashcore::Attention,
        context: &flashcore::cuda::Context,
        ordinal: u32,
    ) -> Result<(), Error> {
        let (problem, [q, k, v], [out, lse]) = (&self.problem, &self.tensors, self.outputs);
        // SAFETY: all memory is on this device, and is as large as PyTorch's shapes say. PyTorch frees it in the
        // order of its current stream, where the work is. That stream lives as long as PyTorch.
        let slice = |first: *mut u8, bytes| unsafe { DeviceSlice::from_raw(context, first.addr() as u64, bytes) };
        let pointers = [q.first, k.first, v.first, out].map(|first| first.addr() as u64);
        // SAFETY: as above.
        let (stream, mut tensors) = unsafe {
            let stream = Stream::from_raw(context, self.torch.current_stream(ordinal)?)?;
            (stream, DeviceTensors::from_raw(context, problem, pointers))
        };
        tensors.lse = Some(slice(lse, problem.lse_len() * size_of::<f32>()));
        if let [q, k, v] = self.scales[..] {
            let [q, k, v] = [q, k, v].map(|scale| slice(scale, problem.num_scales() * size_of::<f32>()));
            tensors.scales = Some(DeviceScales { q, k, v });
        }
        let of_heads = |values: &Option<Described<1>>, count: usize| {
            let values = values.as_ref()?;
            Some(slice(values.first, count * values.dtype.size_bytes()))
        };
        tensors.sinks = of_heads(&self.head_values.sinks, problem.num_sinks());
        tensors.alibi_slopes = of_heads(&self.head_values.slopes, problem.num_alibi_slopes());
        tensors.lengths = self
            .lengths
            .map(|array| slice(array.first.cast(), array.len * size_of::<i32>()));
        if let (Some([dout, dq, dk, dv]), Some(layouts)) = (self.gradients, problem.gradient_layouts()) {
            let slice = |first, layout: &Layout| slice(first, layout.span() * problem.dtype().size_bytes());
            tensors.gradients = Some(DeviceGradients {
                dout: slice(dout, &layouts.dout),
                dq: slice(dq, &layouts.dq),
                dk: slice(dk, &layouts.dk),
                dv: slice(dv, &layouts.dv),
            });
        }
        let bytes = usize::try_from(attention.workspace_bytes(problem, tensors.alignment())?)?;
        let workspace;
        if bytes > 0 {
            workspace = self.torch.empty([bytes], [1], None, self.place)?;
            tensors.workspace = Some(slice(workspace.first()?, bytes));
        }
        if self.gradients.is_none() {
            return Ok(attention.forward_on(&stream, problem, &tensors)?);
        }
        backward::tell_if_slow(self.torch, attention, problem, tensors.alignment())?;
        Ok(attention.backward_on(&stream, problem, &tensors)?)
    }

    /// q, k or v in host memory.
    fn view(&self, n: usize) -> Result<TensorView<'_>, ProblemError> {
        let x: &Rows = &self.tensors[n];
        let view = host_view(x.name, x.dtype, &x.layout, x.first)?;
        match self.scales.get(n) {
            None => Ok(view),
            // SAFETY: `scale_of` has checked shape, dtype and density.
            Some(scale) => view.with_scales(x.name, unsafe {
                slice::from_raw_parts(scale.cast(), self.problem.num_scales())
            }),
        }
    }

    fn host_lengths(&self) -> Lengths<&[i32]> {
        // SAFETY: `describe_i32` has checked dtype and density, and PyTorch aligns numbers; else as in `host_view`.
        let numbers = |array: &Array| unsafe { slice::from_raw_parts(array.first.cast_const(), array.len) };
        self.lengths.map(numbers)
    }

    fn forward_on_host(&self, attention: &flashcore::Attention) -> Result<(), Error> {
        let (problem, [out, lse]) = (&self.problem, self.outputs);
        let o = host_view_mut("out", problem.out_dtype(), problem.o_layout(), out)?;
        // SAFETY: it was allocated for this problem, dense.
        let lse = unsafe { slice::from_raw_parts_mut(lse.cast(), problem.lse_len()) };
        let [mut q, k, v] = [self.view(0)?, self.view(1)?, self.view(2)?];
        let of_heads = |values: &Option<Described<1>>, count: usize| {
            let values = values.as_ref()?;
            let bytes = count * values.dtype.size_bytes();
            // SAFETY: `HeadValues::new` has checked shape and density; else as in `host_view`.
            Some(read(values.dtype, unsafe {
                slice::from_raw_parts(values.first, bytes)
            }))
        };
        let sinks = of_heads(&self.head_values.sinks, problem.num_sinks());
        let slopes = of_heads(&self.head_values.slopes, problem.num_alibi_slopes());
        if let Some(sinks) = &sinks {
            q = q.with_sinks(sinks);
        }
        if let Some(slopes) = &slopes {
            q = q.with_alibi_slopes(slopes);
        }
        let inputs = [q, k, v];
        Ok(attention.forward_lengths(problem, inputs, &self.host_lengths(), o, Some(lse))?)
    }

    fn backward_on_host(&self, attention: &flashcore::Attention, gradients: [*mut u8; 4]) -> Result<(), Error> {
        let (problem, [out, lse], [dout, dq, dk, dv]) = (&self.problem, self.outputs, gradients);
        let Some(layouts) = problem.gradient_layouts() else {
            return Ok(()); // a backward problem has them
        };
        let (dtype, of_out) = (problem.dtype(), problem.out_dtype());
        let tensors = BackwardTensors {
            q: self.view(0)?,
            k: self.view(1)?,
            v: self.view(2)?,
            out: host_view("out", of_out, problem.o_layout(), out)?,
            // SAFETY: `Described::check_f32` has checked dtype, shape and density.
            lse: unsafe { slice::from_raw_parts(lse.cast(), problem.lse_len()) },
            dout: host_view("dout", of_out, &layouts.dout, dout)?,
        };
        let gradients = Gradients {
            dq: host_view_mut("dq", dtype, &layouts.dq, dq)?,
            dk: host_view_mut("dk", dtype, &layouts.dk, dk)?,
            dv: host_view_mut("dv", dtype, &layouts.dv, dv)?,
        };
        Ok(attention.backward_lengths(problem, &tensors, &self.host_lengths(), gradients)?)
    }
}

/// A tensor of PyTorch's in host memory.
fn host_view<'a>(
    name: &'static str,
    dtype: DType,
    layout: &Layout,
    first: *mut u8,
) -> Result<TensorView<'a>, ProblemError> {
    let bytes: &[u8] = match layout.span() * dtype.size_bytes() {
        0 => bytemuck::cast_slice::<u64, u8>(&[]), // perhaps at no address; aligned for all elements
        // SAFETY: PyTorch's strides, which are not negative, stay within the tensor's memory. That nothing writes to it
        // meanwhile is the caller's part.
        bytes => unsafe { slice::from_raw_parts(first, bytes) },
    };
    TensorView::new(name, dtype, *layout, bytes)
}

/// A tensor that is written.
fn host_view_mut<'a>(
    name: &'static str,
    dtype: DType,
    layout: &Layout,
    first: *mut u8,
) -> Result<TensorViewMut<'a>, ProblemError> {
    let bytes: &mut [u8] = match layout.span() * dtype.size_bytes() {
        0 => bytemuck::cast_slice_mut::<u64, u8>(&mut []),
        // SAFETY: as above. It was allocated for this call, or that nothing else uses it meanwhile is the caller's part.
        bytes => unsafe { slice::from_raw_parts_mut(first, bytes) },
    };
    TensorViewMut::new(name, dtype, *layout, bytes)
}

/// The address of scales, which must be float32 `[batch, kv_heads]`, dense, on the tensors' device.
fn scale_of(scale: &Tensor, name: &'static str, problem: &Problem, place: Place) -> Result<*mut u8, Error> {
    let scale = scale.describe::<2>(name)?;
    scale.check_f32([problem.batch(), problem.num_kv_heads()], place)?;
    Ok(scale.first)
}
