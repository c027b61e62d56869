//! The CUDA driver for FlashCore: finding it, compiling and caching kernels, memory, launches,
//! events, graphs, tensor maps.
//!
//! Only the driver is needed (`libcuda.so.1`, release 525 or newer), found when the first device is
//! asked for. There is no toolkit, no nvcc and no link-time dependency; where there is no driver,
//! every call returns [`CudaError::NoDriver`] and nothing panics.
//!
//! Three layers, each in its own modules: `sys` declares the driver's functions, `raw` makes every
//! foreign call and turns its status into an error with the call's name and arguments, and the
//! types below own what the driver hands out.
//!
//! ```no_run
//! use flashcore_cuda::{Context, DeviceBuffer, Function, ModuleOptions, Stream};
//! use flashcore_ir::{Kernel, Launch};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new(0)?;
//! let stream = Stream::new(&context)?;
//! let numbers = DeviceBuffer::from_host(&stream, &[1.0f32, 2.0, 3.0])?;
//! let double = Kernel::build("double", 32, |k| {
//!     let (numbers, count) = (k.param_ptr_mut::<f32>("numbers"), k.param::<u32>("count"));
//!     k.if_(k.thread_idx().lt(count).divergent(), || {
//!         let number = numbers.offset(k.thread_idx());
//!         number.store(number.load() * 2.0);
//!     });
//! })?;
//! let launch = Launch::builder(&double, [1, 1, 1]).buffer("numbers", 12).arg("count", 3u32).build()?;
//! let double = Function::load(&context, &double, &ModuleOptions::default())?;
//! // SAFETY: the kernel touches the three numbers only.
//! unsafe { double.run(&stream, &launch, &[numbers.as_slice()])? };
//! assert_eq!(numbers.to_vec::<f32>(&stream)?, [2.0, 4.0, 6.0]);
//! # Ok(())
//! # }
//! ```

mod allocation;
mod context;
mod device;
mod error;
mod explain;
mod function;
mod graph;
mod heap;
mod identity;
mod memory;
mod module;
mod plan;
mod raw;
mod status;
mod stream;
mod sys;
mod table;
mod tensor_map;
mod verdict;

pub use context::Context;
pub use device::{DeviceInfo, DeviceUuid, devices, devices_in_trouble};
pub use error::{CallError, CompileError, CudaError, Fault, LaunchFailure, ModuleRefusal};
pub use flashcore_ir::proof::{LaunchRefusal, LaunchShape};
pub use flashcore_ir::ptx::log::{JitLog, KernelLog};
pub use function::{Function, FunctionAttributes};
pub use graph::{Graph, Recording};
pub use identity::ModuleIdentity;
pub use memory::{DeviceBuffer, DeviceSlice};
pub use module::{Module, ModuleOptions, ModuleReport};
pub use plan::PreparedLaunch;
pub use stream::{Event, Stream};
pub use table::HeldTables;
pub use tensor_map::TensorMap;

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
