//! `flashcore::make_schedule` and what `::fwd_lengths` is given: the schedule of a step, made once and used by all
//! layers.
//!
//! A kernel trusts the schedule that it reads. So its memory, of PyTorch's allocator, is kept here, and no tensor with
//! it is handed out: what Python has is a number, which an object ends. Only the kernels of calls that are given the
//! number, and have been checked, write there. The tensor that `make_schedule` returns is a token: Python keeps the
//! number's object on it, and nothing reads its element.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use flashcore::cuda::{Context, DeviceSlice, Stream};
use flashcore::{Attention, DType, ElementType, KvLengths, Mask, Prepared, Problem, QLengths, Task, TensorSpec};
use pyo3::prelude::*;

use crate::bind::{self, Operands};
use crate::error::Error;
use crate::foreign::{Foreign, I32, Place, element_of_torch};
use crate::libtorch::{Libtorch, Tensor};
use crate::operators::{Results, found, options_of};
use crate::options::Options;
use crate::run::{attention_on, current_stream, on_device};
use crate::table::{BLOCK_TABLE, K, LENGTHS, Q, SEQUSED_K, TENSORS, V};

/// A schedule that was made, and what for.
struct Made {
    place: Place,
    sm_margin: u32,
    problem: Problem,
    /// The CPU makes none.
    on_gpu: Option<OnGpu>,
}

struct OnGpu {
    prepared: Prepared,
    stream: usize,
    workspace: Workspace,
}

/// Where a schedule is. PyTorch frees it in the order of the stream that it was made in.
struct Workspace(
    #[expect(dead_code, reason = "it holds the memory")] Tensor<'static>,
    Foreign,
);

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

/// How many schedules are kept, which tests look at.
#[pyfunction]
pub(crate) fn kept_schedules() -> usize {
    all().made.len()
}

