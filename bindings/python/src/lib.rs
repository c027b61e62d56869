//! FlashCore for Python: attention on any tensor with DLPack, without copies.
//!
//! A call goes through the modules in this order: [`options`] has its numbers, [`foreign`] describes tensors, which
//! come through [`libtorch`] (PyTorch's [`operators`]), PyTorch's [`exchange`] table ([`bypass`], without its
//! dispatcher) or [`dlpack`] ([`call`]); [`table`] says what operators are given, [`bind`] checks a call, and [`run`]
//! computes it. `bench` is the measuring protocol for Python functions.

#![allow(unsafe_code)] // DLPack hands over raw pointers; each block says why it may be believed.

mod append;
#[cfg(feature = "bench")]
mod bench;
mod bind;
mod bypass;
mod call;
mod devices;
mod dlpack;
mod error;
mod exchange;
mod explain;
mod foreign;
mod frameworks;
mod libtorch;
mod operators;
mod options;
mod run;
mod schedule;
mod stream;
mod table;
mod threads;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The compiled half of the package `flashcore_attn`; `python/flashcore_attn/__init__.py` documents what it
/// exports.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let os = module.py().import("os")?;
    if let Some(register) = os.getattr_opt("register_at_fork")? {
        let kwargs = PyDict::new(module.py());
        kwargs.set_item("after_in_child", wrap_pyfunction!(error::after_fork, module)?)?;
        register.call((), Some(&kwargs))?;
    } // else the system has no fork
    module.add_function(wrap_pyfunction!(options::attention, module)?)?;
    module.add_function(wrap_pyfunction!(options::plan, module)?)?;
    module.add_function(wrap_pyfunction!(devices::devices, module)?)?;
    module.add_function(wrap_pyfunction!(devices::why_not_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(table::operators, module)?)?;
    module.add_function(wrap_pyfunction!(operators::register_operators, module)?)?;
    module.add_function(wrap_pyfunction!(operators::check_operator, module)?)?;
    module.add_function(wrap_pyfunction!(operators::slow_backward, module)?)?;
    module.add_function(wrap_pyfunction!(bypass::call, module)?)?;
    module.add_function(wrap_pyfunction!(schedule::last_schedule, module)?)?;
    module.add_function(wrap_pyfunction!(schedule::kept_schedules, module)?)?;
    #[cfg(feature = "bench")]
    {
        flashcore_bench::set_revision(env!("FLASHCORE_BUILD_REVISION"));
        module.add_function(wrap_pyfunction!(bench::check_build, module)?)?;
        module.add_function(wrap_pyfunction!(bench::run_bench, module)?)?;
        module.add_function(wrap_pyfunction!(bench::abort_at_end_of_input, module)?)?;
    }
    Ok(())
}
