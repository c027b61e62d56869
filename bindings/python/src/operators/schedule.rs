//! `flashcore::make_schedule` and what `::fwd_kvcache.scheduled` is given: the schedule of a step, made once and used
//! by all layers.
//!
//! A kernel trusts the schedule that it reads. So a tensor counts as one only if its memory is where `make_schedule`
//! made one, which a number says that belongs to the tensor's object: Python keeps it there, and it ends with the
//! object. That nothing else has written to the memory is seen from PyTorch's count of versions, in Python.

use std::cell::Cell;
use std::collections::HashMap;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use flashcore::cuda::{DeviceSlice, Stream};
use flashcore::{
    Attention, DType, Device, DeviceTensors, KvLengths, Layout, Lengths, Mask, Problem, QLengths, Schedule,
};
use pyo3::prelude::*;

use super::lengths::{Kinds, array};
use super::{Results, forward_options, serve};
use crate::call::attention_on;
use crate::libtorch::{Error, Libtorch, Tensor};
use crate::tensor::Place;

/// `into`: a schedule that is made again, whose number is `number`. `page_size` 0: no pages; `total_q` -1: as many rows
/// of each sequence. `dtype`: 0 float16, 1 bfloat16, 2 float32. The result has no elements if the plan has no schedule,
/// while a graph is captured, or if there is `into`.
pub(super) const MAKE: &str = "make_schedule(Tensor seqused_k, Tensor cu_seqlens_q, Tensor into, int number, int dtype, \
     int heads, int kv_heads, int head_dim, int head_dim_v, int page_size, int total_q, float softmax_scale, bool causal, \
     int window_left, int window_right, float softcap, int max_seqlen_q, int max_seqlen_k, int sm_margin, \
     int split_keys) -> Tensor";

const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// A schedule that was made, and what for.
struct Made {
    place: Place,
    address: usize,
    elements: usize,
    sm_margin: u32,
    problem: Problem,
    /// On a GPU, and the stream.
    schedule: Option<(Schedule, usize)>,
}

/// Those whose objects live, and the number of the last one.
#[derive(Default)]
struct All {
    made: HashMap<i64, Arc<Made>>,
    last: i64,
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

fn make<'a>(torch: &'a Libtorch, inputs: &[Tensor], numbers: &[u64]) -> Results<'a, 1> {
    let (place, given) = inputs[0].place_and_count("cache_seqlens")?;
    let seqused_k = inputs[0].describe_i32::<1>("cache_seqlens", place)?;
    let starts = inputs[1].describe_i32::<1>("cu_seqlens_q", place)?;
    let into = inputs[2].describe_i32::<1>("out", place)?;
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
    let mut made = Made {
        place,
        address: 0,
        elements: 1, // that of the CPU, which makes none, to be told from none
        sm_margin,
        problem,
        schedule: None,
    };
    let (mut stream, mut is_captured) = (None, false);
    if let (Device::Cuda(context), Place::Cuda(ordinal)) = (attention.device(), place) {
        // SAFETY: PyTorch's current stream lives as long as PyTorch.
        let current = unsafe { Stream::from_raw(&context, torch.current_stream(ordinal)?) }?;
        let Some(schedule) = attention.schedule(&made.problem, 16)? else {
            return Ok([torch.empty_i32(0, place)?]); // the plan has none
        };
        is_captured = current.is_captured()?;
        if into.is_none() && is_captured {
            return Ok([torch.empty_i32(0, place)?]); // it would hold one only once the graph has run
        }
        made.elements = usize::try_from(schedule.workspace_bytes().div_ceil(4))?;
        made.schedule = Some((schedule, current.as_raw()));
        stream = Some((context, current));
    }
    let new = match into {
        None => torch.empty_i32(made.elements, place)?,
        Some(_) => torch.empty_i32(0, place)?,
    };
    made.address = into.map_or(new.first()?.addr(), |into| into.first.addr());
    if into.is_some() {
        let before = all().made.get(&(*number as i64)).cloned().ok_or(FOREIGN)?;
        let elements = into.map_or(0, |into| into.shape[0]);
        if !before.is_as(&made) || elements != made.elements {
            return Err("out was made for another problem than it is to be made for: leave it out".into());
        }
        let stream_of = |made: &Made| made.schedule.as_ref().map(|(_, stream)| *stream);
        if stream_of(&before) != stream_of(&made) && !is_captured {
            return Err("out was made in another stream than this one: make it in that one".into());
        }
    }
    match stream {
        Some((context, stream)) => {
            let table = torch.empty_i32(batch * max_pages, place)?; // which is not read
            let slice = |first: *mut i32, entries: usize| {
                // SAFETY: all memory is on this device, as large as said, and freed in the order of this stream.
                unsafe { DeviceSlice::from_raw(&context, first.addr() as u64, entries * size_of::<i32>()) }
            };
            let nothing = slice(null_mut(), 0);
            let mut tensors = DeviceTensors::new(nothing, nothing, nothing, nothing);
            let of = |numbers: Option<_>| numbers.map(array).map(|array| slice(array.first, array.len));
            tensors.lengths = Lengths {
                cu_seqlens_q: of(starts),
                seqused_k: of(Some(seqused_k)),
                block_table: (max_pages > 0).then_some(slice(table.first()?.cast(), batch * max_pages)),
                ..Lengths::default()
            };
            tensors.workspace = Some(slice(with_exposed_provenance_mut(made.address), made.elements));
            attention.forward_on(&stream, &made.problem, &tensors.make_schedule())?;
        }
        None => new.zero()?,
    }
    if into.is_none() {
        let mut all = all();
        all.last += 1;
        let number = all.last;
        LAST.set(number);
        all.made.insert(number, Arc::new(made));
    }
    Ok([new])
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

