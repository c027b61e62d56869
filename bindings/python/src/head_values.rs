//! Values of query heads: sinks `[heads]` and ALiBi slopes `[heads]` or `[batch, heads]`.

use flashcore::cuda::{Context, DeviceSlice};
use flashcore::{Alibi, DType, Problem, bf16, f16};
use pyo3::prelude::*;

use crate::error::value;
use crate::frameworks::without_gradient;
use crate::options::Options;
use crate::stream::CallStream;
use crate::tensor::{Expected, Place, Request, Values};

const SINKS: Expected = Expected {
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dtype: "float32, float16 or bfloat16",
    dims: &[1],
    shape: "[heads]",
};

const SLOPES: Expected = Expected {
    dtypes: &[DType::F32],
    dtype: "float32",
    dims: &[1, 2],
    shape: "[heads] or [batch, heads]",
};

/// The sinks and slopes of a call, imported.
#[derive(Default)]
pub(crate) struct HeadValues {
    sinks: Option<Values>,
    slopes: Option<Values>,
}

impl HeadValues {
    /// Imports them, and has the options say that the problem has them.
    pub(crate) fn gather(
        sinks: Option<&Bound<'_, PyAny>>,
        slopes: Option<&Bound<'_, PyAny>>,
        place: Place,
        stream: Option<&CallStream>,
        options: &mut Options,
    ) -> PyResult<HeadValues> {
        let import = |name, given: Option<&Bound<'_, PyAny>>, expected| {
            let Some(object) = given else { return Ok(None) };
            let request = Request::new(name, &without_gradient(name, object)?)?;
            if request.place != place {
                return Err(value(format!(
                    "{name} is on {} and q on {place}; move all tensors to one device",
                    request.place
                )));
            }
            request.import_values(stream, expected).map(Some)
        };
        let (sinks, slopes) = (
            import("sinks", sinks, &SINKS)?,
            import("alibi_slopes", slopes, &SLOPES)?,
        );
        options.sinks = sinks.as_ref().map(|sinks| sinks.dtype);
        options.alibi = slopes.as_ref().map(|slopes| match slopes.shape.len() {
            1 => Alibi::Heads,
            _ => Alibi::BatchHeads,
        });
        Ok(HeadValues { sinks, slopes })
    }

    pub(crate) fn check(&self, problem: &Problem) -> PyResult<()> {
        let (batch, heads) = (problem.batch(), problem.num_heads());
        for values in [&self.sinks, &self.slopes].into_iter().flatten() {
            let expected = match values.shape.len() {
                1 => vec![heads],
                _ => vec![batch, heads],
            };
            if values.shape != expected {
                return Err(value(format!(
                    "{} has shape {:?}; this call needs {expected:?}: a value for each query head",
                    values.name, values.shape
                )));
            }
        }
        Ok(())
    }

    /// Sinks and slopes in host memory, as float32.
    ///
    /// # Safety
    /// As [`Values::host_values`].
    pub(crate) unsafe fn on_host(&self) -> [Option<Vec<f32>>; 2] {
        // SAFETY: the caller's part.
        let read = |values: &Values| read(values.dtype, unsafe { values.host_bytes() });
        [&self.sinks, &self.slopes].map(|values| values.as_ref().map(read))
    }

    /// The same in device memory.
    pub(crate) fn on_device<'a>(&'a self, context: &Context) -> [Option<DeviceSlice<'a>>; 2] {
        // SAFETY: as for the call's tensors (`Call::run_on_cuda`).
        let slice = |values: &Values| unsafe { DeviceSlice::from_raw(context, values.address(), values.bytes()) };
        [&self.sinks, &self.slopes].map(|values| values.as_ref().map(slice))
    }
}

/// Floats of a dtype as float32, which has all of them.
pub(crate) fn read(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        DType::F16 => halves.map(|pair| f16::from_ne_bytes(pair).to_f32()).collect(),
        DType::BF16 => halves.map(|pair| bf16::from_ne_bytes(pair).to_f32()).collect(),
        DType::F32 | DType::E4M3 => {
            let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
            words.map(f32::from_ne_bytes).collect()
        }
    }
}
