//! Kernels of the kernel language on the driver. The simulator takes the same `Kernel` and `Launch`.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use flashcore_ir::proof::{KernelFacts, LaunchShape, prove_argument, prove_buffers};
use flashcore_ir::{Arg, Kernel, Launch};

use crate::allocation::Allocation;
use crate::context::Context;
use crate::error::CudaError;
use crate::function::Function;
use crate::memory::{DeviceSlice, check_stream};
use crate::module::{Module, ModuleOptions};
use crate::stream::Stream;
use crate::table::DeviceTable;
use crate::tensor_map::TensorMap;

/// Whether a driver of this CUDA version has programmatic launches in graphs too: before 12.3, a stream that is
/// captured refuses them (CUDA 12.3 release notes).
fn has_programmatic_launches(cuda_version: u32) -> bool {
    cuda_version >= 12_030
}

impl Function {
    /// Compiles and loads a kernel of the kernel language, or finds it already loaded. With
    /// [`ModuleOptions::line_info`] it carries the Rust lines for profilers.
    #[allow(unsafe_code)]
    pub fn load(context: &Context, kernel: &Kernel, options: &ModuleOptions) -> Result<Self, CudaError> {
        let ptx = if options.line_info {
            kernel.to_ptx_with_lines()
        } else {
            kernel.to_ptx()
        };
        let declared = KernelFacts::declared(kernel);
        // SAFETY: the text and the facts are of one kernel.
        unsafe { Module::load(context, &ptx, &[(kernel.name(), declared)], options)? }.function(kernel.name())
    }

    /// Checks a launch against this kernel and these buffers, and turns its recipes into arguments.
    /// `buffers[slot]` is what the launch calls slot `slot`; more may be given than it needs.
    ///
    /// # Errors
    /// [`CudaError::Launch`] for a buffer that is missing, too small or not aligned, arguments that
    /// do not match the kernel, or a shape that the device cannot launch; [`CudaError::TensorMap`].
    ///
    /// # Safety
    /// The kernel, run with these arguments, touches only what the launch declares: of each buffer no more than the
    /// declared bytes, written only where the launch says so, and its tables. Numbers may decide where it goes, and
    /// [`Arg::U64`] may be an address, so this is a promise about the pair of kernel and launch. It holds for the plans
    /// of `flashcore-kernels` on operands of any values; what they trust besides, [`PreparedLaunch::enqueue`] says.
    #[allow(unsafe_code)]
    pub unsafe fn prepare<'a>(
        &self,
        launch: &Launch,
        buffers: &[DeviceSlice<'a>],
    ) -> Result<PreparedLaunch<'a>, CudaError> {
        let refuse = |refusal| self.refuse(refusal);
        let context = self.module().context();
        let given: Vec<(u64, u64)> = buffers.iter().map(|b| (b.address(), b.len() as u64)).collect();
        if let Some(refusal) = prove_buffers(&launch.buffers, &given) {
            return Err(refuse(refusal));
        }
        for buffer in buffers {
            buffer.check_device(context.ordinal(), "an argument")?;
        }
        let (mut arguments, mut tables) = (Vec::with_capacity(launch.args.len()), Vec::new());
        for (index, arg) in launch.args.iter().enumerate() {
            let proved =
                |slot: usize, byte_offset: u64| match prove_argument(index, slot, byte_offset, &launch.buffers, &given)
                {
                    Some(refusal) => Err(refuse(refusal)),
                    None => Ok(()),
                };
            let argument = match *arg {
                Arg::Buffer { slot, byte_offset } => {
                    proved(slot, byte_offset)?;
                    Argument::U64(given[slot].0 + byte_offset)
                }
                Arg::U32(value) => Argument::U32(value),
                Arg::I32(value) => Argument::U32(value.cast_unsigned()),
                Arg::U64(value) => Argument::U64(value),
                Arg::F32(value) => Argument::U32(value.to_bits()),
                Arg::Table(ref table) => {
                    let table = context.tables().get(context, table)?;
                    let address = table.address;
                    tables.push(table);
                    Argument::U64(address)
                }
                Arg::TensorMap(ref recipe) => {
                    proved(recipe.slot, 0)?;
                    Argument::Map(Box::new(TensorMap::encode(context, recipe, buffers[recipe.slot])?))
                }
            };
            arguments.push(argument);
        }
        let shape = LaunchShape::of(launch);
        self.prove(&shape)?;
        self.prove_arguments(arguments.iter().map(Argument::bytes))?;
        Ok(PreparedLaunch {
            tables,
            function: self.clone(),
            shape,
            arguments,
            memory: buffers.iter().filter_map(|buffer| buffer.owner).collect(),
            only_in: buffers.iter().filter_map(|buffer| buffer.only_in).collect(),
        })
    }

    /// Checks and enqueues a launch: [`Function::prepare`] and [`PreparedLaunch::enqueue`] in one. Safe code cannot: a
    /// kernel and its numbers decide what memory is touched.
    ///
    /// ```compile_fail,E0133
    /// use flashcore_cuda::{CudaError, DeviceBuffer, Function, Stream};
    /// use flashcore_ir::Launch;
    /// fn wild(function: &Function, stream: &Stream, launch: &Launch, buffer: &DeviceBuffer) -> Result<(), CudaError> {
    ///     function.run(stream, launch, &[buffer.as_slice()])
    /// }
    /// ```
    ///
    /// A prepared launch does not outlive its buffers:
    ///
    /// ```compile_fail,E0505
    /// use flashcore_cuda::{CudaError, DeviceBuffer, Function, PreparedLaunch, Stream};
    /// use flashcore_ir::Launch;
    /// fn late(function: &Function, stream: &Stream, launch: &Launch, buffer: DeviceBuffer) -> Result<(), CudaError> {
    ///     let prepared = unsafe { function.prepare(launch, &[buffer.as_slice()])? };
    ///     drop(buffer);
    ///     unsafe { prepared.enqueue(stream) }
    /// }
    /// ```
    ///
    /// # Errors
    /// As those.
    ///
    /// # Safety
    /// As both of them.
    #[allow(unsafe_code)]
    pub unsafe fn run(&self, stream: &Stream, launch: &Launch, buffers: &[DeviceSlice<'_>]) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.prepare(launch, buffers)?.enqueue(stream) }
    }
}

