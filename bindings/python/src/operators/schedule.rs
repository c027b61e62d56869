//! `flashcore::make_schedule` and what `::fwd_kvcache.scheduled` is given: the schedule of a step, made once and used
//! by all layers.
//!
//! A kernel trusts the schedule that it reads. So its memory, of PyTorch's allocator, is kept here, and no tensor with
//! it is handed out: what Python has is a number, which an object ends. Only the kernels of calls that are given the
//! number, and have been checked, write there. The tensor that `make_schedule` returns is a token: Python keeps the
//! number's object on it, and nothing reads its element.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use flashcore::cuda::{DeviceSlice, Stream};
use flashcore::{
    Attention, DType, Device, DeviceTensors, KvLengths, Layout, Lengths, Mask, Problem, QLengths, Schedule,
};
use pyo3::prelude::*;

use super::lengths::{Kinds, array};
use super::{Results, TORCH, forward_options, serve};
use crate::call::attention_on;
use crate::input::Input;
use crate::libtorch::{Error, Libtorch, Tensor};
use crate::tensor::Place;

/// `number`: of the schedule that is made again; 0 for a new one. `page_size` 0: no pages; `total_q` -1: as many rows
/// of each sequence. `dtype`: 0 float16, 1 bfloat16, 2 float32. The result, a token, has one element; none if there was
/// a number, and where no schedule is made: if the plan has none, and while a graph is captured.
pub(super) const MAKE: &str = "make_schedule(Tensor seqused_k, Tensor cu_seqlens_q, int number, int dtype, \
     int heads, int kv_heads, int head_dim, int head_dim_v, int page_size, int total_q, float softmax_scale, bool causal, \
     int window_left, int window_right, float softcap, int max_seqlen_q, int max_seqlen_k, int sm_margin, \
     int split_keys) -> Tensor";

const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// A schedule that was made, and what for.
struct Made {
    place: Place,
    sm_margin: u32,
    problem: Problem,
    /// The CPU makes none.
    on_gpu: Option<OnGpu>,
}

struct OnGpu {
    schedule: Schedule,
    stream: usize,
    workspace: Workspace,
}

