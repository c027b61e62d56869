//! A task that was checked, computed with the library's API: the only file that names its tensors.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use flashcore::cuda::{Context, DeviceBuffer, DeviceSlice, Stream};
use flashcore::plans::{PlanSummary, gathers_keys};
use flashcore::{
    Attention, Cuda, Device, DeviceSliceMut, Host, KernelId, Memory, Name, Problem, Task, TensorSpec, View, ViewMut,
};
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, UnitWeighter};
use rustc_hash::FxBuildHasher;

use crate::bind::Operands;
use crate::error::Error;
use crate::foreign::{BYTE, Foreign, Place};
use crate::libtorch::{Libtorch, Tensor};
use crate::schedule::Kept;
use crate::table::{DOUT, GRADIENTS, K, OUT, Q, TENSORS, V};
use crate::threads::on_threads;

/// How many are kept. Each holds recent plans; the compiled kernels are its context's, which all share.
const MOST_KNOWN: usize = 64;

/// A device, a kernel that was asked for, and how many multiprocessors are left to other work.
type Wanted = (Place, Option<String>, u32);
type Known = Cache<Wanted, Arc<Attention>, UnitWeighter, FxBuildHasher, KeepsPlain>;

/// Those that nothing special was asked of stay: most calls use them.
#[derive(Clone)]
struct KeepsPlain;

impl Lifecycle<Wanted, Arc<Attention>> for KeepsPlain {
    type RequestState = ();

    fn is_pinned(&self, (_, kernel, sm_margin): &Wanted, _: &Arc<Attention>) -> bool {
        kernel.is_none() && *sm_margin == 0
    }
}

/// The `Attention` of a device and a kernel that leaves multiprocessors to other work, made once and kept while it is
/// used.
pub(crate) fn attention_on(place: Place, kernel: Option<KernelId>, sm_margin: u32) -> Result<Arc<Attention>, Error> {
    static KNOWN: LazyLock<Known> =
        LazyLock::new(|| Cache::with(MOST_KNOWN, MOST_KNOWN as u64, UnitWeighter, FxBuildHasher, KeepsPlain));
    let of = (place, kernel.as_ref().map(KernelId::to_string), sm_margin);
    KNOWN.get_or_insert_with(&of, || {
        let device = match place {
            Place::Cuda(ordinal) => Device::cuda(ordinal)?,
            _ => Device::Cpu,
        };
        let options = flashcore::Options {
            kernel,
            sm_margin,
            ..Default::default()
        };
        Ok(Arc::new(Attention::with(device, options)?))
    })
}

/// PyTorch's current stream on the device of an `Attention`; `None` for the CPU.
pub(crate) fn current_stream(torch: &Libtorch, attention: &Attention) -> Result<Option<Stream>, Error> {
    let Device::Cuda(context) = attention.device() else {
        return Ok(None);
    };
    let handle = torch.current_stream(context.ordinal())?;
    // SAFETY: PyTorch's current stream lives as long as PyTorch.
    Ok(Some(unsafe { Stream::from_raw(&context, handle) }?))
}

/// A task with its tensors, which are in the order of `names`.
pub(crate) struct Work<'a, T> {
    pub(crate) task: &'a T,
    pub(crate) names: &'a [Name],
    pub(crate) tensors: &'a Operands,
    /// The schedule that was made for it.
    pub(crate) kept: Option<&'a Kept>,
}

/// What the addresses of a call's tensors are multiples of, in bytes, at most 16. Those to be allocated are aligned.
pub(crate) fn alignment(operands: &Operands) -> u32 {
    let tensors = [Q, K, V, OUT, DOUT].into_iter().chain(GRADIENTS..operands.len());
    1 << tensors.fold(16, |all, n| all | operands[n].address()).trailing_zeros()
}

impl<'a> Work<'a, Problem> {
    /// Attention or its gradients.
    pub(crate) fn of(task: &'a Problem, tensors: &'a Operands, kept: Option<&'a Kept>) -> Work<'a, Problem> {
        Work {
            task,
            names: &TENSORS,
            tensors,
            kept,
        }
    }
}

impl<T: Task + Sync> Work<'_, T> {
    /// Computes in PyTorch's current stream, or on as many threads as it has.
    pub(crate) fn run(self, torch: &Libtorch, attention: &Attention) -> Result<(), Error> {
        match current_stream(torch, attention)? {
            Some(stream) => self.run_in(&stream, torch, attention),
            None => on_threads(torch.num_threads(), || self.on_host(attention)),
        }
    }

