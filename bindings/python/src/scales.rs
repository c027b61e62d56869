//! Scales of fp8 tensors: float32 `[batch, kv_heads]`, one for each of q, k and v.

use std::sync::{Mutex, PoisonError};

use flashcore::cuda::{Context, DeviceBuffer, DeviceSlice, Stream};
use flashcore::{DType, DeviceScales, Problem, TensorView};
use pyo3::prelude::*;

use crate::error::{raise, type_, value};
use crate::frameworks::without_gradient;
use crate::stream::CallStream;
use crate::tensor::{Expected, Place, Request, Values};

/// What a call was given for scales, in the order q, k, v.
pub(crate) type Given<'a, 'py> = [Option<&'a Bound<'py, PyAny>>; 3];

const NAMES: [&str; 3] = ["q_scale", "k_scale", "v_scale"];

/// The scales of a call, imported; `None` for those left out, which are 1.
#[derive(Default)]
pub(crate) struct Scales([Option<Values>; 3]);

const EXPECTED: Expected = Expected {
    dtypes: &[DType::F32],
    dtype: "float32",
    dims: &[2],
    shape: "[batch, kv_heads]",
};

impl Scales {
    pub(crate) fn gather(
        given: Given<'_, '_>,
        dtype: DType,
        place: Place,
        stream: Option<&CallStream>,
    ) -> PyResult<Scales> {
        let mut scales = [None, None, None];
        for ((scale, given), name) in scales.iter_mut().zip(given).zip(NAMES) {
            let Some(object) = given else { continue };
            if dtype != DType::E4M3 {
                return Err(type_(format!(
                    "{name} was given, but q, k and v hold {dtype}; only float8_e4m3fn tensors have scales: leave it out"
                )));
            }
            let request = Request::new(name, &without_gradient(name, object)?)?;
            if request.place != place {
                return Err(value(format!(
                    "{name} is on {} and q on {place}; move all tensors to one device",
                    request.place
                )));
            }
            *scale = Some(request.import_values(stream, &EXPECTED)?);
        }
        Ok(Scales(scales))
    }

    pub(crate) fn check(&self, problem: &Problem) -> PyResult<()> {
        let expected = [problem.batch(), problem.num_kv_heads()];
        for scale in self.0.iter().flatten() {
            if scale.shape != expected {
                return Err(value(format!(
                    "{} has shape {:?}; this call needs {expected:?}: a scale for each batch and K/V head",
                    scale.name, scale.shape
                )));
            }
        }
        Ok(())
    }

    /// Views of q, k and v in host memory with their scales, if e4m3; `ones` for those left out.
    ///
    /// # Safety
    /// As [`Values::host_values`].
    pub(crate) unsafe fn attach<'a>(
        &'a self,
        problem: &Problem,
        mut views: [TensorView<'a>; 3],
        ones: &'a [f32],
    ) -> PyResult<[TensorView<'a>; 3]> {
        if views[0].dtype() != DType::E4M3 {
            return Ok(views);
        }
        for ((view, scale), name) in views.iter_mut().zip(&self.0).zip(["q", "k", "v"]) {
            let scales = match scale {
                // SAFETY: the caller's part.
                Some(scale) => unsafe { scale.host_values() },
                None => ones,
            };
            let scaled = view.with_scales_of(name, problem.batch(), scales);
            *view = scaled.map_err(|error| raise(error.into()))?;
        }
        Ok(views)
    }

    /// The scales in device memory; `None` for problems that have none.
    pub(crate) fn on_device(&self, context: &Context, problem: &Problem) -> PyResult<Option<DeviceScales<'_>>> {
        if problem.num_scales() == 0 {
            return Ok(None);
        }
        let slice = |scale: &Option<Values>| match scale {
            // SAFETY: as for the call's tensors (`Call::run_on_cuda`).
            Some(scale) => Ok(unsafe { DeviceSlice::from_raw(context, scale.address(), scale.bytes()) }),
            None => ones(context, problem.num_scales()),
        };
        let [q, k, v] = &self.0;
        Ok(Some(DeviceScales {
            q: slice(q)?,
            k: slice(k)?,
            v: slice(v)?,
        }))
    }
}

/// As many ones on a device, kept for the life of the process: graphs may hold their address.
fn ones(context: &Context, count: usize) -> PyResult<DeviceSlice<'static>> {
    static KEPT: Mutex<Vec<&'static DeviceBuffer>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |buffer: &&&DeviceBuffer| {
        buffer.context().ordinal() == context.ordinal() && buffer.len() >= count * size_of::<f32>()
    };
    if let Some(buffer) = kept.iter().find(fits) {
        return Ok(buffer.as_slice());
    }
    let upload = || {
        let stream = Stream::new(context)?;
        let buffer = DeviceBuffer::from_host(&stream, &vec![1f32; count.next_power_of_two()])?;
        stream.synchronize()?;
        Ok(buffer)
    };
    let buffer: &'static DeviceBuffer = Box::leak(Box::new(upload().map_err(raise)?));
    kept.push(buffer);
    Ok(buffer.as_slice())
}
