//! Inputs on the host and the expected outputs for them, fast enough for problems of a hundred million elements.

use std::collections::BTreeMap;

use flashcore_check::gate::{right_gradients, some_of};
use flashcore_problem::bulk::fill_normal;
use flashcore_problem::rng::Rng;
use flashcore_problem::{
    DType, Direction, E4M3_MAX, InputKind, Inputs, Layout, Lengths, POISON, Problem, Saved, Tensor, reference_rows,
};
use rayon::prelude::*;

use crate::{Expected, Result};

/// Operations up to which every element of the output is computed: some tenths of a second.
const WHOLE_FLOPS: f64 = 1e9;
/// Heads from which rows are taken where only some rows of the output are computed.
const ROW_HEADS: usize = 8;
/// Rows of each of these heads: the first, the last and others between.
const ROWS_A_HEAD: usize = 16;
/// Elements up to which inputs are those of [`Inputs::generate`]; above it, they are drawn on all cores.
const FEW_ELEMENTS: usize = 4 << 20;
const CHUNK: usize = 1 << 16;
/// Numbers of a pool.
const POOL: usize = 4 << 20;
/// Sequences whose last row is judged, whatever else is.
const LAST_ROWS: usize = 64;
/// Bound of the magnitude of the normal numbers drawn ([`Rng::normal`]).
const LARGEST: f32 = 6.0;

/// The inputs of a kind and seed: the same in every process. Large normal inputs are drawn on all cores, and differ
/// from those of [`Inputs::generate`]. O and the log-sum-exp of a backward problem are poison: a [`Bed`](crate::Bed)
/// computes them where it loads inputs.
pub fn draw(problem: &Problem, kind: InputKind, seed: u64) -> Inputs {
    let layouts = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let dout = problem.gradient_layouts().map(|layouts| layouts.dout);
    let few = layouts.iter().map(|layout| layout.num_elements()).sum::<usize>() <= FEW_ELEMENTS;
    let dense = |layout: &Layout| layout.span() == layout.num_elements();
    let dense = layouts.into_iter().chain(&dout).all(dense);
    if few || !dense || kind != InputKind::Normal || problem.has_lengths() {
        return Inputs::before_forward(problem, kind, seed);
    }
    let draw = |tensor, layout: &Layout, stream: u64| {
        // As far apart as those of `Inputs::generate`, so that using the wrong one changes the output.
        let mut rng = Rng::stream(seed, 100 + stream);
        let scale = |_| LARGEST / E4M3_MAX * (1.0 + 15.0 * rng.unit());
        let scales: Vec<f32> = (0..problem.num_scales()).map(scale).collect();
        let drawn = draw_dense(problem.dtype(), layout, &scales, seed, stream);
        if scales.is_empty() {
            return drawn;
        }
        drawn
            .with_scales(tensor, scales)
            .unwrap_or_else(|error| unreachable!("scales drawn for a problem fit it: {error}"))
    };
    Inputs {
        q: draw("q", layouts[0], 1).with_drawn_head_values(problem, seed),
        k: draw("k", layouts[1], 2),
        v: draw("v", layouts[2], 3),
        lengths: Lengths::default(),
        saved: dout.map(|dout| poisoned(problem, draw("dout", &dout, 4))),
    }
}

