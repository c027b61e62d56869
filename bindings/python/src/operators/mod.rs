//! PyTorch's operators: `flashcore::fwd`, `::fwd.scaled` and `::fwd.bhsd` for equal lengths, `::fwd_varlen` and
//! `::fwd_kvcache` for others ([`lengths`]), `::append_kv` before the latter ([`append`]), `::bwd` and
//! `::bwd_varlen` for gradients ([`backward`]). Their kernels run without Python; fake kernels and autograd are in
//! `python/flashcore_attn/_operators.py`.

mod append;
pub(crate) mod backward;
mod call;
pub(crate) mod direct;
mod lengths;
pub(crate) mod schedule;
pub(crate) mod step;
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;
use std::sync::OnceLock;

use flashcore::{Alibi, DType, Layout, Lengths, Mask, Problem};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use self::call::{Array, Call};
use crate::error::forked;
use crate::input::{Described, Input};
use crate::libtorch::{Error, Kernel, Libtorch, Tensor};
use crate::options::{Axes, Options};
use crate::problem::problem_of;
use crate::tensor::{Place, layout_of};

static TORCH: OnceLock<Libtorch> = OnceLock::new();

const NAMES: [&str; 6] = ["q", "k", "v", "q_scale", "k_scale", "v_scale"];
const BHSD_NAMES: [&str; 3] = ["query", "key", "value"];

/// Each operator with its kernel. `out_bhsd`: the memory of `out` is in the order `[batch, heads, seq, head_dim]`. A
/// negative side of the window has no limit; a softcap of 0 is none. `deterministic` is for the gradients: whether they
/// are the same bits in every run. `sm_margin` multiprocessors are left to other work; a problem with `split_keys` over
/// 0 is batch-invariant. `modified` operators have sinks `[heads]` or ALiBi slopes `[heads]` or `[batch, heads]`; one
/// of one dimension without elements is not given. `fwd.bhsd` takes tensors `[batch, heads, seq, head_dim]` and gives
/// `[batch, seq, heads, head_dim]` alone, with the least work of the host.
const OPERATORS: [(&str, Kernel); 16] = [
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
    (
        "fwd.bhsd(Tensor query, Tensor key, Tensor value, float softmax_scale, bool causal, int window_left, \
         int window_right, float softcap) -> Tensor",
        forward_bhsd,
    ),
    (lengths::VARLEN_MODIFIED, lengths::forward_varlen_modified),
    (lengths::KVCACHE_MODIFIED, lengths::forward_kvcache_modified),
    (lengths::VARLEN_SCALED, lengths::forward_varlen_modified),
    (lengths::KVCACHE_SCALED, lengths::forward_kvcache_modified),
    (lengths::VARLEN, lengths::forward_varlen),
    (lengths::KVCACHE, lengths::forward_kvcache),
    (lengths::ROWS, lengths::forward_rows),
    (lengths::SCHEDULED, lengths::forward_scheduled),
    (schedule::MAKE, schedule::make_schedule),
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

/// PyTorch's functions, if its operators were registered.
pub(crate) fn registered() -> Option<&'static Libtorch> {
    TORCH.get()
}

const PANICKED: &str = "flashcore panicked, which is a bug; the message is on standard error";

