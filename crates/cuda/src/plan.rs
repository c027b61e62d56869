//! Kernels of the kernel language on the driver: a `Kernel` is loaded, a `Launch` is run with the buffers
//! its caller brings. The simulator takes the same two values.

use std::sync::Arc;

use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, ScalarType, Swizzle, TensorMapRecipe};

use crate::context::Context;
use crate::error::CudaError;
use crate::function::{Function, KernelArg};
use crate::memory::DeviceSlice;
use crate::module::{Module, ModuleOptions};
use crate::proof::LaunchShape;
use crate::refusal::LaunchRefusal;
use crate::stream::Stream;
use crate::table::DeviceTable;
use crate::tensor_map::{TensorMapElement, TensorMapL2, TensorMapRefusal, TensorMapSpec, TensorMapSwizzle};

impl Function {
    /// Compiles and loads a kernel of the kernel language, or finds it already loaded. With
    /// [`ModuleOptions::line_info`] it carries the Rust lines for profilers.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(context: &Context, kernel: &Kernel, options: &ModuleOptions) -> Result<Self, CudaError> {
        let ptx = if options.line_info {
            kernel.to_ptx_with_lines()
        } else {
            kernel.to_ptx()
        };
        Module::load(context, &ptx, options)?.function(kernel.name())
    }

    /// Checks a launch against this kernel and these buffers, and turns its recipes into arguments.
    /// `buffers[slot]` is what the launch calls slot `slot`; more may be given than it needs.
    ///
    /// # Errors
    /// [`CudaError::Launch`] for a buffer that is missing, too small or not aligned, arguments that do not
    /// match the kernel, or a shape that the device cannot launch; [`CudaError::TensorMap`].
    pub fn prepare<'a>(&self, launch: &Launch, buffers: &[DeviceSlice<'a>]) -> Result<PreparedLaunch<'a>, CudaError> {
        let refuse = |refusal| self.refuse(refusal);
        check_buffers(&launch.buffers, buffers).map_err(refuse)?;
        let mut arguments = Vec::with_capacity(launch.args.len());
        let mut tables = Vec::new();
        for (index, arg) in launch.args.iter().enumerate() {
            let slice = |slot: usize, byte_offset: u64| {
                argument_slice(index, slot, byte_offset, &launch.buffers, buffers).map_err(refuse)
            };
            arguments.push(match *arg {
                Arg::Buffer { slot, byte_offset } => KernelArg::Slice(slice(slot, byte_offset)?),
                Arg::U32(value) => KernelArg::U32(value),
                Arg::I32(value) => KernelArg::I32(value),
                Arg::U64(value) => KernelArg::U64(value),
                Arg::F32(value) => KernelArg::F32(value),
                Arg::Table(ref table) => {
                    let context = self.module().context();
                    let table = context.tables().get(context, table)?;
                    let address = table.address();
                    tables.push(table);
                    KernelArg::U64(address)
                }
                Arg::TensorMap(ref recipe) => {
                    let tensor = slice(recipe.slot, recipe.byte_offset)?;
                    KernelArg::TensorMap(tensor_map_spec(recipe)?.encode(self.module().context(), tensor)?)
                }
            });
        }
        let shape = LaunchShape {
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
            programmatic_dependent: false,
        };
        self.prove(&shape)?;
        self.prove_arguments(&arguments)?;
        Ok(PreparedLaunch {
            tables,
            function: self.clone(),
            shape,
            arguments,
        })
    }

    /// Checks and enqueues a launch: [`Function::prepare`] and [`PreparedLaunch::enqueue`] in one.
    ///
    /// # Errors
    /// As those two.
    pub fn run(&self, stream: &Stream, launch: &Launch, buffers: &[DeviceSlice<'_>]) -> Result<(), CudaError> {
        self.prepare(launch, buffers)?.enqueue(stream)
    }
}