pub(crate) fn make<'a>(torch: &'a Libtorch, operands: &mut Operands, numbers: &[u64]) -> Result<Results<'a>, Error> {
    let mut of_lengths = operands[SEQUSED_K];
    of_lengths.name = "cache_seqlens";
    let (batch, place) = (of_lengths.shape[0] as usize, of_lengths.place);
    if of_lengths.numbers(1, &of_lengths)?.is_none() {
        return Err(format!("cache_seqlens has {batch} entries; it has one for each sequence").into());
    }
    let (options, sizes) = options_of(numbers)?;
    let number = options.schedule;
    let find = || all().made.get(&number).cloned().ok_or(FOREIGN);
    let before = (number != 0).then(find).transpose()?;
    let size = |n: usize| usize::try_from(sizes[n] as i64).map_err(|_| format!("{} is negative", NAMES[n]));
    let [heads, kv_heads, head_dim, head_dim_v, page_size] = [size(1)?, size(2)?, size(3)?, size(4)?, size(5)?];
    let [max_q, max_kv] = [options.max_q, options.max_k].map(|bound| usize::try_from(bound).unwrap_or(0).max(1));
    // The call that it is for.
    let mut call = *operands;
    let of_dtype = element_of_torch(sizes[0] as i32);
    let dense = |n: usize, element, shape: &[usize]| Foreign::fresh_dense(TENSORS[n].as_str(), element, place, shape);
    call[Q] = if call[LENGTHS].is_given() {
        dense(Q, of_dtype, &[size(6)?, heads, head_dim])
    } else {
        dense(Q, of_dtype, &[batch, max_q, heads, head_dim])
    };
    let (pages, keys) = match page_size {
        0 => (batch, max_kv),
        _ => {
            let max_pages = max_kv.div_ceil(page_size);
            call[BLOCK_TABLE] = dense(BLOCK_TABLE, I32, &[batch, max_pages]);
            (batch * max_pages, page_size)
        }
    };
    call[K] = dense(K, of_dtype, &[pages, keys, kv_heads, head_dim]);
    call[V] = dense(V, of_dtype, &[pages, keys, kv_heads, head_dim_v]);
    let Some(problem) = bind::forward(&call, &options)?.problem else {
        return Err("total_q is 0; a schedule is of rows".into());
    };
    let (sm_margin, attention) = (options.sm_margin, attention_on(place, None, options.sm_margin)?);
    let for_another = "out was made for another problem than it is to be made for: leave it out";
    let is_as = |before: &Made| (before.place, before.sm_margin, &before.problem) == (place, sm_margin, &problem);
    if before.as_ref().is_some_and(|before| !is_as(before)) {
        return Err(for_another.into());
    }
    let is_new = before.is_none();
    let token = |has_schedule: bool| -> Result<Results<'a>, Error> {
        let token = torch.empty(&Foreign::fresh_dense("token", I32, place, &[usize::from(has_schedule)]))?;
        Ok([Some(token), None, None])
    };
    let new = |on_gpu| {
        let problem = problem.clone();
        Arc::new(Made {
            place,
            sm_margin,
            problem,
            on_gpu,
        })
    };
    let Some(stream) = current_stream(torch, &attention)? else {
        if is_new {
            keep(new(None));
        }
        return token(is_new);
    };
    let (context, is_captured) = (stream.context(), stream.is_captured()?);
    let made = match before {
        Some(before) => before,
        None => {
            let prepared = attention.prepare(&problem)?;
            // In a graph there is one only once the graph has run.
            if !prepared.has_schedule() || is_captured {
                return token(false);
            }
            let torch = found().ok_or("PyTorch was not found")?; // it was
            let elements = usize::try_from(prepared.workspace_bytes().div_ceil(4)).unwrap_or(usize::MAX);
            let (tensor, at) = torch.allocate(Foreign::fresh_dense("schedule", I32, place, &[elements]))?;
            let (stream, workspace) = (stream.as_raw(), Workspace(tensor, at));
            new(Some(OnGpu {
                prepared,
                stream,
                workspace,
            }))
        }
    };
    let of = made.on_gpu.as_ref().ok_or(for_another)?;
    if of.stream != stream.as_raw() && !is_captured {
        return Err("out was made in another stream than this one: make it in that one".into());
    }
    let schedule = schedule_at(context, &of.prepared, &of.workspace.1).ok_or(for_another)?;
    let is_lengths = |spec: &TensorSpec| spec.element == ElementType::I32;
    let specs: Vec<TensorSpec> = problem.tensors().into_iter().filter(is_lengths).collect();
    let lengths = on_device(context, &specs, &TENSORS, operands)?;
    if is_captured {
        hold(number, &made);
    }
    // SAFETY: PyTorch frees memory in the order of its current stream, where the work is; who uses the schedule holds
    // its workspace.
    unsafe { attention.schedule_foreign(&stream, &schedule, &lengths)? };
    if is_new {
        keep(made);
    }
    token(is_new)
}

/// Gives a schedule its number, for [`last_schedule`].
fn keep(made: Arc<Made>) {
    let mut all = all();
    all.last += 1;
    let number = all.last;
    // Nothing of Python asked for the one before: a trace or a transform called the operator.
    let unclaimed = all.made.remove(&LAST.replace(number));
    all.made.insert(number, made);
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

/// What a caller of `get_scheduler_metadata` says of a schedule.
#[derive(PartialEq)]
enum Fact {
    Place(Place),
    DType(DType),
    Mask(Mask),
    Size(usize),
    Is(bool),
    Keys(Option<usize>),
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: Option<u32>| side.map_or(-1, i64::from);
        match self {
            Fact::Place(place) => place.fmt(f),
            Fact::DType(dtype) => dtype.fmt(f),
            Fact::Mask(mask) => write!(f, "({}, {})", side(mask.window_left), side(mask.window_right)),
            Fact::Size(size) => size.fmt(f),
            Fact::Is(is) => is.fmt(f),
            Fact::Keys(keys) => write!(f, "{keys:?}"),
        }
    }
}

