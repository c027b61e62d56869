//! What there is to compute on.

use flashcore::Device;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error;

/// The devices attention can run on: the CPU, then the CUDA devices that kernels are made for. No CUDA context is made.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    let cpu = PyDict::new(py);
    cpu.set_item("device", "cpu")?;
    list.append(cpu)?;
    if error::forked().is_some() {
        return Ok(list); // it must not use the driver
    }
    // Where there is no driver or no device, why_not_cuda says so; a list without CUDA is valid.
    let found = py.detach(flashcore::cuda::devices).unwrap_or_default();
    for info in found.into_iter().filter(|info| info.target().is_some()) {
        let dict = PyDict::new(py);
        dict.set_item("device", format!("cuda:{}", info.ordinal))?;
        dict.set_item("name", &info.name)?;
        dict.set_item("uuid", info.uuid.to_string())?;
        dict.set_item("compute_capability", info.compute_capability)?;
        dict.set_item("multiprocessors", info.multiprocessors)?;
        dict.set_item("total_memory", info.total_memory)?;
        dict.set_item("driver", &info.driver_release)?;
        dict.set_item(
            "cuda_version",
            (info.cuda_version / 1000, info.cuda_version % 1000 / 10),
        )?;
        list.append(dict)?;
    }
    Ok(list)
}

/// Why no CUDA device can be used, in a sentence; None where one can.
#[pyfunction]
pub(crate) fn why_not_cuda(py: Python<'_>) -> Option<String> {
    py.detach(Device::why_not_cuda).map(|error| error.to_string())
}