impl Made {
    /// Whether the other one may take its place, in another stream too.
    fn is_as(&self, other: &Made) -> bool {
        let of = |made: &Made| made.schedule.as_ref().map(|(schedule, _)| schedule.clone());
        (self.place, self.address, self.elements, self.sm_margin)
            == (other.place, other.address, other.elements, other.sm_margin)
            && self.problem == other.problem
            && of(self) == of(other)
    }
}

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

/// A schedule that a call was given.
pub(super) struct Kept(Arc<Made>);

impl Kept {
    /// That of a tensor with this number.
    pub(super) fn find(tensor: &Tensor, number: i64) -> Result<Kept, Error> {
        let made = all().made.get(&number).cloned().ok_or(FOREIGN)?;
        let (place, _) = tensor.place_and_count("scheduler_metadata")?;
        let memory = tensor.describe_i32::<1>("scheduler_metadata", place)?.ok_or(FOREIGN)?;
        if (place, memory.first.addr(), memory.shape[0]) != (made.place, made.address, made.elements) {
            return Err(FOREIGN.into());
        }
        Ok(Kept(made))
    }

    /// Refuses the schedule of another problem than the call's.
    pub(super) fn check(&self, place: Place, problem: &Problem, sm_margin: u32) -> Result<(), Error> {
        let made = &*self.0;
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

    /// Where the workspace is that holds it, and its bytes, if the call's plan would make the same.
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
        let Some((made, of)) = &self.0.schedule else {
            return Err(FOREIGN.into());
        };
        if *made != own {
            return Err(format!(
                "scheduler_metadata was made for kernel {}, and the plan of this call, kernel {}, has another schedule, by \
                 total_q, strides or the alignment of its tensors: leave it out",
                made.kernel(),
                own.kernel()
            )
            .into());
        }
        if *of != stream.as_raw() && !stream.is_captured()? {
            return Err("scheduler_metadata was made in another stream than the call's: make it in this one".into());
        }
        Ok((
            with_exposed_provenance_mut(self.0.address),
            self.0.elements * size_of::<i32>(),
        ))
    }
}
