//! What every backward kernel shares: its parameters, the statistics of query rows, and the kernel that prepares them.
//!
//! For each query row the workspace has the log-sum-exp as an exponent of 2 and `Δ = rowsum(dO ∘ O)`, f32, of all rows in
//! one array each. Rows are padded: those of a sequence begin at a multiple of [`PADDING`], and up to the next multiple
//! after its last row they are defined, so that a main loop reads whole tiles without a condition. A row that is not
//! there, and one that sees no key, has a log-sum-exp of +∞ and Δ = 0: with any finite score P is 0, and so is
//! `P·(dP − Δ)`. Nothing else may be a NaN then: tiles of Q and dO have zeros past the last row.
//!
//! | lengths of Q | place of row `i` of sequence `b` and head `h` |
//! |---|---|
//! | equal | `(b·heads + h)·stride + i`, `stride` = rows, rounded up |
//! | packed | `h·stride + (first + b·PADDING)/PADDING·PADDING + i`, `stride` = total, rounded up, `+ batch·PADDING` |

use flashcore_ir::{Arg, Cache, Element, GlobalPtr, Kernel, KernelBuilder, Launch, Val, Widen};
use flashcore_problem::{DType, GradientLayouts, Layout, Problem, QLengths};
use half::{bf16, f16};

use super::lengths::{FirstRows, TensorParam};
use super::params::{RowParams, Shape, add_rows, add_tensor_as, grid, push_buffer};
use super::score_mod::{LOG2_E, ScoreMod};
use super::split::ALIGN;
use crate::Refusal;
use crate::family::{Values, with};
use crate::step::{Identity, KernelCache, Step};

/// What rows of the statistics are padded to: a multiple of every tile's rows.
pub(crate) const PADDING: u32 = 128;

/// Threads that share a row where statistics are prepared, and elements that one of them loads at a time.
const ROW_THREADS: u32 = 16;
const CHUNK: u32 = 8;

/// Warps of the kernel that prepares them.
const WARPS: u32 = 8;

/// Rows of the statistics from one head to the next, and of all.
fn padded_rows(problem: &Problem) -> (usize, usize) {
    let padding = PADDING as usize;
    match problem.q_lengths() {
        QLengths::Equal => {
            let rows = problem.seq_len_q().next_multiple_of(padding);
            (rows, rows * problem.batch() * problem.num_heads())
        }
        QLengths::Packed { total, .. } => {
            let rows = total.next_multiple_of(padding) + problem.batch() * padding;
            (rows, rows * problem.num_heads())
        }
    }
}

/// The statistics of query rows. [`Statistics::add_to_launch`] gives the arguments in the same order.
#[derive(Clone, Copy)]
pub(crate) struct Statistics<'k> {
    lse: GlobalPtr<'k, f32>,
    delta: GlobalPtr<'k, f32>,
    stride: Val<'k, u32>,
}

impl<'k> Statistics<'k> {
    pub(crate) fn to_read(k: &'k KernelBuilder) -> Self {
        Statistics {
            lse: k.param_ptr("row_lse"),
            delta: k.param_ptr("row_delta"),
            stride: k.param("statistics_stride"),
        }
    }

    fn to_write(k: &'k KernelBuilder) -> Self {
        Statistics {
            lse: k.param_ptr_mut("row_lse"),
            delta: k.param_ptr_mut("row_delta"),
            stride: k.param("statistics_stride"),
        }
    }

    pub(crate) fn add_to_launch(launch: &mut Launch, problem: &Problem, written: bool) {
        let (stride, all) = padded_rows(problem);
        let slot = push_buffer(launch, "workspace", 8 * all, ALIGN, written);
        let pointers = [0, 4 * all as u64].map(|byte_offset| Arg::Buffer { slot, byte_offset });
        launch.args.extend(pointers);
        launch.args.push(Arg::U32(stride as u32));
    }

    /// Those of a head of a sequence, whose first row is at the start.
    #[track_caller]
    pub(crate) fn of_head(
        self,
        num_heads: Val<'k, u32>,
        batch: Val<'k, u32>,
        head: Val<'k, u32>,
        first: FirstRows<'k>,
    ) -> Self {
        let (lse, delta) = (self.lse, self.delta);
        let (lse, delta) = match first.q {
            None => {
                let head = batch.fma(num_heads, head);
                (
                    lse.offset_strided(head, self.stride),
                    delta.offset_strided(head, self.stride),
                )
            }
            Some(first) => {
                let first = (first + batch * PADDING) / PADDING * PADDING;
                let of_head = |at: GlobalPtr<'k, f32>| at.offset_strided(head, self.stride).offset(first);
                (of_head(lse), of_head(delta))
            }
        };
        Statistics { lse, delta, ..self }
    }