/// Inputs of lengths with these values, normal: the same in every process. Rows of no sequence are NaN. Rows of large
/// tensors are taken from one pool of numbers, each from another place: to draw them all takes minutes for a cache of a
/// thousand million elements. O and the log-sum-exp of a backward problem are poison, as [`draw`] leaves them.
///
/// # Errors
/// Values that contradict the problem.
pub fn draw_with(problem: &Problem, lengths: &Lengths<Vec<i32>>, seed: u64) -> Result<Inputs> {
    let layouts = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let dout = problem.gradient_layouts().map(|layouts| layouts.dout);
    let few = layouts.iter().map(|layout| layout.num_elements()).sum::<usize>() <= FEW_ELEMENTS;
    let dense = |layout: &Layout| *layout == Layout::bshd(layout.shape);
    let dense = layouts.into_iter().chain(&dout).all(dense);
    if few || !dense || problem.num_scales() > 0 {
        let inputs = Inputs::with_lengths_before_forward(problem, lengths.clone(), InputKind::Normal, seed)?;
        return Ok(inputs);
    }
    let sequences = problem.sequences(&lengths.as_slices())?;
    let is_used = |layout: &Layout, places: &mut dyn Iterator<Item = [usize; 2]>| {
        let mut used = vec![false; layout.shape[0] * layout.shape[1]];
        places.for_each(|[b, s]| used[b * layout.shape[1] + s] = true);
        used
    };
    let mut rows = sequences
        .iter()
        .flat_map(|one| (0..one.len_q).map(|row| one.q_row(row)));
    let of_q = is_used(layouts[0], &mut rows);
    let mut keys = sequences
        .iter()
        .flat_map(|one| (0..one.len_kv).filter_map(|key| one.kv_row(key)));
    let of_kv = is_used(layouts[1], &mut keys);
    let row = |layout: &&Layout| layout.shape[2] * layout.shape[3];
    let longest = layouts.iter().map(row).max().unwrap_or(1);
    let pool = Layout::bshd([1, 1, 1, POOL.max(longest)]);
    let pool = draw_dense(problem.dtype(), &pool, &[], seed, 9);
    let draw = |layout: &Layout, used: &[bool], stream: u64| draw_rows(&pool, *layout, used, seed ^ (stream << 56));
    Ok(Inputs {
        q: draw(layouts[0], &of_q, 1).with_drawn_head_values(problem, seed),
        k: draw(layouts[1], &of_kv, 2),
        v: draw(layouts[2], &of_kv, 3),
        lengths: lengths.clone(),
        saved: dout.map(|dout| poisoned(problem, draw(&dout, &of_q, 4))),
    })
}

/// What a backward pass reads besides Q, K and V, before there was a forward pass.
fn poisoned(problem: &Problem, dout: Tensor) -> Saved {
    Saved {
        out: Tensor::poisoned(problem.out_dtype(), *problem.o_layout()),
        lse: vec![f32::from_ne_bytes([POISON; 4]); problem.lse_len()],
        dout,
    }
}

/// A tensor whose used rows are parts of a pool, and whose other rows are NaN.
fn draw_rows(pool: &Tensor, layout: Layout, used: &[bool], seed: u64) -> Tensor {
    let size = pool.dtype().size_bytes();
    let row = layout.shape[2] * layout.shape[3];
    let mut tensor = Tensor::filled(pool.dtype(), layout, POISON);
    tensor
        .bytes_mut()
        .par_chunks_mut(row * size)
        .zip(used.par_iter())
        .enumerate()
        .filter(|(_, (_, is_used))| **is_used)
        .for_each(|(index, (bytes, _))| {
            let numbers = pool.bytes();
            let last = numbers.len() / size - row;
            let from = Rng::stream(seed, index as u64).below(last + 1) * size;
            bytes.copy_from_slice(&numbers[from..from + bytes.len()]);
        });
    tensor
}

/// A dense tensor of normal numbers, the same for any number of threads. Where there are scales, each number is divided
/// by the scale of its batch and head.
fn draw_dense(dtype: DType, layout: &Layout, scales: &[f32], seed: u64, stream: u64) -> Tensor {
    let mut tensor = Tensor::filled(dtype, *layout, 0);
    let size = dtype.size_bytes();
    let [batch, _, heads, _] = layout.shape;
    // In a dense tensor the offset determines the index.
    let along = |at: usize, dim: usize| at / (layout.strides[dim].max(1) as usize) % layout.shape[dim];
    let scale_heads = scales.len() / batch;
    let scale = |at: usize| scales[along(at, 0) * scale_heads + along(at, 2) * scale_heads / heads];
    tensor
        .bytes_mut()
        .par_chunks_mut(CHUNK * size)
        .enumerate()
        .for_each(|(index, bytes)| {
            let mut rng = Rng::stream(seed ^ (stream << 56), index as u64);
            let of_chunk = |i: usize| scale(index * CHUNK + i);
            let scaled: Option<&dyn Fn(usize) -> f32> = if scales.is_empty() { None } else { Some(&of_chunk) };
            fill_normal(dtype, bytes, &mut rng, scaled);
        });
    tensor
}

