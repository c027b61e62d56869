//! Checking what the host cannot see: lengths, offsets, pages, slots and positions whose values are on the device.
//!
//! One launch before a call reads them, and leaves the first violation in a [record](RECORD_WORDS), which the host
//! reads as the error that it raises for values in host memory ([`violation`]). The kernel finds what
//! [`Problem::length_findings`] and [`Append::findings`] find, with two exceptions: offsets may start above 0, and of
//! two writers of one row of the cache it knows nothing.

mod kernel;
mod record;

use flashcore_ir::{Arg, Kernel, Launch};
use flashcore_problem::{Append, AppendPlace, AppendValues, CausalAlign, KvLengths, Lengths, Problem};

use crate::Refusal;
use crate::attention::params::{Shape, add_buffer, grid};
use crate::family::padded;
use crate::step::{Identity, KernelCache, Step};
use kernel::{Kinds, THREADS};
pub use record::{RECORD_WORDS, violation};

/// The launch that checks the lengths of a problem, or `None` where all are equal. Its buffers are those arrays that
/// [`Problem::length_entries`] names, and `record`, u32 `[RECORD_WORDS]`. Without `pages` the block table is not read,
/// for calls that do not have it yet.
///
/// ```
/// use flashcore_kernels::{KernelCache, checks};
/// use flashcore_problem::{KvLengths, Problem};
/// let problem = Problem::builder().batch(3).heads(8, 8).seq_len(512).head_dim(64).kv_lengths(KvLengths::Cache).build()?;
/// let step = checks::of_problem(&problem, true, &KernelCache::default())?.ok_or("it has lengths")?;
/// assert_eq!((step.kernel.name(), step.launch.grid), ("check_seqused_k", [3, 1, 1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A [`Refusal`] of more sequences than a grid can have blocks.
pub fn of_problem(problem: &Problem, pages: bool, kernels: &KernelCache) -> Result<Option<Step>, Refusal> {
    if !problem.has_lengths() {
        return Ok(None);
    }
    let mut entries = problem.length_entries();
    entries.block_table = entries.block_table.filter(|_| pages);
    let kernel = build(Kinds::Attention(entries.map(|_| ())), kernels)?;
    let mut launch = Launch::of(&kernel, grid("check", [problem.batch(), 1, 1])?);
    for (name, entries) in Lengths::<usize>::NAMES.into_iter().zip(entries.arrays()) {
        if let (Some(entries), false) = (entries, name == "block_table") {
            add_buffer(&mut launch, name, 4 * entries, 4, false);
        }
    }
    let [q, k] = [problem.q_layout(), problem.k_layout()].map(|layout| layout.shape);
    let numbers = [problem.seq_len_q(), problem.seq_len_kv(), q[1], k[1]];
    launch.args.extend(numbers.map(|number| Arg::I32(number as i32)));
    if let (Some(entries), KvLengths::Paged { max_pages, .. }) = (entries.block_table, problem.kv_lengths()) {
        add_pages(&mut launch, entries, [k[1], k[0], max_pages]);
    }
    // A sequence adds what depends on its lengths.
    let band = problem.key_range_of(0, 0);
    let bottom_right = problem.mask().align == CausalAlign::BottomRight;
    launch
        .args
        .extend([band.lo, band.hi, i32::from(bottom_right)].map(Arg::I32));
    add_record(&mut launch);
    Ok(Some(Step { kernel, launch }))
}

/// The launch that checks the values of an append that was [checked](Append::check). Its buffers are those that
/// [`Append::entries`] names, `slot_mapping` where the append has slots, and `record`.
///
/// # Errors
/// A [`Refusal`] of more sequences than a grid can have blocks.
pub fn of_append(append: &Append, kernels: &KernelCache) -> Result<Step, Refusal> {
    let (entries, rows) = (append.entries(), append.new_rows());
    let slot_words = match append.place {
        AppendPlace::Slots { wide } => 1 + usize::from(wide),
        AppendPlace::Cache | AppendPlace::Paged { .. } => 0,
    };
    let kinds = Kinds::Append {
        arrays: entries.map(|_| ()),
        slot_words: slot_words as u32,
        rotates: append.rotary.is_some(),
    };
    let kernel = build(kinds, kernels)?;
    let [pages, page_size, ..] = append.k_cache.shape;
    let (tables, max_pages) = match append.place {
        AppendPlace::Paged { tables, max_pages } => (tables, max_pages),
        AppendPlace::Cache | AppendPlace::Slots { .. } => (pages, 1),
    };
    let of_slots = if slot_words > 0 { rows } else { 0 };
    let blocks = append.batch.max(of_slots.div_ceil(THREADS as usize));
    let mut launch = Launch::of(&kernel, grid("check", [blocks, 1, 1])?);
    for name in AppendValues::<usize>::NAMES {
        if let (Some(&entries), false) = (entries.named(name), name == "block_table") {
            add_buffer(&mut launch, name, 4 * entries, 4, false);
        }
    }
    if let Some(entries) = entries.block_table {
        add_pages(&mut launch, entries, [page_size, pages, max_pages]);
    }
    if slot_words > 0 {
        let bytes = 4 * slot_words;
        add_buffer(&mut launch, "slot_mapping", bytes * rows, bytes as u32, false);
    }
    let (positions, q_rows, q_most) = match &append.rotary {
        None => (0, 0, 0),
        Some(rotary) => {
            let most = if rotary.q_at_one_position { 1 } else { i32::MAX as usize };
            (rotary.positions, rotary.q.shape[1], most)
        }
    };
    let [_, seq_new, ..] = append.k_new.shape;
    let numbers = [append.batch, append.seq_len_kv, rows, seq_new, tables, append.slots()];
    let numbers = numbers.into_iter().chain([positions, q_rows, q_most]);
    // The numbers of sequences and of rows are unsigned.
    launch.args.extend(numbers.enumerate().map(|(i, number)| match i {
        0 | 2 => Arg::U32(number as u32),
        _ => Arg::I32(number as i32),
    }));
    add_record(&mut launch);
    Ok(Step { kernel, launch })
}

fn build(kinds: Kinds, kernels: &KernelCache) -> Result<std::sync::Arc<Kernel>, Refusal> {
    let identity = Identity {
        family: "check",
        levers: padded(kinds.levers()),
        shape: Shape::of_lengths(Lengths::default()),
    };
    kernels.get_or_build(identity, |&[a, b, c, d, ..], _| {
        let kinds = Kinds::from_levers([a, b, c, d]);
        Kernel::build(kinds.name(), THREADS, |k| kernel::body(k, kinds))
    })
}

/// The block table and the sizes of its pages: keys of a page, pages, and entries of a sequence.
fn add_pages(launch: &mut Launch, entries: usize, [page_size, pages, max_pages]: [usize; 3]) {
    add_buffer(launch, "block_table", 4 * entries, 4, false);
    let sizes = [
        Arg::U32(page_size as u32),
        Arg::I32(pages as i32),
        Arg::U32(max_pages as u32),
    ];
    launch.args.extend(sizes);
}

fn add_record(launch: &mut Launch) {
    add_buffer(launch, "record", 4 * RECORD_WORDS, 4, true);
}
