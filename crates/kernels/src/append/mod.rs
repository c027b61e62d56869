//! Appending to a cache: one launch before attention that writes new rows of K and V, and rotates K and Q.
//!
//! There is nothing to tune: every thread moves one chunk of at most 16 bytes, or one chunk of pairs. So it is no
//! [`Config`](crate::Config); [`step`] gives the kernel and its launch. Lengths, pages and slots are read on the
//! device.

mod kernel;
pub(crate) mod kinds;

use flashcore_ir::{E4M3, Target};
use flashcore_problem::{Append, DType, Lengths};

use crate::args::{Built, with_element};
use crate::attention::lengths::row_strides;
use crate::attention::params::{Shape, grid, widest_access};
use crate::step::{KernelCache, Step};
use crate::{Refusal, refuse};
use kernel::THREADS;
use kinds::Kinds;

/// The launch of an append, of tensors (the rotary tables included) whose first elements are aligned to `alignment`
/// bytes.
///
/// Its buffers are `k_new`, `v_new`, `k_cache`, `v_cache`, those that [`Append::entries`] names, `slot_mapping`,
/// `seqused_k`, and with a rotary embedding `rotary_cos`, `rotary_sin`, `q` and `q_out`, as far as the append has them.
/// For Q in place, `q` and `q_out` are the same memory.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::{KernelCache, append};
/// use flashcore_problem::{Append, DType};
/// let (new, cache) = ([64, 1, 8, 128].into(), [4000, 16, 8, 128].into());
/// let spec = Append::to_pages(DType::BF16, [new, new], [cache, cache], 256);
/// let step = append::step(&spec, Target::Sm80, 16, &KernelCache::default())?;
/// assert_eq!(step.kernel.name(), "append_bf16_d128_v16_cache_seqlens_block_table");
/// assert_eq!(step.launch.grid, [64, 2, 1]); // sequences; K and V
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A [`Refusal`]: an append that [is none](Append::check), e4m3 rows that do not start at multiples of 4 bytes, more
/// blocks than a grid can have, or a rotation of e4m3 before sm_90 or of columns that are no multiple of 8.
pub fn step(append: &Append, target: Target, alignment: u32, kernels: &KernelCache) -> Result<Step, Refusal> {
    if let Err(error) = append.check() {
        let what = format!("an append that is invalid: {error}");
        return Err(Refusal::unsupported("append", what, "check it first (Append::check)"));
    }
    let units = Units::new(append, alignment)?;
    let kinds = Kinds::of(append);
    let shape = Shape {
        head_dim: units.count(append.k_cache.shape[3]),
        head_dim_v: units.count(append.v_cache.shape[3]),
        dtype: units.dtype,
        vector_bytes: units.vector_bytes,
        ..Shape::of_lengths(Lengths::default())
    };
    let kernel = kernels.get_or_build(kinds, shape, |kinds, shape| {
        let (dtype, head_dims, vector_bytes) = (shape.dtype, shape.head_dims_name(), shape.vector_bytes);
        let name = format!("append_{dtype}_{head_dims}_v{vector_bytes}{}", kinds.name());
        Built::build(name, THREADS, |k| match dtype {
            DType::E4M3 => kernel::body::<E4M3>(k, kinds, shape),
            dtype => with_element!(floats dtype => kernel::body(k, kinds, shape)),
        })
    })?;
    refuse!(!kernel.kernel.requires().is_met_by(target) =>
        "append", "sm_90 and later do", "a rotary embedding of {} on {target}", append.dtype);
    let request = Request::new(append, &units, &kinds);
    let slices = request.k.slices + request.v.slices + request.q.slices;
    kernel.step(grid("append", [request.across, slices.max(1), 1])?, &request)
}

/// What a kernel moves: elements, or words of four e4m3 where it rotates none.
struct Units {
    dtype: DType,
    /// Elements in a unit.
    elements: usize,
    /// Bytes of an access, which all rows, heads and pairs start at a multiple of.
    vector_bytes: u32,
}

impl Units {
    fn new(append: &Append, alignment: u32) -> Result<Units, Refusal> {
        let size = append.dtype.size_bytes();
        let [_, _, _, head_dim] = append.k_cache.shape;
        let tensors = [append.k_new, append.v_new, append.k_cache, append.v_cache];
        let rotary = append.rotary.iter();
        // Pairs of halves start in the middle of the rotated part, others end with it.
        let pairs = rotary.clone().flat_map(|rotary| {
            if rotary.interleaved {
                [rotary.dim, rotary.dim]
            } else {
                [rotary.dim / 2, rotary.dim]
            }
        });
        let strides = tensors.iter().flat_map(row_strides);
        let of_q = rotary.flat_map(|rotary| [rotary.q, rotary.q_out]);
        let of_q = of_q.flat_map(|layout| row_strides(&layout));
        let dims = [head_dim, append.v_cache.shape[3]].into_iter().chain(pairs);
        let starts = strides.chain(of_q).map(|stride| stride as usize).chain(dims);
        let starts = starts.map(|start| start * size);
        let vector_bytes = widest_access(starts.chain([alignment as usize]));
        let is_e4m3 = append.dtype == DType::E4M3;
        let rotated = append.rotary.map_or(0, |rotary| rotary.dim);
        refuse!(is_e4m3 && !rotated.is_multiple_of(8) => "append", "use a rotary_dim that is a multiple of 8",
            "e4m3 rows of which {rotated} columns are rotated");
        refuse!(is_e4m3 && vector_bytes < 4 => "append", "pad them to multiples of 4 B",
            "e4m3 rows that start at multiples of {vector_bytes} B (it moves 4 B or more)");
        let (dtype, elements) = if is_e4m3 && append.rotary.is_none() {
            (DType::F32, 4) // copied bit by bit
        } else {
            (append.dtype, 1)
        };
        Ok(Units {
            dtype,
            elements,
            vector_bytes,
        })
    }

