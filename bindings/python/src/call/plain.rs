//! PyTorch's plain CUDA tensors, in its current stream: they are looked at where they are, without an object for each.
//! On the CPU those objects hold the memory while Python's lock is given away.

use flashcore::Device;
use pyo3::intern;
use pyo3::prelude::*;

use super::{Call, attention_on};
use crate::error::raise;
use crate::exchange::Exchange;
use crate::frameworks::{Framework, forward_mode, records_gradients};
use crate::head_values::HeadValues;
use crate::options::Options;
use crate::scales::Scales;
use crate::stream::{CallStream, handle_of};
use crate::tensor::{Place, Tensor};

impl<'py> Call<'py> {
    /// As [`Call::gather`] without scales, in PyTorch's current stream; `None` for what that must look closer at.
    pub(super) fn gather_plain(
        inputs: [&Bound<'py, PyAny>; 3],
        out: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
        options: &Options,
    ) -> PyResult<Option<(Call<'py>, Option<Tensor>)>> {
        let py = inputs[0].py();
        let framework = Framework::of(inputs[0]);
        let (Framework::Torch(torch), Some(exchange)) = (&framework, Exchange::of_torch(py)) else {
            return Ok(None);
        };
        if forward_mode(torch)?.is_some() {
            return Ok(None);
        }
        let recorded = records_gradients(torch)?;
        let import = |name, object: &Bound<'py, PyAny>| -> PyResult<Option<(Tensor, _)>> {
            if !exchange.is_plain(object)
                || object.call_method0(intern!(py, "is_neg"))?.is_truthy()?
                || (recorded && object.getattr(intern!(py, "requires_grad"))?.is_truthy()?)
            {
                return Ok(None);
            }
            let view = exchange.view(object);
            Ok(view.and_then(|view| Some((Tensor::of_view(name, &view, options.axes)?, view.device))))
        };
        let [q, k, v] = inputs;
        let (Some((q, device)), Some((k, _)), Some((v, _))) = (import("q", q)?, import("k", k)?, import("v", v)?)
        else {
            return Ok(None);
        };
        let out = match out {
            None => None,
            Some(out) => match import("out", out)? {
                None => return Ok(None),
                Some((out, _)) => Some(out),
            },
        };
        let place = q.place;
        if place == Place::Cpu {
            return Ok(None);
        }
        let others = [&k, &v].into_iter().chain(&out);
        if others
            .into_iter()
            .any(|other| other.place != place || other.dtype != q.dtype)
        {
            return Ok(None);
        }
        let attention = attention_on(place, options.kernel, options.sm_margin).map_err(raise)?;
        let given = stream.map(handle_of).transpose()?;
        let stream = match attention.device() {
            Device::Cuda(context) => match exchange.current_stream(py, device) {
                Some(current) => {
                    let current = CallStream::new(&context, current)?;
                    if given.is_some_and(|given| !current.is(given)) {
                        return Ok(None);
                    }
                    Some(current)
                }
                None => return Ok(None),
            },
            _ if given.is_some() => return Ok(None),
            _ => None,
        };
        let call = Call {
            place,
            attention,
            q,
            k,
            v,
            scales: Scales::default(),
            head_values: HeadValues::default(),
            stream,
            framework,
            foreign_stream: None,
            plain: Some((exchange, device)),
        };
        Ok(Some((call, out)))
    }
}
