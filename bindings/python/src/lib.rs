//! FlashCore for Python: attention on any tensor with DLPack, without copies.
//!
//! A call goes through the modules in this order: [`options`] parses keyword arguments, [`tensor`]
//! imports the tensors, [`scales`] the scales of fp8 tensors and [`head_values`] sinks and slopes,
//! [`stream`] finds the CUDA stream, [`frameworks`] allocates the output with PyTorch, CuPy or NumPy,
//! and [`call`] builds the problem and runs it. [`operators`] are the same for PyTorch's dispatcher,
//! which they reach through [`libtorch`], and [`input`] is what they are given. `bench` is the
//! measuring protocol for Python functions.

#![allow(unsafe_code)] // DLPack hands over raw pointers; each block says why it may be believed.

#[cfg(feature = "bench")]
mod bench;
mod call;
mod devices;
mod error;
mod exchange;
mod explain;
mod frameworks;
mod head_values;
mod input;
mod libtorch;
mod operators;
mod options;
mod problem;
mod scales;
mod stream;
mod tensor;

use pyo3::prelude::*;

/// The compiled half of the package `flashcore_attn`; `python/flashcore_attn/__init__.py` documents what it
/// exports.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(call::attention, module)?)?;
    module.add_function(wrap_pyfunction!(explain::plan, module)?)?;
    module.add_function(wrap_pyfunction!(devices::devices, module)?)?;
    module.add_function(wrap_pyfunction!(devices::why_not_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(operators::register_operators, module)?)?;
    module.add_function(wrap_pyfunction!(operators::backward::slow_backward, module)?)?;
    module.add_function(wrap_pyfunction!(operators::direct::direct_forward, module)?)?;
    module.add_function(wrap_pyfunction!(operators::direct::direct_bhsd, module)?)?;
    module.add_function(wrap_pyfunction!(operators::direct::direct_sdpa, module)?)?;
    module.add_function(wrap_pyfunction!(operators::schedule::last_schedule, module)?)?;
    module.add_function(wrap_pyfunction!(operators::step::check_step, module)?)?;
    module.add_function(wrap_pyfunction!(operators::step::direct_step, module)?)?;
    #[cfg(feature = "bench")]
    {
        flashcore_bench::set_revision(env!("FLASHCORE_BUILD_REVISION"));
        module.add_function(wrap_pyfunction!(bench::check_build, module)?)?;
        module.add_function(wrap_pyfunction!(bench::measure, module)?)?;
        module.add_function(wrap_pyfunction!(bench::run_bench, module)?)?;
        module.add_function(wrap_pyfunction!(bench::abort_at_end_of_input, module)?)?;
    }
    Ok(())
}
