//! Checking what the host cannot see: lengths, offsets, pages, slots and positions whose values are on the device.
//!
//! One launch before a call reads them, and leaves the first violation in a [record](RECORD_WORDS), which the host
//! reads as the error that it raises for values in host memory ([`violation`]). The kernel finds what
//! [`Problem::length_findings`] and [`Append::findings`] find, with two exceptions: offsets may start above 0, and of
//! two writers of one row of the cache it knows nothing.

mod kernel;
mod record;

use flashcore_problem::{Append, Lengths, Problem};

use crate::Refusal;
use crate::append::kinds::Kinds;
use crate::args::Built;
use crate::attention::params::{Shape, grid};
use crate::step::{KernelCache, Step};
use kernel::{THREADS, append, attention};
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
    let shape = Shape::of_lengths(entries.map(|_| ()));
    let kernel = kernels.get_or_build((), shape, |(), shape| {
        let name = format!("check{}", shape.lengths_name());
        Built::build(name, THREADS, |k| {
            attention::Attention::declare(k, shape.lengths).check();
        })
    })?;
    kernel.step(grid("check", [problem.batch(), 1, 1])?, problem).map(Some)
}

/// The launch that checks the values of an append that was [checked](Append::check). Its buffers are those that
/// [`Append::entries`] names, `slot_mapping` where the append has slots, and `record`.
///
/// # Errors
/// A [`Refusal`] of more sequences than a grid can have blocks.
pub fn of_append(append: &Append, kernels: &KernelCache) -> Result<Step, Refusal> {
    let kinds = Kinds::checked(append);
    let kernel = kernels.get_or_build(kinds, Shape::of_lengths(Lengths::default()), |kinds, _| {
        let rotary = if kinds.rotary_dim > 0 { "_rotary" } else { "" };
        let others = Kinds { rotary_dim: 0, ..kinds };
        let name = format!("check_append{}{rotary}", others.name());
        Built::build(name, THREADS, |k| append::Append::declare(k, kinds).check())
    })?;
    let of_slots = if kinds.slot_words > 0 { append.new_rows() } else { 0 };
    let blocks = append.batch.max(of_slots.div_ceil(THREADS as usize));
    kernel.step(grid("check", [blocks, 1, 1])?, append)
}