    /// Enqueues in PyTorch's current stream.
    pub(crate) fn run_in(self, stream: &Stream, torch: &Libtorch, attention: &Attention) -> Result<(), Error> {
        let place = Place::Cuda(stream.context().ordinal());
        let mut made: Result<Option<Tensor<'_>>, Error> = Ok(None);
        let workspace = |bytes| match torch.allocate(Foreign::fresh_dense("workspace", BYTE, place, &[bytes])) {
            Ok((tensor, at)) => {
                made = Ok(Some(tensor));
                Some(at.address())
            }
            Err(why) => {
                made = Err(why);
                None
            }
        };
        let result = self.enqueue(attention, stream, workspace);
        made.map(drop)?; // the memory, which PyTorch frees in the order of the stream, or why there is none
        result
    }

    /// Enqueues in a stream. `allocate` gives memory for a workspace that is freed in the stream's order; without it
    /// the call fails, and says how much it needs.
    pub(crate) fn enqueue(
        self,
        attention: &Attention,
        stream: &Stream,
        allocate: impl FnOnce(usize) -> Option<u64>,
    ) -> Result<(), Error> {
        let Work { task, kept, .. } = self;
        let mut given = on_device(stream.context(), &task.tensors(), self.names, self.tensors)?;
        let mut schedule = kept.map(|kept| kept.schedule(attention, stream)).transpose()?;
        if let Some(schedule) = &mut schedule {
            given = given.schedule(schedule);
        }
        // SAFETY: as of `device_slice`, for the workspace, too, which nothing else has. Streams of libraries live as
        // long as they, and one that a caller names lives as long as the work (`stream=`). A schedule is one that was
        // made in this stream, or before the graph that the call is captured into, whose replays the caller orders
        // after it (docs/python.md).
        let done = unsafe { attention.run_foreign(stream, task, given, allocate) };
        match (kept, done) {
            (Some(kept), Err(flashcore::Error::Schedule { .. })) => Err(kept.of_another_plan()),
            (_, done) => Ok(done?),
        }
    }

    /// Computes on the host, where each tensor that is written is one slice.
    pub(crate) fn on_host(self, attention: &Attention) -> Result<(), Error> {
        let specs = self.task.tensors();
        let most = specs
            .iter()
            .filter(|spec| is_scale(spec))
            .map(|spec| spec.layout.num_elements());
        let ones = vec![1f32; most.max().unwrap_or(0)];
        let ones = |count| Ok(bytemuck::cast_slice(&ones[..count]));
        let given = named::<Host>(&specs, self.names, self.tensors, host_bytes, host_bytes_mut, ones)?;
        Ok(attention.run(self.task, given)?)
    }
}

/// The tensors of these specs in device memory, by their names.
pub(crate) fn on_device<'o>(
    context: &Context,
    specs: &[TensorSpec],
    names: &[Name],
    tensors: &Operands,
) -> Result<flashcore::Operands<'o, Cuda>, Error> {
    // SAFETY: the memory is on this device, and as large as the tensor's shape and strides say. Its library holds it
    // until the call returns, and frees it in the order of the stream where the work is, or the call waits for the
    // work.
    let slice = |tensor: &Foreign| unsafe { DeviceSlice::from_raw(context, tensor.address(), tensor.span_bytes()) };
    // SAFETY: Python orders the work of a tensor by streams (docs/python.md).
    let slice_mut = |tensor: &Foreign| unsafe { DeviceSliceMut::new(slice(tensor)) };
    named::<Cuda>(specs, names, tensors, slice, slice_mut, |count| ones(context, count))
}

fn is_scale(spec: &TensorSpec) -> bool {
    matches!(spec.name, Name::QScale | Name::KScale | Name::VScale)
}