/// A launch whose buffers and arguments are settled: enqueueing it again costs the driver call alone.
#[derive(Debug, Clone)]
pub struct PreparedLaunch<'a> {
    // Before the function, which keeps the context that freeing them needs.
    tables: Vec<Arc<DeviceTable>>,
    function: Function,
    shape: LaunchShape,
    arguments: Vec<KernelArg<'a>>,
}

impl PreparedLaunch<'_> {
    /// Enqueues the kernel. Returns at once; a fault shows at a later synchronisation.
    ///
    /// Safe to call with kernels that are not proved: what a kernel can reach is this process's device
    /// memory, none of which Rust refers to. A faulty kernel can spoil its results or lose the context; the
    /// simulator is there to find that out first.
    ///
    /// # Errors
    /// [`CudaError::LaunchFailed`] with an explanation if the driver refuses it;
    /// [`CudaError::OtherDevice`] for a stream of another device.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), CudaError> {
        #[allow(unsafe_code)]
        // SAFETY: every buffer is at least as long as the launch says the kernel touches, and borrowed by
        // this value; argument sizes are those of the kernel's parameters.
        unsafe {
            self.function.launch(stream, &self.shape, &self.arguments)?;
        }
        stream.hold(&self.tables)
    }

    /// The kernel.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The launch's shape.
    pub fn shape(&self) -> &LaunchShape {
        &self.shape
    }
}

/// Checks that each declared buffer was brought, is long enough, and begins where it must.
fn check_buffers(specs: &[BufferSpec], buffers: &[DeviceSlice<'_>]) -> Result<(), LaunchRefusal> {
    if buffers.len() < specs.len() {
        return Err(LaunchRefusal::BufferCount {
            given: buffers.len(),
            needed: specs.len(),
            names: specs.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
        });
    }
    for (spec, buffer) in specs.iter().zip(buffers) {
        let (given, address) = (buffer.len() as u64, buffer.address());
        if given < spec.bytes {
            return Err(LaunchRefusal::BufferSize {
                name: spec.name.to_string(),
                given,
                needed: spec.bytes,
            });
        }
        if !address.is_multiple_of(u64::from(spec.align.max(1))) {
            return Err(LaunchRefusal::BufferAlignment {
                name: spec.name.to_string(),
                address,
                align: spec.align,
            });
        }
    }
    Ok(())
}

/// The buffer an argument names, from its offset on.
fn argument_slice<'a>(
    index: usize,
    slot: usize,
    byte_offset: u64,
    specs: &[BufferSpec],
    buffers: &[DeviceSlice<'a>],
) -> Result<DeviceSlice<'a>, LaunchRefusal> {
    let (Some(spec), Some(buffer)) = (specs.get(slot), buffers.get(slot)) else {
        return Err(LaunchRefusal::Slot {
            index,
            slot,
            count: specs.len(),
        });
    };
    let start = usize::try_from(byte_offset).unwrap_or(usize::MAX);
    buffer
        .range(start..buffer.len())
        .map_err(|_| LaunchRefusal::BufferSize {
            name: spec.name.to_string(),
            given: buffer.len() as u64,
            needed: byte_offset,
        })
}

