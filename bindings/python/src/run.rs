//! A call that was checked, computed with the library's API: the only file that names its tensors.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use flashcore::cuda::{Context, DeviceBuffer, DeviceSlice, Stream};
use flashcore::plans::{PlanSummary, gathers_keys};
use flashcore::{Attention, Cuda, Device, DeviceSliceMut, Host, KernelId, Memory, Problem, Task, View, ViewMut};

use crate::bind::{Checked, Operands};
use crate::error::Error;
use crate::foreign::{Foreign, Place};
use crate::libtorch::Libtorch;
use crate::schedule::Kept;
use crate::table::{DOUT, GRADIENTS, K, OUT, Q, SCALES, SINKS, TENSORS, V};

/// How many are kept of a device. Each holds recent plans; the compiled kernels are its context's, which all share.
const MOST_KNOWN: usize = 16;

/// The `Attention` of a device and a kernel that leaves multiprocessors to other work, made once and kept. Of many, the
/// oldest go that ask for a kernel or leave multiprocessors.
pub(crate) fn attention_on(place: Place, kernel: Option<KernelId>, sm_margin: u32) -> Result<Arc<Attention>, Error> {
    type Known = Vec<((Place, Option<KernelId>, u32), Arc<Attention>)>;
    static KNOWN: RwLock<Known> = RwLock::new(Vec::new());
    let wanted = (place, kernel, sm_margin);
    let find = |known: &Known| {
        let found = known.iter().find(|(of, _)| *of == wanted);
        found.map(|(_, attention)| attention.clone())
    };
    if let Some(attention) = find(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(attention);
    }
    let device = match place {
        Place::Cuda(ordinal) => Device::cuda(ordinal)?,
        _ => Device::Cpu,
    };
    let options = flashcore::Options {
        kernel,
        sm_margin,
        ..Default::default()
    };
    let attention = Attention::with(device, options)?;
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(attention) = find(&known) {
        return Ok(attention); // another thread was faster
    }
    let of_place = known.iter().filter(|((of, ..), _)| *of == place);
    if of_place.count() >= MOST_KNOWN {
        let is_special =
            |(of, kernel, sm_margin): &(Place, Option<_>, u32)| *of == place && (kernel.is_some() || *sm_margin > 0);
        if let Some(oldest) = known.iter().position(|(of, _)| is_special(of)) {
            known.remove(oldest); // calls that run hold it, too
        }
    }
    let attention = Arc::new(attention);
    known.push((wanted, attention.clone()));
    Ok(attention)
}

/// A tensor in device memory.
pub(crate) fn device_slice<'a>(context: &Context, tensor: &Foreign) -> DeviceSlice<'a> {
    // SAFETY: the memory is on this device, and as large as the tensor's shape and strides say. Its library holds it
    // until the call returns, and frees it in the order of the stream where the work is, or the call waits for the
    // work.
    unsafe { DeviceSlice::from_raw(context, tensor.address(), tensor.span_bytes()) }
}

/// The same, which a call writes.
pub(crate) fn device_slice_mut<'a>(context: &Context, tensor: &Foreign) -> DeviceSliceMut<'a> {
    // SAFETY: Python orders the work of a tensor by streams (docs/python.md).
    unsafe { DeviceSliceMut::new(device_slice(context, tensor)) }
}

/// What the addresses of a call's tensors are multiples of, in bytes, at most 16. Those to be allocated are aligned.
pub(crate) fn alignment(operands: &Operands) -> u32 {
    let tensors = [Q, K, V, OUT, DOUT].into_iter().chain(GRADIENTS..operands.len());
    1 << tensors.fold(16, |all, n| all | operands[n].address()).trailing_zeros()
}

/// Enqueues a call in a stream. `allocate` gives memory for a workspace that is freed in the stream's order; without it
/// the call fails, and says how much it needs.
pub(crate) fn enqueue(
    bound: &Checked,
    operands: &Operands,
    attention: &Attention,
    stream: &Stream,
    kept: Option<&Kept>,
    allocate: impl FnOnce(usize) -> Option<u64>,
) -> Result<(), Error> {
    let Some(problem) = &bound.problem else { return Ok(()) };
    let context = stream.context();
    let slice = |tensor: &Foreign| device_slice(context, tensor);
    let ones = || ones(context, problem.num_scales());
    let mut given = named::<Cuda>(problem, operands, slice, |tensor| device_slice_mut(context, tensor), ones)?;
    let mut schedule = kept.map(|kept| kept.schedule(attention, stream)).transpose()?;
    if let Some(schedule) = &mut schedule {
        given = given.schedule(schedule);
    }
    // SAFETY: as of `device_slice`, for the workspace, too, which nothing else has. Streams of libraries live as long
    // as they, and one that a caller names lives as long as the work (`stream=`). A schedule is one that was made in
    // this stream, or before the graph that the call is captured into, whose replays the caller orders after it
    // (docs/python.md).
    let done = unsafe { attention.run_foreign(stream, problem, given, allocate) };
    match (kept, done) {
        (Some(kept), Err(flashcore::Error::Schedule { .. })) => Err(kept.of_another_plan()),
        (_, done) => Ok(done?),
    }
}

/// Computes on the host.
pub(crate) fn on_host(bound: &Checked, operands: &Operands, attention: &Attention) -> Result<(), Error> {
    let Some(problem) = &bound.problem else { return Ok(()) };
    let ones = vec![1f32; problem.num_scales()];
    let ones = || Ok(bytemuck::cast_slice(&ones));
    let given = named::<Host>(problem, operands, host_bytes, host_bytes_mut, ones)?;
    Ok(attention.run(problem, given)?)
}

/// The tensors of a problem by their names. Scales that are not given are ones.
fn named<'o, M: Memory>(
    problem: &Problem,
    operands: &Operands,
    read: impl Fn(&Foreign) -> M::Ref<'o>,
    write: impl Fn(&Foreign) -> M::Mut<'o>,
    ones: impl Fn() -> Result<M::Ref<'o>, Error>,
) -> Result<flashcore::Operands<'o, M>, Error> {
    let mut given = flashcore::Operands::new();
    for spec in problem.tensors() {
        let (name, element, layout) = (spec.name, spec.element, spec.layout);
        let Some(n) = TENSORS.iter().position(|word| *word == name.as_str()) else {
            continue;
        };
        let tensor = &operands[n];
        given = match tensor.given() {
            None if (SCALES..SINKS).contains(&n) => given.with(name, View::new(element, layout, ones()?)),
            None if name.is_values() => given, // which the library refuses
            _ if spec.is_written() => given.with_mut(name, ViewMut::new(element, layout, write(tensor))),
            _ => given.with(name, View::new(element, layout, read(tensor))),
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