/// The tensors of these specs by their names. Scales that are not given are ones.
fn named<'o, M: Memory>(
    specs: &[TensorSpec],
    names: &[Name],
    tensors: &Operands,
    read: impl Fn(&Foreign) -> M::Ref<'o>,
    write: impl Fn(&Foreign) -> M::Mut<'o>,
    ones: impl Fn(usize) -> Result<M::Ref<'o>, Error>,
) -> Result<flashcore::Operands<'o, M>, Error> {
    let mut given = flashcore::Operands::new();
    for spec in specs {
        let (name, element, layout) = (spec.name, spec.element, spec.layout);
        let n = names.iter().position(|known| *known == name);
        given = match n.and_then(|n| tensors[n].given()) {
            None if is_scale(spec) => given.with(name, View::new(element, layout, ones(layout.num_elements())?)),
            None => given, // which the library refuses where it must be there
            Some(tensor) if spec.is_written() => given.with_mut(name, ViewMut::new(element, layout, write(tensor))),
            Some(tensor) => given.with(name, View::new(element, layout, read(tensor))),
        };
    }
    Ok(given)
}

/// The bytes of a tensor in host memory.
pub(crate) fn host_bytes<'a>(tensor: &Foreign) -> &'a [u8] {
    match tensor.span_bytes() {
        0 => bytemuck::cast_slice::<u64, u8>(&[]), // perhaps at no address; aligned for all elements
        // SAFETY: strides, which are not negative, stay within the tensor's memory, which its library holds until the
        // call returns. That nothing writes to it meanwhile is the caller's part.
        bytes => unsafe { slice::from_raw_parts(tensor.first, bytes) },
    }
}

/// The same, to be written.
pub(crate) fn host_bytes_mut<'a>(tensor: &Foreign) -> &'a mut [u8] {
    match tensor.span_bytes() {
        0 => bytemuck::cast_slice_mut::<u64, u8>(&mut []),
        // SAFETY: as above. It was allocated for this call, or it was checked that no other tensor of the call is
        // there.
        bytes => unsafe { slice::from_raw_parts_mut(tensor.first, bytes) },
    }
}

/// As many ones on a device, kept for the life of the process: graphs may hold their address.
fn ones(context: &Context, count: usize) -> Result<DeviceSlice<'static>, Error> {
    static KEPT: Mutex<Vec<&'static DeviceBuffer>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let fits = |buffer: &&&DeviceBuffer| {
        buffer.context().ordinal() == context.ordinal() && buffer.len() >= count * size_of::<f32>()
    };
    let buffer = match kept.iter().find(fits) {
        Some(buffer) => *buffer,
        None => {
            let stream = Stream::new(context)?;
            let buffer = DeviceBuffer::from_host(&stream, &vec![1f32; count.next_power_of_two()])?;
            kept.push(Box::leak(Box::new(buffer)));
            kept[kept.len() - 1]
        }
    };
    // SAFETY: it lives for ever, and all only read it: by its address alone no stream waits for another's reads.
    Ok(unsafe { DeviceSlice::from_raw(context, buffer.as_slice().address(), buffer.len()) })
}

/// Warns the first time that a call gathers K.
pub(crate) fn tell_if_gathered(torch: &Libtorch, problem: &Problem) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // Whether it was told is the cheaper question.
    if !TOLD.load(Ordering::Relaxed) && gathers_keys(problem) && !TOLD.swap(true, Ordering::Relaxed) {
        torch.warn(
            "flashcore: calls with this cache of float8_e4m3fn copy the keys in use first. Without cache_leftpad, \
             pages of a multiple of 8 keys, a whole number of rows apart, are read in place; with cache_batch_idx a \
             page is a sequence of the cache",
        );
    }
}

/// Why a backward pass is slow: its kernel uses no tensor cores. `None` for others, and on the CPU.
pub(crate) fn slowness(plan: &PlanSummary) -> Option<String> {
    match plan {
        PlanSummary::Gpu(choice) if choice.plan.config.family() == "scalar" => Some(format!(
            "the backward pass runs on kernel {}, which uses no tensor cores ({})",
            choice.plan.config, choice.why
        )),
        _ => None,
    }
}

/// Warns if the kernel of a backward pass uses no tensor cores, once for each kernel.
pub(crate) fn tell_if_slow(
    torch: &Libtorch,
    attention: &Attention,
    problem: &Problem,
    alignment: u32,
) -> Result<(), Error> {
    static TOLD: Mutex<Vec<KernelId>> = Mutex::new(Vec::new());
    let Some(plan) = attention.prepare_aligned(problem, alignment)?.plan() else {
        return Ok(());
    };
    let Some(why) = slowness(&plan) else { return Ok(()) };
    {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        if told.contains(&plan.kernel()) {
            return Ok(());
        }
        told.push(plan.kernel());
    }
    torch.warn(&format!("flashcore: {why}"));
    Ok(())
}