/// Where a schedule is. PyTorch frees it in the order of the stream that it was made in.
struct Workspace(Tensor<'static>);

// SAFETY: PyTorch counts a tensor's references with atomics, and any thread may read where it is and free it.
unsafe impl Send for Workspace {}
// SAFETY: as above.
unsafe impl Sync for Workspace {}

/// Those whose objects live, and the number of the last one.
#[derive(Default)]
struct All {
    made: HashMap<i64, Arc<Made>>,
    last: i64,
    /// What graphs use, which may be replayed at any time: kept for the life of the process.
    captured: BTreeMap<i64, Arc<Made>>,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The number of the schedule that this thread made last.
    static LAST: Cell<i64> = const { Cell::new(0) };
}

/// What the object of a schedule keeps: its number, until it ends.
#[pyclass(frozen)]
pub(crate) struct KeptSchedule {
    #[pyo3(get)]
    number: i64,
}

impl Drop for KeptSchedule {
    fn drop(&mut self) {
        let made = all().made.remove(&self.number);
        drop(made); // its plan, without the lock
    }
}

/// The schedule that this thread made just now.
#[pyfunction]
pub(crate) fn last_schedule() -> KeptSchedule {
    KeptSchedule { number: LAST.take() }
}

pub(super) unsafe extern "C-unwind" fn make_schedule(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with 17 numbers, and has one result.
    unsafe { serve(stack, inputs, 17, make) }
}

fn make<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 1> {
    let (place, given) = inputs[0].place_and_count("cache_seqlens")?;
    let seqused_k = inputs[0].describe_i32::<1>("cache_seqlens", place)?;
    let starts = inputs[1].describe_i32::<1>("cu_seqlens_q", place)?;
    let Some(seqused_k) = seqused_k else {
        return Err(format!("cache_seqlens has {given} entries; it has one for each sequence").into());
    };
    let batch = seqused_k.shape[0];
    if starts.is_some_and(|starts| starts.shape[0] != batch + 1) {
        return Err(format!(
            "cu_seqlens_q must have {} entries, one more than cache_seqlens",
            batch + 1
        )
        .into());
    }
    // The rest is as operators of attention have it.
    let ([number, sizes @ ..], numbers) = numbers.split_at(8) else {
        return Err("make_schedule has another schema".into()); // it has not
    };
    let number = *number as i64;
    let find = || all().made.get(&number).cloned().ok_or(FOREIGN);
    let before = (number != 0).then(find).transpose()?;
    let size = |n: usize| usize::try_from(sizes[n] as i64).map_err(|_| format!("{} is negative", NAMES[n]));
    let dtype = DTYPES
        .get(sizes[0] as usize)
        .copied()
        .ok_or("qkv_dtype is not served")?;
    let [heads, kv_heads, head_dim, head_dim_v, page_size] = [size(1)?, size(2)?, size(3)?, size(4)?, size(5)?];
    let (options, sm_margin) = (forward_options(numbers)?, numbers[7] as u32);
    let [max_q, max_kv] = [numbers[5], numbers[6]].map(|bits| usize::try_from(bits as i64).unwrap_or(0).max(1));
    let (q_rows, q) = match starts {
        None => ([batch, max_q], QLengths::Equal),
        Some(_) => {
            let total = size(6)?;
            ([1, total], QLengths::Packed { total, used: false })
        }
    };
    let (kv_rows, kv, max_pages) = match page_size {
        0 => ([batch, max_kv], KvLengths::Cache, 0),
        _ => {
            let max_pages = max_kv.div_ceil(page_size);
            let pages = batch * max_pages;
            let kv = KvLengths::Paged {
                page_size,
                pages,
                max_pages,
            };
            ([pages, page_size], kv, max_pages)
        }
    };
    let dense = |[a, b]: [usize; 2], heads, dim| Layout::bshd([a, b, heads, dim]);
    let (q_layout, o_layout) = (dense(q_rows, heads, head_dim), dense(q_rows, heads, head_dim_v));
    let (k_layout, v_layout) = (dense(kv_rows, kv_heads, head_dim), dense(kv_rows, kv_heads, head_dim_v));
    let kinds = Kinds {
        batch,
        q,
        max_q,
        kv,
        max_kv,
    };
    let layouts = [&q_layout, &k_layout, &v_layout, &o_layout];
    let problem = kinds.builder(dtype, layouts, &options).build()?;
    let attention = attention_on(place, None, sm_margin)?;
    let for_another = "out was made for another problem than it is to be made for: leave it out";
    let is_as = |before: &Made| (before.place, before.sm_margin, &before.problem) == (place, sm_margin, &problem);
    if before.as_ref().is_some_and(|before| !is_as(before)) {
        return Err(for_another.into());
    }
    let (Device::Cuda(context), Place::Cuda(ordinal)) = (attention.device(), place) else {
        let made = || keep(place, sm_margin, problem, None);
        return Ok([torch.empty_i32(usize::from(before.is_none().then(made).is_some()), place)?]);
    };
    // SAFETY: PyTorch's current stream lives as long as PyTorch.
    let stream = unsafe { Stream::from_raw(&context, torch.current_stream(ordinal)?) }?;
    let is_captured = stream.is_captured()?;
    let schedule = attention.schedule(&problem, 16)?;
    let (schedule, new) = match (&before, schedule) {
        (None, None) => return Ok([torch.empty_i32(0, place)?]),
        (None, Some(_)) if is_captured => return Ok([torch.empty_i32(0, place)?]), // one only once the graph has run
        (None, Some(schedule)) => {
            let torch = TORCH.get().ok_or("PyTorch was not found")?; // it was
            let elements = usize::try_from(schedule.workspace_bytes().div_ceil(4))?;
            (schedule, Some(Workspace(torch.empty_i32(elements, place)?)))
        }
        (Some(before), schedule) => match (&before.on_gpu, schedule) {
            (Some(of), Some(schedule)) if of.schedule == schedule => {
                if of.stream != stream.as_raw() && !is_captured {
                    return Err("out was made in another stream than this one: make it in that one".into());
                }
                (schedule, None)
            }
            _ => return Err(for_another.into()),
        },
    };
    let workspace = new.as_ref().or(before
        .as_ref()
        .and_then(|before| Some(&before.on_gpu.as_ref()?.workspace)));
    let Workspace(workspace) = workspace.ok_or(FOREIGN)?; // one of them is there
    let slice = |first: *mut u8, bytes: usize| {
        // SAFETY: all memory is on this device, as large as said, and freed in the order of this stream, or kept for
        // the graph. Nothing is read or written of `nothing` and `unread`.
        unsafe { DeviceSlice::from_raw(&context, first.addr() as u64, bytes) }
    };
    let nothing = slice(null_mut(), 0);
    // A launch has an argument for the table, which no schedule reads (`NOT_READ` of the library's `schedule.rs`).
    let unread = slice(without_provenance_mut(16), batch * max_pages * size_of::<i32>());
    let mut tensors = DeviceTensors::new(nothing, nothing, nothing, nothing);
    let of = |numbers: Option<_>| {
        numbers
            .map(array)
            .map(|array| slice(array.first.cast(), array.len * size_of::<i32>()))
    };
    tensors.lengths = Lengths {
        cu_seqlens_q: of(starts),
        seqused_k: of(Some(seqused_k)),
        block_table: (max_pages > 0).then_some(unread),
        ..Lengths::default()
    };
    tensors.workspace = Some(slice(workspace.first()?, usize::try_from(schedule.workspace_bytes())?));
    if let (Some(before), true) = (&before, is_captured) {
        hold(number, before);
    }
    // SAFETY: PyTorch frees memory in the order of its current stream, where the work is; who uses the schedule holds
    // its workspace.
    unsafe { attention.run_foreign(&stream, &problem, &tensors.make_schedule(), |_| None)? };
    let token = torch.empty_i32(usize::from(new.is_some()), place)?;
    if let Some(workspace) = new {
        let stream = stream.as_raw();
        keep(
            place,
            sm_margin,
            problem,
            Some(OnGpu {
                schedule,
                stream,
                workspace,
            }),
        );
    }
    Ok([token])
}

/// Gives a schedule its number, for [`last_schedule`].
fn keep(place: Place, sm_margin: u32, problem: Problem, on_gpu: Option<OnGpu>) {
    let made = Made {
        place,
        sm_margin,
        problem,
        on_gpu,
    };
    let mut all = all();
    all.last += 1;
    let number = all.last;
    // Nothing of Python asked for the one before: a trace or a transform called the operator.
    let unclaimed = all.made.remove(&LAST.replace(number));
    all.made.insert(number, Arc::new(made));
    drop(all);
    drop(unclaimed); // its memory, without the lock
}

/// Keeps what a graph is about to use.
fn hold(number: i64, made: &Arc<Made>) {
    all().captured.entry(number).or_insert_with(|| made.clone());
}

const NAMES: [&str; 7] = [
    "qkv_dtype",
    "num_heads_q",
    "num_heads_kv",
    "headdim",
    "headdim_v",
    "page_size",
    "total_q",
];

const FOREIGN: &str = "scheduler_metadata is given; only that of flashcore's get_scheduler_metadata is served";

/// What a caller of `get_scheduler_metadata` says, in the order of [`facts_of`].
const FACTS: [&str; 14] = [
    "device",
    "qkv_dtype",
    "causal and window_size",
    "batch_size",
    "max_seqlen_q",
    "max_seqlen_k",
    "num_heads_q",
    "num_heads_kv",
    "headdim",
    "headdim_v",
    "page_size",
    "sm_margin",
    "cu_seqlens_q",
    "batch_invariant",
];

type Facts = ([usize; 8], (DType, Mask, bool, Option<usize>));

fn facts_of(problem: &Problem) -> Facts {
    let page_size = match problem.kv_lengths() {
        KvLengths::Paged { page_size, .. } => page_size,
        _ => 0,
    };
    let sizes = [
        problem.batch(),
        problem.seq_len_q(),
        problem.seq_len_kv(),
        problem.num_heads(),
        problem.num_kv_heads(),
        problem.head_dim(),
        problem.head_dim_v(),
        page_size,
    ];
    let is_packed = problem.q_lengths() != QLengths::Equal;
    (
        sizes,
        (problem.dtype(), problem.mask(), is_packed, problem.batch_invariant()),
    )
}

/// A schedule that a call was given, and its number.
pub(super) struct Kept(i64, Arc<Made>);

impl Kept {
    pub(super) fn find(number: i64) -> Result<Kept, Error> {
        let made = all().made.get(&number).cloned().ok_or(FOREIGN)?;
        Ok(Kept(number, made))
    }

    /// Refuses the schedule of another problem than the call's.
    pub(super) fn check(&self, place: Place, problem: &Problem, sm_margin: u32) -> Result<(), Error> {
        let made = &*self.1;
        let same = made.place == place && made.sm_margin == sm_margin && facts_of(&made.problem) == facts_of(problem);
        if same {
            return Ok(());
        }
        let words = |place: Place, problem, sm_margin: u32| {
            let (sizes, (dtype, mask, is_packed, batch_invariant)) = facts_of(problem);
            let side = |side: Option<u32>| side.map_or(-1, i64::from);
            let mask = format!("({}, {})", side(mask.window_left), side(mask.window_right));
            let [device, dtype] = [place.to_string(), dtype.to_string()];
            let sizes = sizes.map(|size| size.to_string());
            let others = [
                sm_margin.to_string(),
                is_packed.to_string(),
                format!("{batch_invariant:?}"),
            ];
            [device, dtype, mask].into_iter().chain(sizes).chain(others)
        };
        let (ours, theirs) = (
            words(made.place, &made.problem, made.sm_margin),
            words(place, problem, sm_margin),
        );
        let mut facts = FACTS.into_iter().zip(ours.zip(theirs));
        match facts.find(|(_, (made, other))| made != other) {
            None => Ok(()),
            Some((name, (made, other))) => Err(format!(
                "scheduler_metadata was made with {name} {made}, and this call has {other}: give get_scheduler_metadata \
                 what the call has (max_seqlen_k is the capacity of the cache)"
            )
            .into()),
        }
    }

    /// Where the workspace is that holds it, and its bytes, if the call's plan would make the same. A graph that the
    /// call is captured into may use it from then on.
    pub(super) fn workspace(
        &self,
        attention: &Attention,
        stream: &Stream,
        problem: &Problem,
        alignment: u32,
    ) -> Result<(*mut u8, usize), Error> {
        let Some(own) = attention.schedule(problem, alignment)? else {
            return Err("scheduler_metadata is given, but the plan of this call has no schedule: leave it out".into());
        };
        let Some(OnGpu {
            schedule,
            stream: of,
            workspace: Workspace(workspace),
        }) = &self.1.on_gpu
        else {
            return Err(FOREIGN.into());
        };
        if *schedule != own {
            return Err(format!(
                "scheduler_metadata was made for kernel {}, and the plan of this call, kernel {}, has another schedule, by \
                 total_q, strides or the alignment of its tensors: leave it out",
                schedule.kernel(),
                own.kernel()
            )
            .into());
        }
        let first = workspace.first()?;
        if stream.is_captured()? {
            hold(self.0, &self.1);
        } else if *of != stream.as_raw() {
            return Err("scheduler_metadata was made in another stream than the call's: make it in this one".into());
        }
        Ok((first, usize::try_from(schedule.workspace_bytes())?))
    }
}
