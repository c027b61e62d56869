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

use pyo3::pymodule;

/// The compiled half of the package `flashcore_attn`; `python/flashcore_attn/__init__.py` documents what it
/// exports.
#[pymodule]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[cfg(feature = "bench")]
    #[pymodule_export]
    use crate::bench::{abort_at_end_of_input, check_build, run_bench};
    #[pymodule_export]
    use crate::bypass::call;
    #[pymodule_export]
    use crate::devices::{devices, why_not_cuda};
    #[pymodule_export]
    use crate::operators::{check_operator, register_operators, slow_backward};
    #[pymodule_export]
    use crate::options::{attention, plan};
    #[pymodule_export]
    use crate::schedule::{kept_schedules, last_schedule};
    #[pymodule_export]
    use crate::table::operators;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        #[cfg(feature = "bench")]
        flashcore_bench::set_revision(env!("FLASHCORE_BUILD_REVISION"));
        let os = module.py().import("os")?;
        if let Some(register) = os.getattr_opt("register_at_fork")? {
            let kwargs = PyDict::new(module.py());
            kwargs.set_item("after_in_child", wrap_pyfunction!(crate::error::after_fork, module)?)?;
            register.call((), Some(&kwargs))?;
        } // else the system has no fork
        Ok(())
    }
}