/// The output, with its log-sum-exp or without, three gradients, or nothing; or why not.
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
    compute: for<'a> fn(&'a Libtorch, &[Input], &[u64]) -> Results<'a, N>,
) {
    let Some(torch) = TORCH.get() else { return }; // it was set before this was registered
    // SAFETY: PyTorch passes as many arguments as `inputs` says, and no fewer than results.
    let stack = unsafe { slice::from_raw_parts_mut(stack, inputs as usize) };
    let (handles, numbers) = stack.split_at(stack.len() - numbers);
    // SAFETY: the schemas begin with tensors, which are the kernel's to give back.
    let tensors: Vec<Tensor> = handles.iter().map(|&handle| unsafe { torch.take(handle) }).collect();
    let result = catch_unwind(AssertUnwindSafe(|| match forked() {
        None => {
            let inputs = tensors.iter().map(Tensor::input).collect::<Result<Vec<_>, _>>()?;
            compute(torch, &inputs, numbers)
        }
        Some(why) => Err(why.into()),
    }));
    drop(tensors);
    let message = match result {
        Ok(Ok(results)) => {
            stack[..N].copy_from_slice(&results.map(Tensor::into_stack));
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => PANICKED.to_string(),
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

unsafe extern "C-unwind" fn forward_bhsd(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with five numbers, and has one result.
    unsafe { serve(stack, inputs, 5, compute_bhsd) }
}

fn compute_modified<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 2> {
    compute_with(torch, &inputs[..3], &inputs[3..], numbers)
}

/// `flashcore::fwd` and `::fwd.scaled`.
fn compute<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 2> {
    compute_with(torch, inputs, &[], numbers)
}

/// The same with sinks and slopes, or neither.
fn compute_with<'a>(torch: &'a Libtorch, inputs: &[Input], head_values: &[Input], numbers: &[u64]) -> Results<'a, 2> {
    let of = |n: usize| inputs[n].describe::<4>(NAMES[n]).map(Rows::from);
    let tensors = [of(0)?, of(1)?, of(2)?];
    attend(torch, tensors, &inputs[3..], head_values, numbers, Axes::Bshd)
}

/// The output, with its dimensions in the order `axes`, and its log-sum-exp.
fn attend<'a>(
    torch: &'a Libtorch,
    tensors: [Rows; 3],
    scales: &[Input],
    head_values: &[Input],
    numbers: &[u64],
    axes: Axes,
) -> Results<'a, 2> {
    let [batch, seq, heads, _] = tensors[0].layout.shape;
    let lse_strides = [(heads * seq) as i64, seq as i64, 1];
    let lse = torch.empty([batch, heads, seq], lse_strides, Some(DType::F32), tensors[0].place)?;
    let dense = if numbers[5] as u8 != 0 {
        Layout::bhsd
    } else {
        Layout::bshd
    };
    let options = Options {
        axes,
        ..forward_options(numbers)?
    };
    let out = output_of(torch, tensors, scales, head_values, dense, Some(&lse), options)?;
    Ok([out, lse])
}

/// `flashcore::fwd.bhsd`, which autograd does not see.
fn compute_bhsd<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 1> {
    check_inference(torch, "fwd.bhsd", "fwd")?;
    let of = |n: usize| inputs[n].describe::<4>(BHSD_NAMES[n]).map(Rows::of_bhsd);
    let tensors = [of(0)?, of(1)?, of(2)?];
    let options = options_of(numbers);
    Ok([output_of(torch, tensors, &[], &[], Layout::bshd, None, options)?])
}

/// Autograd does not see an operator that is for inference only; another one is differentiable, or says why not.
fn check_inference(torch: &Libtorch, name: &str, other: &str) -> Result<(), Error> {
    if !torch.records_gradients() {
        return Ok(());
    }
    let why = format!("flashcore::{name} has no gradients: call it under torch.no_grad(), or call flashcore::{other}");
    Err(why.into())
}