fn facts_of(place: Place, problem: &Problem, sm_margin: u32) -> [(&'static str, Fact); 14] {
    let page_size = match problem.kv_lengths() {
        KvLengths::Paged { page_size, .. } => page_size,
        _ => 0,
    };
    [
        ("device", Fact::Place(place)),
        (NAMES[0], Fact::DType(problem.dtype())),
        ("causal and window_size", Fact::Mask(problem.mask())),
        ("batch_size", Fact::Size(problem.batch())),
        ("max_seqlen_q", Fact::Size(problem.seq_len_q())),
        ("max_seqlen_k", Fact::Size(problem.seq_len_kv())),
        (NAMES[1], Fact::Size(problem.num_heads())),
        (NAMES[2], Fact::Size(problem.num_kv_heads())),
        (NAMES[3], Fact::Size(problem.head_dim())),
        (NAMES[4], Fact::Size(problem.head_dim_v())),
        (NAMES[5], Fact::Size(page_size)),
        ("sm_margin", Fact::Size(sm_margin as usize)),
        ("cu_seqlens_q", Fact::Is(problem.q_lengths() != QLengths::Equal)),
        ("batch_invariant", Fact::Keys(problem.batch_invariant())),
    ]
}

/// A schedule that a call was given, and its number.
pub(crate) struct Kept(i64, Arc<Made>);

impl Kept {
    /// The one whose number these options have.
    pub(crate) fn of(options: &Options) -> Result<Option<Kept>, Error> {
        match options.schedule {
            0 => Ok(None),
            number => Ok(Some(Kept(number, all().made.get(&number).cloned().ok_or(FOREIGN)?))),
        }
    }

    /// Refuses the schedule of another problem than the call's.
    pub(crate) fn check(&self, place: Place, problem: &Problem, sm_margin: u32) -> Result<(), Error> {
        let made = facts_of(self.1.place, &self.1.problem, self.1.sm_margin);
        let mut facts = made.into_iter().zip(facts_of(place, problem, sm_margin));
        match facts.find(|(made, other)| made.1 != other.1) {
            None => Ok(()),
            Some(((name, made), (_, other))) => Err(format!(
                "scheduler_metadata was made with {name} {made}, and this call has {other}: give get_scheduler_metadata \
                 what the call has (max_seqlen_k is the capacity of the cache)"
            )
            .into()),
        }
    }

    /// The schedule, which a call whose plan would make another one refuses. A graph that the call is captured into may
    /// use it from then on.
    pub(crate) fn schedule(&self, attention: &Attention, stream: &Stream) -> Result<flashcore::Schedule, Error> {
        let made = self.1.on_gpu.as_ref().ok_or(FOREIGN)?;
        if stream.is_captured()? {
            hold(self.0, &self.1);
        } else if made.stream != stream.as_raw() {
            return Err("scheduler_metadata was made in another stream than the call's: make it in this one".into());
        }
        let device = attention.device();
        let context = device.context().ok_or(FOREIGN)?;
        Ok(schedule_at(context, &made.prepared, &made.workspace.1).ok_or(FOREIGN)?)
    }

    /// Why a call's plan cannot use it.
    pub(crate) fn of_another_plan(&self) -> Error {
        let kernel = self.1.on_gpu.as_ref().map(|made| made.prepared.kernel());
        format!(
            "scheduler_metadata was made for kernel {}, and the plan of this call has another schedule or none, by \
             total_q, strides or the alignment of its tensors: leave it out",
            kernel.unwrap_or_default()
        )
        .into()
    }
}

/// The schedule of a plan in memory that was allocated for it.
fn schedule_at(context: &Context, prepared: &Prepared, workspace: &Foreign) -> Option<flashcore::Schedule> {
    let bytes = usize::try_from(prepared.workspace_bytes()).unwrap_or(usize::MAX);
    // SAFETY: as many bytes were allocated, which PyTorch frees in the order of the stream; `make` writes there before
    // others read, in one stream or before a graph.
    unsafe {
        let memory = DeviceSlice::from_raw(context, workspace.address(), bytes);
        flashcore::Schedule::from_raw(prepared, memory)
    }
}
