//! PyTorch's operators `flashcore::fwd` and `flashcore::fwd.scaled`. Their kernels run without
//! Python; fake kernels and autograd are in `python/flashcore/_operators.py`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::OnceLock;

use flashcore::cuda::{DeviceSlice, Stream};
use flashcore::{DType, Device, DeviceScales, DeviceTensors, Layout, Mask, Problem, TensorView, TensorViewMut};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::call::{attention_on, problem_of};
use crate::libtorch::{Described, Error, Libtorch, Tensor};
use crate::options::{Axes, Options};
use crate::tensor::{Place, layout_of};

static TORCH: OnceLock<Libtorch> = OnceLock::new();

const NAMES: [&str; 6] = ["q", "k", "v", "q_scale", "k_scale", "v_scale"];

/// Arguments after the tensors.
const NUMBERS: usize = 6;

/// `out_bhsd`: the memory of `out` is in the order `[batch, heads, seq, head_dim]`. A negative side
/// of the window has no limit; a softcap of 0 is none.
const SCHEMAS: [&str; 2] = [
    "fwd(Tensor q, Tensor k, Tensor v, float softmax_scale, bool causal, int window_left, int window_right, \
     float softcap, bool out_bhsd) -> (Tensor out, Tensor lse)",
    "fwd.scaled(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, float softmax_scale, \
     bool causal, int window_left, int window_right, float softcap, bool out_bhsd) -> (Tensor out, Tensor lse)",
];

/// Registers PyTorch's operators; the paths are those of libtorch_cpu and, where there is one,
/// libtorch_cuda.
#[pyfunction]
pub(crate) fn register_operators(cpu: &str, cuda: Option<&str>) -> PyResult<()> {
    let register = || {
        let torch = Libtorch::find(cpu, cuda)?;
        torch.register("flashcore", &SCHEMAS, forward)?;
        let _ = TORCH.set(torch); // it was empty
        Ok(())
    };
    match TORCH.get() {
        Some(_) => Ok(()),
        None => register().map_err(|error: Error| PyRuntimeError::new_err(error.to_string())),
    }
}