    /// Log-sum-exp and Δ of a row.
    #[track_caller]
    pub(crate) fn load(&self, row: Val<'k, u32>) -> [Val<'k, f32>; 2] {
        [self.lse, self.delta].map(|at| at.offset(row).load_with(Cache::ReadOnly))
    }
}

/// The parameters that every main kernel of a backward pass has, but for what it writes.
#[derive(Clone)]
pub(crate) struct BackwardParams<'k, E> {
    pub q: TensorParam<'k, E>,
    pub k: TensorParam<'k, E>,
    pub v: TensorParam<'k, E>,
    pub dout: TensorParam<'k, E>,
    pub statistics: Statistics<'k>,
    pub softmax_scale: Val<'k, f32>,
    pub rows: RowParams<'k>,
    /// Where the sequence begins, after [`BackwardParams::of_sequence`].
    pub first: FirstRows<'k>,
}

impl<'k, E: Element> BackwardParams<'k, E> {
    pub(crate) fn declare(k: &'k KernelBuilder, shape: &Shape) -> Self {
        BackwardParams {
            q: TensorParam::declare(k, "q", k.param_ptr("q")),
            k: TensorParam::declare(k, "k", k.param_ptr("k")),
            v: TensorParam::declare(k, "v", k.param_ptr("v")),
            dout: TensorParam::declare(k, "dout", k.param_ptr("dout")),
            statistics: Statistics::to_read(k),
            softmax_scale: k.param("softmax_scale"),
            rows: RowParams::declare(k, shape),
            first: FirstRows { q: None, k: None },
        }
    }

    /// The parameters as they are for a sequence.
    #[track_caller]
    pub(crate) fn of_sequence(self, batch: Val<'k, u32>) -> Self {
        let (rows, first) = self.rows.of_sequence(batch);
        BackwardParams {
            q: self.q.starting_at(first.q),
            dout: self.dout.starting_at(first.q),
            k: self.k.starting_at(first.k),
            v: self.v.starting_at(first.k),
            rows,
            first,
            ..self
        }
    }