    fn count(&self, elements: usize) -> u32 {
        (elements / self.elements) as u32
    }
}

/// Threads that share a row of `tasks` tasks, as a power of two.
fn row_shift(tasks: u32) -> u32 {
    tasks.clamp(1, THREADS).next_power_of_two().trailing_zeros()
}

/// What a launch is made for: an append, and how its threads share the rows.
struct Request {
    append: Append,
    k: Tasks,
    v: Tasks,
    q: Tasks,
    /// Rows of Q of all sequences.
    q_rows: usize,
    /// Blocks along x.
    across: usize,
}

/// The tasks of a row.
#[derive(Clone, Copy)]
struct Tasks {
    count: u32,
    /// Threads that share a row, as a power of two.
    shift: u32,
    /// Blocks that have a slice of them each.
    slices: usize,
}

impl Tasks {
    fn new(count: u32, shift: u32) -> Tasks {
        let slices = count.div_ceil(1 << shift) as usize;
        Tasks { count, shift, slices }
    }
}

impl Request {
    fn new(append: &Append, units: &Units, kinds: &Kinds) -> Request {
        let element = units.dtype.size_bytes() as u32;
        let of_head = |head_dim, rotates| kinds.tasks(units.count(head_dim), rotates, units.vector_bytes, element);
        let of_k = of_head(append.k_cache.shape[3], true);
        let of_v = of_head(append.v_cache.shape[3], false);
        let (rows, heads) = (append.new_rows(), append.k_new.shape[2]);
        // Too many tasks are too many blocks.
        let tasks = |rows: usize, heads: usize, of_head: u32| match rows {
            0 => 0,
            _ => (heads as u32).saturating_mul(of_head),
        };
        let (k_tasks, v_tasks) = (tasks(rows, heads, of_k), tasks(rows, heads, of_v));
        let q = append.rotary.map(|rotary| rotary.q.shape);
        let (q_rows, q_tasks) = q.map_or((0, 0), |[b, s, h, _]| (b * s, tasks(b * s, h, of_k)));
        let (kv_shift, q_shift) = (row_shift(k_tasks.max(v_tasks)), row_shift(q_tasks));
        let blocks = |rows: usize, shift: u32| rows.div_ceil((THREADS >> shift) as usize);
        let of_lengths = if append.seqused_k {
            append.batch.div_ceil(THREADS as usize)
        } else {
            0
        };
        let across = blocks(rows, kv_shift).max(blocks(q_rows, q_shift));
        Request {
            append: *append,
            k: Tasks::new(k_tasks, kv_shift),
            v: Tasks::new(v_tasks, kv_shift),
            q: Tasks::new(q_tasks, q_shift),
            q_rows,
            across: across.max(of_lengths).max(1),
        }
    }
}

/// Entries of one of the arrays of [`AppendValues`](flashcore_problem::AppendValues).
pub(crate) fn entries(append: &Append, name: &str) -> usize {
    append.entries().named(name).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Rotary;

    use super::*;

    fn refusal(append: &Append) -> String {
        step(append, Target::Sm80, 16, &KernelCache::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_invalid_or_too_large_is_refused() {
        let (new, cache) = ([1, 1, 1, 64].into(), [1, 16, 1, 64].into());
        let append = Append::to_cache(DType::F16, [new, new], [cache, cache]);
        let none = Append { batch: 0, ..append };
        assert!(refusal(&none).contains("batch is 0"), "{}", refusal(&none));
        // 2^33 tasks.
        let heads = [1, 1, 1 << 30, 64].into();
        let many = Append::to_cache(DType::F16, [heads, heads], [heads, heads]);
        assert!(refusal(&many).contains("a grid of"), "{}", refusal(&many));
    }

    #[test]
    fn what_is_rotated_in_e4m3() {
        let (new, cache) = ([1, 1, 1, 64].into(), [1, 16, 1, 64].into());
        let of = |dim| Append {
            rotary: Some(Rotary::new(new, 16, dim)),
            ..Append::to_cache(DType::E4M3, [new, new], [cache, cache])
        };
        let (sm_80, columns) = (refusal(&of(16)), refusal(&of(20)));
        assert!(
            sm_80.contains("a rotary embedding of e4m3 on sm_80; sm_90 and later do"),
            "{sm_80}"
        );
        assert!(
            columns.contains("e4m3 rows of which 20 columns are rotated"),
            "{columns}"
        );
        assert!(step(&of(16), Target::Sm90a, 16, &KernelCache::default()).is_ok());
    }
}