unsafe extern "C-unwind" fn forward(stack: *mut u64, inputs: u64, _outputs: u64) {
    let Some(torch) = TORCH.get() else { return }; // it was set before this was registered
    // SAFETY: PyTorch passes as many arguments as `inputs` says, and no fewer than results.
    let stack = unsafe { slice::from_raw_parts_mut(stack, inputs as usize) };
    let (handles, numbers) = stack.split_at(stack.len() - NUMBERS);
    // SAFETY: the schemas begin with tensors, which are the kernel's to give back.
    let inputs: Vec<Tensor> = handles.iter().map(|&handle| unsafe { torch.take(handle) }).collect();
    let result = catch_unwind(AssertUnwindSafe(|| compute(torch, &inputs, numbers)));
    drop(inputs);
    let message = match result {
        Ok(Ok([out, lse])) => {
            stack[..2].copy_from_slice(&[out.into_stack(), lse.into_stack()]);
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "flashcore panicked, which is a bug; the message is on standard error".to_string(),
    };
    torch.raise(&message);
}

/// The output and its log-sum-exp for the arguments of an operator.
fn compute<'a>(torch: &'a Libtorch, inputs: &[Tensor], numbers: &[u64]) -> Result<[Tensor<'a>; 2], Error> {
    let of = |n: usize| inputs[n].describe::<4>(NAMES[n]);
    let [q, k, v] = [of(0)?, of(1)?, of(2)?];
    let (place, dtype) = (q.place, q.dtype);
    for Described {
        name, place: theirs, ..
    } in [&k, &v]
    {
        if *theirs != place {
            return Err(format!("{name} is on {theirs} and q on {place}; move all tensors to one device").into());
        }
    }
    for Described {
        name, dtype: theirs, ..
    } in [&k, &v]
    {
        if *theirs != dtype {
            return Err(format!("{name} holds {theirs} and q {dtype}; convert one").into());
        }
    }

    let side = |bits: u64| u32::try_from(bits as i64).ok();
    let (causal, softcap, out_bhsd) = (numbers[1] as u8 != 0, f64::from_bits(numbers[4]), numbers[5] as u8 != 0);
    let options = Options {
        mask: Mask::window(side(numbers[2]), if causal { Some(0) } else { side(numbers[3]) }),
        softcap: (softcap != 0.0).then_some(softcap as f32),
        scale: Some(f64::from_bits(numbers[0]) as f32),
        return_lse: true,
        kernel: None,
        axes: Axes::Bshd,
    };
    let layouts = [&q, &k, &v].map(|x| layout_of(x.shape, x.strides));
    let ([batch, seq, heads, _], [.., head_dim_v]) = (layouts[0].shape, layouts[2].shape);
    let o_layout = if out_bhsd { Layout::bhsd } else { Layout::bshd }([batch, seq, heads, head_dim_v]);
    let problem = problem_of(dtype, [&layouts[0], &layouts[1], &layouts[2], &o_layout], &options)?;
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
    let attention = attention_on(place, None)?;
    match (attention.device(), place) {
        (Device::Cuda(context), Place::Cuda(ordinal)) => {
            // SAFETY: all memory is on this device, and is as large as PyTorch's shapes say. PyTorch frees it in the
            // order of its current stream, where the work is. That stream lives as long as PyTorch.
            let slice = |first: *mut u8, bytes| unsafe { DeviceSlice::from_raw(&context, first.addr() as u64, bytes) };
            let pointers = [q.first, k.first, v.first, out.first()?].map(|first| first.addr() as u64);
            // SAFETY: as above.
            let (stream, mut tensors) = unsafe {
                let stream = Stream::from_raw(&context, torch.current_stream(ordinal)?)?;
                (stream, DeviceTensors::from_raw(&context, &problem, pointers))
            };
            tensors.lse = Some(slice(lse.first()?, problem.lse_len() * size_of::<f32>()));
            if let [q, k, v] = scales[..] {
                let [q, k, v] = [q, k, v].map(|scale| slice(scale, problem.num_scales() * size_of::<f32>()));
                tensors.scales = Some(DeviceScales { q, k, v });
            }
            let bytes = usize::try_from(attention.workspace_bytes(&problem, tensors.alignment())?)?;
            let workspace;
            if bytes > 0 {
                workspace = torch.empty([bytes], [1], None, place)?;
                tensors.workspace = Some(slice(workspace.first()?, bytes));
            }
            attention.forward_on(&stream, &problem, &tensors)?;
        }
        _ => {
            let mut views = Vec::new();
            for (x, layout) in [&q, &k, &v].into_iter().zip(layouts) {
                // SAFETY: PyTorch's strides, which are not negative, stay within the tensor's memory. That nothing
                // writes to it meanwhile is the caller's part.
                let bytes = unsafe { slice::from_raw_parts(x.first, layout.span() * dtype.size_bytes()) };
                let view = TensorView::new(x.name, dtype, layout, bytes)?;
                views.push(match scales.get(views.len()) {
                    None => view,
                    // SAFETY: `scale_of` has checked shape, dtype and density.
                    Some(scale) => view.with_scales(x.name, unsafe {
                        slice::from_raw_parts(scale.cast(), problem.num_scales())
                    })?,
                });
            }
            // SAFETY: `out` and `lse` were allocated above, dense, of these sizes.
            let (o, lse) = unsafe {
                let bytes = o_layout.num_elements() * dtype.output().size_bytes();
                let o = slice::from_raw_parts_mut(out.first()?, bytes);
                (o, slice::from_raw_parts_mut(lse.first()?.cast(), problem.lse_len()))
            };
            let o = TensorViewMut::new("out", dtype.output(), o_layout, o)?;
            attention.forward_into(&problem, views[0], views[1], views[2], o, Some(lse))?;
        }
    }
    Ok([out, lse])
}

/// The address of scales, which must be float32 `[batch, kv_heads]`, dense, on the tensors' device.
fn scale_of(scale: &Tensor, name: &'static str, problem: &Problem, place: Place) -> Result<*mut u8, Error> {
    let scale = scale.describe::<2>(name)?;
    let [batch, heads] = [problem.batch() as i64, problem.num_kv_heads() as i64];
    let dense = (heads == 1 || scale.strides[1] == 1) && (batch == 1 || scale.strides[0] == heads);
    if scale.dtype != DType::F32 || scale.shape != [batch, heads] || !dense || scale.place != place {
        let shape = scale.shape;
        return Err(format!(
            "{name} has shape {shape:?}; it must be float32 of shape {:?}, contiguous, on {place}",
            [batch, heads]
        )
        .into());
    }
    Ok(scale.first)
}