    /// P and dS, the gradient of a score before it was scaled and capped but for the scale, from the products
    /// `q·k` and `dO·v`.
    #[track_caller]
    pub(crate) fn differentiate(
        &self,
        dot: Val<'k, f32>,
        dp: Val<'k, f32>,
        [lse, delta]: [Val<'k, f32>; 2],
    ) -> (Val<'k, f32>, Val<'k, f32>) {
        let score_mod: &ScoreMod<'k> = &self.rows.score_mod;
        let score = score_mod.score(dot);
        let p = score.fma(score_mod.exponent_scale, -lse).exp2();
        let ds = p * (dp - delta);
        match score_mod.slope(score) {
            Some(slope) => (p, ds * slope),
            None => (p, ds),
        }
    }
}

/// The launch of a main kernel: arguments in the order of [`BackwardParams::declare`], then those of the gradients
/// that it writes.
pub(crate) fn launch(
    problem: &Problem,
    shape: &Shape,
    kernel: &Kernel,
    grid: [u32; 3],
    written: impl Fn(&GradientLayouts) -> Vec<(&'static str, Layout)>,
) -> Launch {
    let mut launch = Launch::of(kernel, grid);
    let align = shape.vector_bytes;
    add_tensor_as(&mut launch, problem, align, "q", problem.q_layout(), false);
    add_tensor_as(&mut launch, problem, align, "k", problem.k_layout(), false);
    add_tensor_as(&mut launch, problem, align, "v", problem.v_layout(), false);
    if let Some(layouts) = problem.gradient_layouts() {
        add_tensor_as(&mut launch, problem, align, "dout", &layouts.dout, false);
    }
    Statistics::add_to_launch(&mut launch, problem, false);
    launch.args.push(Arg::F32(problem.softmax_scale()));
    add_rows(&mut launch, problem, shape);
    for (name, layout) in problem.gradient_layouts().into_iter().flat_map(written) {
        add_tensor_as(&mut launch, problem, align, name, &layout, true);
    }
    launch
}

/// The step that prepares the [statistics](self) from O, dO and the log-sum-exp.
pub(crate) fn preprocess(problem: &Problem, shape: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
    // Nothing of it depends on Q, or on how scores come about.
    let shape = Shape {
        head_dim: shape.head_dim_v,
        softcap: false,
        ..*shape
    };
    let (family, levers) = ("backward preprocess", with(&Values::default(), 0, shape.vector_bytes));
    let kernel = kernels.get_or_build(Identity { family, levers, shape }, |_, shape| {
        let name = shape.kernel_name(&format!("backward_preprocess_v{}", shape.vector_bytes));
        Kernel::build(name, 32 * WARPS, |k| match shape.dtype {
            DType::F32 => prepare::<f32>(k, shape),
            DType::F16 => prepare::<f16>(k, shape),
            DType::BF16 | DType::E4M3 => prepare::<bf16>(k, shape),
        })
    })?;
    let tiles = problem.seq_len_q().div_ceil(PADDING as usize);
    let blocks = tiles * problem.num_heads() * problem.batch();
    let mut launch = Launch::of(&kernel, grid("backward", [blocks, 1, 1])?);
    let align = shape.vector_bytes;
    add_tensor_as(&mut launch, problem, align, "out", problem.o_layout(), false);
    if let Some(layouts) = problem.gradient_layouts() {
        add_tensor_as(&mut launch, problem, align, "dout", &layouts.dout, false);
    }
    let slot = push_buffer(&mut launch, "lse", 4 * problem.lse_len(), 4, false);
    launch.args.push(Arg::Buffer { slot, byte_offset: 0 });
    Statistics::add_to_launch(&mut launch, problem, true);
    add_rows(&mut launch, problem, &shape);
    Ok(Step { kernel, launch })
}

/// A block prepares [`PADDING`] rows of a head, sixteen threads a row.
fn prepare<E: Widen>(k: &KernelBuilder, shape: &Shape) {
    let out = TensorParam::<E>::declare(k, "out", k.param_ptr("out"));
    let dout = TensorParam::<E>::declare(k, "dout", k.param_ptr("dout"));
    let lse = k.param_ptr::<f32>("lse");
    let statistics = Statistics::to_write(k);
    let params = RowParams::declare(k, shape);

    let tiles = (params.seq_len_q + (PADDING - 1)) / PADDING;
    let (tile, batch_head) = (k.block_idx(0) % tiles, k.block_idx(0) / tiles);
    let (batch, head) = (batch_head / params.num_heads, batch_head % params.num_heads);
    let (params, first) = params.of_sequence(batch);
    let (out, dout) = (out.starting_at(first.q), dout.starting_at(first.q));
    let statistics = statistics.of_head(params.num_heads, batch, head, first);
    let (out_head, dout_head) = (out.head(batch, head), dout.head(batch, head));
    let lse_head = params.lse_of_head(lse, batch_head, first);

    let first_row = tile * PADDING;
    let (thread_row, thread_col) = (k.thread_idx() / ROW_THREADS, k.thread_idx() % ROW_THREADS);
    params.if_has_row(first_row, params.seq_len_q, || {
        let rows_at_once = 32 * WARPS / ROW_THREADS;
        k.for_uniform(0u32, PADDING, rows_at_once, |i| {
            let row = first_row + i + thread_row;
            let is_row = row.lt(params.seq_len_q);
            // A row that is not there has those of one that sees no key.
            let (sum, row_lse) = (k.var(0.0), k.var(f32::INFINITY));
            k.if_(is_row.divergent(), || {
                let (out, dout) = (out.row(out_head, row), dout.row(dout_head, row));
                k.for_divergent(thread_col * CHUNK, shape.head_dim_v, ROW_THREADS * CHUNK, |column| {
                    let [out, dout] = [out, dout].map(|row| {
                        let chunk = row.offset(column);
                        chunk.load_f32s(CHUNK, shape.vector_bytes, Cache::ReadOnly)
                    });
                    out.into_iter().zip(dout).for_each(|(o, d)| sum.fma_assign(o, d));
                });
                let natural = lse_head.offset(row).load_with(Cache::ReadOnly);
                // A NaN stays one.
                let sees_none = natural.lt(f32::MIN);
                row_lse.set(sees_none.select(f32::INFINITY, natural * LOG2_E));
            });
            let delta = sum.get().reduce_sum(ROW_THREADS);
            k.if_(thread_col.eq(0).divergent(), || {
                statistics.lse.offset(row).store(row_lse.get());
                statistics.delta.offset(row).store(delta);
            });
        });
    });
}
