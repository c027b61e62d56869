//! Merging attention over parts of the keys, which FlashInfer calls `merge_states`: one launch, which any GPU runs. The
//! partials of split-KV, which a plan makes itself, are merged by `combine` (`attention/combine.rs`).
//!
//! A thread has `CHUNK` columns of a row. It reads the log-sum-exp of the row in every part and weighs the outputs by
//! them: `out = Σ exp(lse_i − lse)·out_i` with `lse = ln Σ exp(lse_i)`. There is nothing to tune: all of it waits for
//! memory.

use flashcore_ir::{Cache, GlobalPtr, Widen};
use flashcore_problem::{LSES, Lengths, OUTS, Problem};

use crate::Refusal;
use crate::args::{Args, build};
use crate::attention::lengths::row_strides;
use crate::attention::params::{Shape, declare_lse, grid, widest_access};
use crate::attention::score_mod::LOG2_E;
use crate::step::{KernelCache, Step};

/// Columns of a thread: every head_dim is a multiple of it.
const CHUNK: u32 = 8;

const THREADS: u32 = 128;

/// The launch that merges so many parts ([`Combine`](flashcore_problem::Combine)) of a problem, of tensors whose first
/// elements are aligned to `alignment` bytes. Its buffers are [`OUTS`] and [`LSES`], as many as there are parts, `out`,
/// and `lse` if the problem asks for it.
///
/// ```
/// use flashcore_kernels::{KernelCache, merge_states};
/// use flashcore_problem::Problem;
/// let problem = Problem::builder().heads(32, 8).seq_len(512).head_dim(128).return_lse(true).build()?;
/// let step = merge_states::step(&problem, 2, 16, &KernelCache::default())?;
/// assert_eq!(step.kernel.name(), "merge_p2_fp16_d128_v16_lse");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A [`Refusal`]: a number of parts that [is none](Problem::check_part_count), or more blocks than a grid can have.
pub fn step(problem: &Problem, parts: usize, alignment: u32, kernels: &KernelCache) -> Result<Step, Refusal> {
    let count = problem.check_part_count(parts);
    count.map_err(|error| {
        let remedy = "check it first (Problem::check_part_count)";
        Refusal::unsupported("merge", format!("{parts} parts: {error}"), remedy)
    })?;
    let (layout, dtype) = (problem.o_layout(), problem.out_dtype());
    let size = dtype.size_bytes();
    let strides = row_strides(layout);
    let starts = strides.map(|stride| stride as usize * size);
    let vector_bytes = widest_access(starts.into_iter().chain([alignment as usize]));
    let columns = problem.head_dim_v() as u32;
    let shape = Shape {
        head_dim: columns,
        head_dim_v: columns,
        dtype,
        vector_bytes,
        lse: problem.return_lse(),
        ..Shape::of_lengths(Lengths::default())
    };
    let kernel = kernels.get_or_build(parts, shape, |parts, shape| {
        let (dtype, columns, vector_bytes) = (shape.dtype, shape.head_dim, shape.vector_bytes);
        let lse = if shape.lse { "_lse" } else { "" };
        let name = format!("merge_p{parts}_{dtype}_d{columns}_v{vector_bytes}{lse}");
        build!(name, THREADS, floats dtype => body(k, parts, shape))
    })?;
    let blocks = tasks(problem).div_ceil(THREADS as usize);
    kernel.step(grid("merge", [blocks, 1, 1])?, problem)
}

/// Threads with columns of a row.
fn tasks(problem: &Problem) -> usize {
    problem.lse_len() * (problem.head_dim_v() / CHUNK as usize)
}