/// The output, new and dense; the log-sum-exp is written to `lse` if that is given.
fn output_of<'a>(
    torch: &'a Libtorch,
    tensors: [Rows; 3],
    scales: &[Input],
    head_values: &[Input],
    dense: fn([usize; 4]) -> Layout,
    lse: Option<&Tensor>,
    mut options: Options,
) -> Result<Tensor<'a>, Error> {
    let [q, k, v] = &tensors;
    let (place, dtype) = q.agree(&[k, v])?;
    let ([batch, seq, heads, _], [.., head_dim_v]) = (q.layout.shape, v.layout.shape);
    let o_layout = dense([batch, seq, heads, head_dim_v]);
    options.return_lse = lse.is_some();
    let head_values = HeadValues::new(head_values, place, [batch, heads], &mut options)?;
    let problem = problem_of(dtype, [&q.layout, &k.layout, &v.layout, &o_layout], &options)?;
    let scales = scales_of(scales, &problem, place)?;

    let (shape, strides) = (
        options.axes.reorder(o_layout.shape),
        options.axes.reorder(o_layout.strides),
    );
    let out = torch.empty(shape, strides, Some(dtype.output()), place)?;
    let call = Call {
        torch,
        place,
        sm_margin: options.sm_margin,
        problem,
        tensors,
        scales,
        head_values,
        lengths: Lengths::default(),
        outputs: [out.first()?, lse.map_or(Ok(null_mut()), Tensor::first)?],
        gradients: None,
        kept: None,
    };
    call.run()?;
    Ok(out)
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

/// The options of an operator without gradients, whose last two numbers are `sm_margin` and `split_keys`: 0 for splits
/// that follow the batch.
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
    /// A tensor `[batch, heads, seq, head_dim]`.
    fn of_bhsd(mut tensor: Described<4>) -> Rows {
        tensor.shape.swap(1, 2);
        tensor.strides.swap(1, 2);
        tensor.into()
    }

    /// The place and dtype of q, which must be those of the others.
    fn agree(&self, others: &[&Rows]) -> Result<(Place, DType), Error> {
        let (place, dtype) = (self.place, self.dtype);
        for other in others {
            let name = other.name;
            if other.place != place {
                let theirs = other.place;
                let ours = self.name;
                return Err(
                    format!("{name} is on {theirs} and {ours} on {place}; move all tensors to one device").into(),
                );
            }
            if other.dtype != dtype {
                return Err(other_dtype(name, other.dtype, self.name, dtype).into());
            }
        }
        Ok((place, dtype))
    }
}

/// Why a tensor of another dtype than q is refused, and what to do.
pub(crate) fn other_dtype(name: &str, dtype: DType, of_q: &str, q: DType) -> String {
    let what = match dtype {
        DType::E4M3 => format!(
            "float8 keys and values with queries of another dtype are not served: convert {of_q} to float8_e4m3fn, too, \
             or keep keys and values in {of_q}'s dtype"
        ),
        _ => "convert one, so that all tensors hold the same".to_string(),
    };
    format!("{name} holds {dtype} and {of_q} {q}; {what}")
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
        given: &[Input],
        place: Place,
        [batch, heads]: [usize; 2],
        options: &mut Options,
    ) -> Result<HeadValues, Error> {
        let [sinks, slopes] = given else {
            return Ok(HeadValues::default());
        };
        let floats = [DType::F32, DType::F16, DType::BF16];
        let sinks = (!sinks.is_absent()).then(|| sinks.describe::<1>("sinks")?.check(&floats, [heads], place));
        let sinks = sinks.transpose()?;
        let slopes = match slopes.dims {
            _ if slopes.is_absent() => None,
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

/// The addresses of the scales of q, k and v; none of a problem that has none.
fn scales_of(scales: &[Input], problem: &Problem, place: Place) -> Result<Vec<*mut u8>, Error> {
    if scales.is_empty() != (problem.num_scales() == 0) {
        let dtype = problem.dtype();
        return Err(format!("q holds {dtype}; float8_e4m3fn tensors have scales, and no others").into());
    }
    let named = scales.iter().zip(&NAMES[3..]);
    named
        .map(|(scale, name)| scale_of(scale, name, problem, place))
        .collect()
}

/// The address of scales, which must be float32 `[batch, kv_heads]`, dense, on the tensors' device.
fn scale_of(scale: &Input, name: &'static str, problem: &Problem, place: Place) -> Result<*mut u8, Error> {
    let scale = scale.describe::<2>(name)?;
    scale.check_f32([problem.batch(), problem.num_kv_heads()], place)?;
    Ok(scale.first)
}