/// Expected outputs by seed, every element or some rows of them.
#[derive(Debug, Default)]
pub struct ExpectedOutputs {
    by_seed: BTreeMap<u64, Expected>,
}

impl ExpectedOutputs {
    /// Computes the output for the inputs of a seed.
    pub fn add(&mut self, problem: &Problem, seed: u64, inputs: &Inputs) -> Result<()> {
        self.by_seed.insert(seed, expected(problem, seed, inputs)?);
        Ok(())
    }

    /// Computes the outputs for several seeds, whose inputs `draw` makes. Small problems are computed in parallel,
    /// large ones one after the other, so that only one set of inputs is in memory.
    pub fn add_all(&mut self, problem: &Problem, seeds: &[u64], draw: impl Fn(u64) -> Inputs + Sync) -> Result<()> {
        let output = |&seed: &u64| Ok((seed, expected(problem, seed, &draw(seed))?));
        let outputs: Result<Vec<_>> = if is_small(problem) {
            seeds.par_iter().map(output).collect()
        } else {
            seeds.iter().map(output).collect()
        };
        self.by_seed.extend(outputs?);
        Ok(())
    }

    /// The output for a seed. For a seed that was not added it has no rows.
    pub fn of(&self, seed: u64) -> &Expected {
        static NONE: Expected = Expected::Forward(Vec::new());
        self.by_seed.get(&seed).unwrap_or(&NONE)
    }
}

fn is_small(problem: &Problem) -> bool {
    problem.flops() <= WHOLE_FLOPS
}

/// The expected output for inputs of a seed: every row of a small problem, otherwise rows that the seed draws.
pub fn expected(problem: &Problem, seed: u64, inputs: &Inputs) -> Result<Expected> {
    if problem.direction() == Direction::Backward {
        return Ok(Expected::Backward(right_gradients(problem, inputs, seed)?));
    }
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let lengths = &inputs.lengths.as_slices();
    let all = problem.query_rows(lengths)?;
    if is_small(problem) {
        let rows = reference_rows(problem, &q, &k, &v, lengths, &all)?;
        return Ok(Expected::Forward(rows));
    }
    let rows = if problem.has_lengths() {
        let between = all
            .chunks(1 + all.len() / (ROW_HEADS * ROWS_A_HEAD))
            .map(|rows| rows[0]);
        let sequences = problem.sequences(lengths)?;
        let step = 1 + sequences.len() / LAST_ROWS;
        let last = sequences
            .iter()
            .enumerate()
            .step_by(step)
            .filter(|(_, one)| one.len_q > 0);
        let last = last.map(|(b, one)| {
            let [first, second] = one.q_row(one.len_q - 1);
            [first, b % problem.num_heads(), second]
        });
        let mut rows: Vec<[usize; 3]> = between.chain(last).collect();
        rows.sort_unstable();
        rows.dedup();
        rows.into_iter().map(|row| vec![row]).collect()
    } else {
        sampled_rows(problem, seed)
    };
    // One head per task: converting its keys to float64 is most of the work.
    let found: Result<Vec<_>, _> = rows
        .par_iter()
        .map(|rows| reference_rows(problem, &q, &k, &v, lengths, rows))
        .collect();
    Ok(Expected::Forward(found?.concat()))
}