/// A launch whose buffers and arguments are settled: enqueueing it again costs the driver call
/// alone.
#[derive(Debug, Clone)]
pub struct PreparedLaunch<'a> {
    // Before the function, which keeps the context that freeing them needs.
    tables: Vec<Arc<DeviceTable>>,
    function: Function,
    shape: LaunchShape,
    arguments: Vec<Argument>,
    /// That of its buffers which is ours.
    memory: Vec<&'a Arc<Allocation>>,
    /// The streams that alone may use some of its buffers.
    only_in: Vec<usize>,
}

/// The value of an argument.
#[derive(Debug, Clone)]
enum Argument {
    /// A number or a float, by its bits.
    U32(u32),
    /// A number or an address.
    U64(u64),
    /// It takes 128 bytes, and few launches have one.
    Map(Box<TensorMap>),
}

impl Argument {
    fn bytes(&self) -> u64 {
        match self {
            Argument::U32(_) => size_of::<u32>() as u64,
            Argument::U64(_) => size_of::<u64>() as u64,
            Argument::Map(_) => size_of::<TensorMap>() as u64,
        }
    }

    /// Where the driver reads it, while this is borrowed. It only reads; its signature is older than const.
    fn value(&self) -> *mut c_void {
        let value: *const c_void = match self {
            Argument::U32(value) => ptr::from_ref(value).cast(),
            Argument::U64(value) => ptr::from_ref(value).cast(),
            Argument::Map(map) => ptr::from_ref(&**map).cast(),
        };
        value.cast_mut()
    }
}