fn body<'k, E: Widen>(k: &'k Args<'k, Problem>, parts: usize, shape: &Shape) {
    let span = |problem: &Problem| problem.o_layout().span();
    let align = shape.vector_bytes;
    let parts = OUTS.into_iter().zip(LSES).take(parts);
    let parts: Vec<(GlobalPtr<'k, E>, GlobalPtr<'k, f32>)> = parts
        .map(|(out, lse)| (k.input(out, align, span), k.input(lse, 4, Problem::lse_len)))
        .collect();
    let out: GlobalPtr<'k, E> = k.output("out", align, span);
    let lse = shape.lse.then(|| declare_lse(k));
    let stride = |name, dim: usize| k.number(name, move |problem: &Problem| row_strides(problem.o_layout())[dim]);
    let batch_stride = stride("batch_stride", 0);
    let seq_stride = stride("seq_stride", 1);
    let head_stride = stride("head_stride", 2);
    let seq = k.count("seq", |problem| problem.o_layout().shape[1]);
    let heads = k.count("heads", |problem| problem.o_layout().shape[2]);
    let tasks = k.count("tasks", tasks);

    let task = k.block_idx(0) * THREADS + k.thread_idx();
    k.if_(task.lt(tasks).divergent(), || {
        let chunks = shape.head_dim / CHUNK;
        let (row, column) = (task / chunks, task % chunks * CHUNK);
        let (batch_head, s) = (row / seq, row % seq);
        let chunk = |tensor: GlobalPtr<'k, E>| {
            let of_batch = tensor.offset_strided(batch_head / heads, batch_stride);
            let of_head = of_batch.offset_strided(batch_head % heads, head_stride);
            of_head.offset_strided(s, seq_stride).offset(column)
        };
        let lse_of = |(_, lse): &(_, GlobalPtr<'k, f32>)| lse.offset(row).load_with(Cache::ReadOnly);
        let lses: Vec<_> = parts.iter().map(lse_of).collect();
        let out_of = |(out, _): &(_, _)| chunk(*out).load_f32s(CHUNK, shape.vector_bytes, Cache::ReadOnly);
        let outs: Vec<_> = parts.iter().map(out_of).collect();
        let highest = lses.iter().copied().reduce(|a, b| a.max(b));
        let highest = highest.unwrap_or_else(|| k.constant(f32::NEG_INFINITY));
        // −∞ − −∞ is NaN.
        let base = highest.eq(f32::NEG_INFINITY).select(0.0, highest);
        let weights = lses.iter().map(|&lse| ((lse - base) * LOG2_E).exp2());
        let weights: Vec<_> = weights.collect();
        let sum = weights.iter().copied().reduce(|a, b| a + b);
        let sum = sum.unwrap_or_else(|| k.constant(0.0));
        // A sum that is not a number stays one.
        let norm = sum.eq(0.0).select(0.0, sum.recip());
        let values: Vec<_> = (0..CHUNK as usize)
            .map(|column| {
                let all = outs.iter().zip(&weights).map(|(out, &weight)| {
                    // A row without keys may hold anything.
                    weight.eq(0.0).select(0.0, out[column] * (weight * norm))
                });
                all.reduce(|a, b| a + b).unwrap_or_else(|| k.constant(0.0))
            })
            .collect();
        chunk(out).store_f32s(&values, shape.vector_bytes, Cache::Default);
        if let Some(lse) = lse {
            k.if_(column.eq(0).divergent(), || {
                let value = sum.log2() * std::f32::consts::LN_2 + base;
                lse.offset(row).store(value);
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use flashcore_problem::rng::Rng;
    use flashcore_problem::{DType, Layout, MOST_PARTS, POISON, Tensor};
    use flashcore_sim::{SimOptions, simulate};

    use super::*;

    #[test]
    fn a_number_of_parts_that_is_none_is_refused() {
        let problem = Problem::builder().heads(2, 2).seq_len(8).head_dim(64).build().unwrap();
        let refusal = step(&problem, 9, 16, &KernelCache::default()).unwrap_err().to_string();
        assert!(refusal.starts_with("merge does not serve 9 parts: "), "{refusal}");
    }

    /// Random parts, of which rows without keys hold NaN, against float64; gaps between rows keep their bytes. A row
    /// that is past the limit of scores in one part is NaN.
    #[test]
    fn parts_are_merged() {
        let mut rng = Rng::new(11);
        for (case, (dtype, columns)) in [DType::F32, DType::F16, DType::BF16]
            .into_iter()
            .flat_map(|dtype| [(dtype, 8), (dtype, 64), (dtype, 136)])
            .enumerate()
        {
            let (parts, alignment) = (1 + case % 4, [16, 4, 8][case % 3]);
            let shape = [2, 3, 2, columns];
            let [_, s, h, d] = shape;
            let (row, head) = (h * d + 8, d);
            let layouts = [
                Layout::bhsd(shape),
                Layout {
                    shape,
                    strides: [(s * row) as i64, row as i64, head as i64, 1],
                },
            ];
            let layout = layouts[case % 2];
            let dense = Layout::bshd([2, 9, 2, columns]);
            let problem = Problem::builder()
                .batch(2)
                .heads(h, h)
                .seq_len_q(s)
                .seq_len_kv(9)
                .head_dim(columns)
                .dtype(dtype)
                .return_lse(true)
                .layouts(Layout::bshd(shape), dense, dense, layout)
                .build()
                .unwrap();
            let given: Vec<(Tensor, Vec<f32>)> = (0..parts)
                .map(|part| {
                    let lse = |row: usize| match (row, part) {
                        (7, 0) => f32::NAN,
                        _ if (row + part).is_multiple_of(5) || row == 1 => f32::NEG_INFINITY,
                        _ => 9.0 * rng.normal(),
                    };
                    let lse: Vec<f32> = (0..problem.lse_len()).map(lse).collect();
                    let out = Tensor::from_fn(dtype, layout, |b, s, h, _| match lse[(b * 2 + h) * 3 + s] {
                        lse if lse.is_finite() => rng.normal(),
                        _ => f32::NAN,
                    });
                    (out, lse)
                })
                .collect();
            let step = step(&problem, parts, alignment, &KernelCache::default()).unwrap();
            let contents = step.launch.buffers.iter().map(|spec| {
                let of = |names: [&str; MOST_PARTS]| names.iter().position(|name| *name == spec.name);
                match (of(OUTS), of(LSES)) {
                    (Some(part), _) => given[part].0.bytes().to_vec(),
                    (_, Some(part)) => given[part].1.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    _ => vec![POISON; spec.bytes as usize],
                }
            });
            let mut buffers: Vec<Vec<u8>> = contents.collect();
            let report = simulate(&step.kernel, &step.launch, &mut buffers, &SimOptions::default()).unwrap();
            assert!(report.is_clean(), "{:?}", report.findings);
            let lse = buffers.pop().unwrap();
            let out = buffers.pop().unwrap();
            let out = flashcore_problem::TensorView::new("out", dtype, layout, &out).unwrap();
            let tolerance = [2e-6, 1e-3, 8e-3][case / 3];
            for row in 0..problem.lse_len() {
                let (b, h, s) = (row / 6, row / 3 % 2, row % 3);
                let total: f64 = given.iter().map(|(_, lse)| f64::from(lse[row]).exp()).sum();
                let found = f32::from_le_bytes(lse[4 * row..4 * row + 4].try_into().unwrap());
                let want = total.ln();
                if row == 7 {
                    let is_nan = |d| out.get(b, s, h, d).is_nan();
                    assert!(found.is_nan() && (0..columns).all(is_nan), "case {case}: {found}");
                    continue;
                }
                assert!(
                    f64::from(found) == want || (f64::from(found) - want).abs() < 1e-5,
                    "{found} {want}"
                );
                for d in 0..columns {
                    let weighed = given.iter().filter(|(_, lse)| lse[row] > f32::NEG_INFINITY);
                    let weighed = weighed
                        .map(|(out, lse)| f64::from(out.view().get(b, s, h, d)) * f64::from(lse[row]).exp() / total);
                    let (found, want) = (f64::from(out.get(b, s, h, d)), weighed.sum::<f64>());
                    assert!(
                        (found - want).abs() <= tolerance * want.abs().max(1.0),
                        "case {case}: {found}, {want}"
                    );
                }
            }
            let gaps = match case % 2 {
                0 => 0,
                _ => 2 * s * 8 - 8,
            };
            let poisoned = out
                .bytes()
                .chunks(dtype.size_bytes())
                .filter(|bytes| bytes.iter().all(|b| *b == POISON));
            assert_eq!(poisoned.count(), gaps, "case {case}");
        }
    }
}