fn tensor_map_spec(recipe: &TensorMapRecipe) -> Result<TensorMapSpec, CudaError> {
    let element = match recipe.element {
        ScalarType::F16 => TensorMapElement::F16,
        ScalarType::BF16 => TensorMapElement::Bf16,
        ScalarType::F32 => TensorMapElement::F32,
        ScalarType::E4M3 => TensorMapElement::U8,
        other => {
            let element = format!("{other:?}");
            return Err(CudaError::TensorMap(Box::new(TensorMapRefusal::Element { element })));
        }
    };
    let swizzle = match recipe.swizzle {
        Swizzle::None => TensorMapSwizzle::None,
        Swizzle::B32 => TensorMapSwizzle::Bytes32,
        Swizzle::B64 => TensorMapSwizzle::Bytes64,
        Swizzle::B128 => TensorMapSwizzle::Bytes128,
    };
    Ok(TensorMapSpec {
        element,
        dims: recipe.dims.clone(),
        byte_strides: recipe.byte_strides.clone(),
        box_dims: recipe.box_dims.clone(),
        swizzle,
        l2: TensorMapL2::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::entries;

    fn specs() -> Vec<BufferSpec> {
        vec![
            BufferSpec {
                name: "q",
                bytes: 1024,
                written: false,
                align: 16,
            },
            BufferSpec {
                name: "out",
                bytes: 512,
                written: true,
                align: 16,
            },
        ]
    }

    #[test]
    fn buffers_must_be_there_long_enough_and_aligned() {
        let good = [DeviceSlice::pretend(0x1000, 1024), DeviceSlice::pretend(0x2000, 600)];
        assert_eq!(check_buffers(&specs(), &good), Ok(()));
        let more = [good[0], good[1], good[0]];
        assert_eq!(check_buffers(&specs(), &more), Ok(()));
        assert_eq!(
            check_buffers(&specs(), &good[..1]).unwrap_err().to_string(),
            "it needs 2 buffers (q, out); 1 given"
        );
        let short = [good[0], DeviceSlice::pretend(0x2000, 511)];
        assert_eq!(
            check_buffers(&specs(), &short).unwrap_err().to_string(),
            "buffer `out` has 511 B; the kernel touches 512 B; allocate at least that"
        );
        let crooked = [DeviceSlice::pretend(0x1008, 1024), good[1]];
        assert!(matches!(
            check_buffers(&specs(), &crooked),
            Err(LaunchRefusal::BufferAlignment { align: 16, .. })
        ));
    }

    #[test]
    fn arguments_must_name_buffers_that_exist() {
        let buffers = [DeviceSlice::pretend(0x1000, 1024), DeviceSlice::pretend(0x2000, 512)];
        let slice = argument_slice(0, 1, 32, &specs(), &buffers).unwrap();
        assert_eq!((slice.address(), slice.len()), (0x2020, 480));
        assert!(matches!(
            argument_slice(3, 2, 0, &specs(), &buffers),
            Err(LaunchRefusal::Slot {
                index: 3,
                slot: 2,
                count: 2
            })
        ));
        for offset in [513, u64::MAX] {
            assert!(matches!(
                argument_slice(0, 1, offset, &specs(), &buffers),
                Err(LaunchRefusal::BufferSize { .. })
            ));
        }
    }

    #[test]
    fn the_writers_ptx_is_read_as_it_is_written() {
        let kernel = Kernel::build("add_one", 128, |k| {
            let data = k.param_ptr_mut::<f32>("data");
            let len = k.param::<u32>("len");
            let i = k.block_idx(0) * 128 + k.thread_idx();
            k.if_(i.lt(len).divergent(), || {
                let at = data.offset(i);
                at.store(at.load() + 1.0);
            });
        })
        .unwrap();
        let entries = entries(&kernel.to_ptx());
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].name, kernel.name());
        assert_eq!(entries[0].parameter_bytes, Some(vec![8, 4]));
        assert_eq!(entries[0].max_threads, Some(128));
        let with_lines = crate::ptx::entries(&kernel.to_ptx_with_lines());
        assert_eq!(with_lines, entries);
    }

    #[test]
    fn debug_lines_leave_the_identity_alone() {
        let kernel = Kernel::build("touch", 32, |k| {
            let data = k.param_ptr_mut::<f32>("data");
            data.offset(k.thread_idx()).store(k.constant(1.0f32));
        })
        .unwrap();
        let identity = |ptx: &str| crate::identity::ModuleIdentity::new(ptx, "sm_90", "580", "");
        assert_ne!(kernel.to_ptx(), kernel.to_ptx_with_lines());
        assert_eq!(identity(&kernel.to_ptx()), identity(&kernel.to_ptx_with_lines()));
    }
}