impl PreparedLaunch<'_> {
    /// Enqueues the kernel, never as a graph. Returns at once; a fault shows at a later synchronisation.
    ///
    /// # Errors
    /// [`CudaError::LaunchFailed`] with an explanation if the driver refuses it;
    /// [`CudaError::OtherDevice`] for a stream of another device.
    ///
    /// # Safety
    /// - Buffers that are not of [`DeviceBuffer`](crate::DeviceBuffer)s stay allocated until this launch has ended, and
    ///   where the stream is captured until the last launch of the graph has: the borrow in this value ends before
    ///   either. The same holds for all buffers where another library captures the stream.
    /// - What the kernel trusts, such as a workspace, counters and schedules, holds when it runs what earlier work in
    ///   the stream left there: no other stream, thread or graph uses it meanwhile.
    /// - Nothing else writes buffers that are not of `DeviceBuffer`s, or reads what it writes there, without waiting
    ///   for it. For those of `DeviceBuffer`s streams wait for each other, unless another library captures one.
    ///
    /// On a GPU that reaches the host's pages (HMM, Grace), a kernel that breaks this can write memory of Rust.
    #[allow(unsafe_code)]
    pub unsafe fn enqueue(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { PreparedLaunch::enqueue_all(std::slice::from_ref(self), stream) }
    }

    /// Enqueues launches in order. One that is [programmatic](Launch::programmatic) may begin while the one before it
    /// runs, if the driver is of CUDA 12.3 or newer. The first waits for all earlier work in the stream, since a
    /// foreign kernel before it may not have waited for its own predecessor.
    ///
    /// # Errors
    /// As [`PreparedLaunch::enqueue`].
    ///
    /// # Safety
    /// As [`PreparedLaunch::enqueue`], of each.
    #[allow(unsafe_code)]
    pub unsafe fn enqueue_all(launches: &[PreparedLaunch<'_>], stream: &Stream) -> Result<(), CudaError> {
        let Some((first, others)) = launches.split_first() else {
            return Ok(());
        };
        let mut only_in = launches.iter().flat_map(|launch| &launch.only_in);
        only_in.try_for_each(|only| check_stream(Some(*only), stream))?;
        let context = first.function.module().context();
        let overlap = has_programmatic_launches(context.info().cuda_version);
        let memory = launches.iter().flat_map(|launch| launch.memory.iter().copied());
        let tables: Vec<_> = launches
            .iter()
            .flat_map(|launch| launch.tables.iter().cloned())
            .collect();
        stream.put(memory, &tables, || {
            // SAFETY: the caller's promise; who runs one after another needs no more than who lets them overlap.
            unsafe {
                first.launch_as(stream, &first.alone())?;
                others.iter().try_for_each(|launch| {
                    let shape = if overlap { launch.shape } else { launch.alone() };
                    launch.launch_as(stream, &shape)
                })
            }
        })
    }

    /// The shape with which it waits for all earlier work in the stream.
    fn alone(&self) -> LaunchShape {
        LaunchShape {
            programmatic_dependent: false,
            ..self.shape
        }
    }

    /// # Safety
    /// As [`PreparedLaunch::enqueue`]; the memory is [put in use](Stream::put).
    #[allow(unsafe_code)]
    unsafe fn launch_as(&self, stream: &Stream, shape: &LaunchShape) -> Result<(), CudaError> {
        let mut values: Vec<_> = self.arguments.iter().map(Argument::value).collect();
        // SAFETY: every buffer is at least as long as the launch says the kernel touches; `Function::prepare` has
        // proved the arguments, and its caller promised what the kernel does; the rest is this caller's promise.
        unsafe { self.function.launch_proved(stream, shape, &mut values) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_overlap_where_graphs_can_have_them() {
        assert_eq!(
            [12_020, 12_030, 13_000].map(has_programmatic_launches),
            [false, true, true]
        );
    }

    #[test]
    fn debug_lines_leave_the_identity_alone() {
        let kernel = Kernel::build("touch", 32, |k| {
            let data = k.param_ptr_mut::<f32>("data");
            data.offset(k.thread_idx()).store(k.constant(1.0f32));
        })
        .unwrap();
        let identity = |ptx: &str| crate::identity::ModuleIdentity::new(ptx, "sm_90", "580");
        assert_ne!(kernel.to_ptx(), kernel.to_ptx_with_lines());
        assert_eq!(identity(&kernel.to_ptx()), identity(&kernel.to_ptx_with_lines()));
    }
}