fn sampled_rows(problem: &Problem, seed: u64) -> Vec<Vec<[usize; 3]>> {
    let mut rng = Rng::stream(seed, 77);
    (0..ROW_HEADS)
        .map(|_| {
            let (b, h) = (rng.below(problem.batch()), rng.below(problem.num_heads()));
            let rows = some_of(problem.seq_len_q(), ROWS_A_HEAD, &mut rng).into_iter();
            rows.map(|row| [b, h, row]).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{Alibi, KvLengths};

    use super::*;
    use crate::stats::median;

    #[test]
    fn large_inputs_are_normal_and_differ_by_tensor_and_seed() {
        let problem = Problem::builder()
            .heads(8, 8)
            .seq_len(4096)
            .head_dim(64)
            .build()
            .unwrap();
        let (one, two) = (
            draw(&problem, InputKind::Normal, 1),
            draw(&problem, InputKind::Normal, 2),
        );
        assert_eq!(one.q.bytes(), draw(&problem, InputKind::Normal, 1).q.bytes());
        assert_ne!(one.q.bytes(), two.q.bytes());
        assert_ne!(one.q.bytes(), one.k.bytes());
        let values: Vec<f64> = (0..4096).map(|s| f64::from(one.v.view().get(0, s, 3, 5))).collect();
        assert!(median(&values).abs() < 0.1);
        let variance = values.iter().map(|x| x * x).sum::<f64>() / 4096.0;
        assert!((variance - 1.0).abs() < 0.1, "{variance}");
    }

    #[test]
    fn large_fp8_inputs_are_normal_under_their_scales() {
        for layout in [Layout::bshd, Layout::bhsd] {
            let build = Problem::builder().batch(3).heads(16, 4).seq_len(512).head_dim(128);
            let problem = build.dtype(DType::E4M3).layout(layout).build().unwrap();
            let inputs = draw(&problem, InputKind::Normal, 1);
            let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
            problem.check_inputs(&q, &k, &v).unwrap();
            assert!(q.scales().unwrap().windows(2).all(|w| w[0] != w[1]));
            for (tensor, heads) in [(q, 16), (k, 4), (v, 4)] {
                for (b, h) in (0..3).flat_map(|b| (0..heads).map(move |h| (b, h))) {
                    let values: Vec<f64> = (0..512).map(|s| tensor.value(b, s, h, (s * 7) % 128)).collect();
                    let variance = values.iter().map(|x| x * x).sum::<f64>() / 512.0;
                    assert!((variance - 1.0).abs() < 0.35, "{b} {h}: {variance}");
                }
            }
        }
    }

    #[test]
    fn large_inputs_have_the_sinks_and_slopes_of_their_problem() {
        let build = Problem::builder().heads(8, 8).seq_len(4096).head_dim(64);
        let build = build.sinks(Some(DType::BF16)).alibi(Some(Alibi::Heads));
        let dense = build.clone().build().unwrap();
        let cache = build.kv_lengths(KvLengths::Cache).build().unwrap();
        let lengths = Lengths {
            seqused_k: Some(vec![3000]),
            ..Lengths::default()
        };
        for (problem, inputs) in [
            (&dense, draw(&dense, InputKind::Normal, 1)),
            (&cache, draw_with(&cache, &lengths, 1).unwrap()),
        ] {
            let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
            problem.check_inputs(&q, &k, &v).unwrap();
            assert!(q.sinks().unwrap().windows(2).all(|w| w[0] != w[1]));
        }
    }

    #[test]
    fn outputs_of_several_seeds_are_those_of_each() {
        let small = Problem::named("tiny").unwrap();
        let large = Problem::builder()
            .heads(1, 1)
            .seq_len_q(64)
            .seq_len_kv(1 << 16)
            .head_dim(64)
            .build()
            .unwrap();
        for (problem, seeds) in [(small, vec![3, 9, 4]), (large, vec![2])] {
            let of_seed = |seed| draw(&problem, InputKind::Normal, seed);
            let (mut together, mut each) = (ExpectedOutputs::default(), ExpectedOutputs::default());
            together.add_all(&problem, &seeds, of_seed).unwrap();
            for &seed in &seeds {
                each.add(&problem, seed, &of_seed(seed)).unwrap();
            }
            let shown = |outputs: &ExpectedOutputs| format!("{:?}", outputs.by_seed);
            assert_eq!(together.by_seed.len(), seeds.len());
            assert_eq!(shown(&together), shown(&each));
        }
    }

    #[test]
    fn rows_of_a_large_problem_are_inside_it() {
        let problem = Problem::builder()
            .head_dim(64)
            .batch(3)
            .heads(4, 2)
            .seq_len_q(1)
            .seq_len_kv(50_000)
            .build()
            .unwrap();
        for rows in sampled_rows(&problem, 5) {
            assert_eq!(rows.len(), 1);
            assert!(rows[0][0] < 3 && rows[0][1] < 4 && rows[0][2] == 0);
        }
    }
}
