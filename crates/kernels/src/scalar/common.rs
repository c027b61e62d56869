//! What the rungs share: parameters and arguments, access widths, the score function, the epilogue.

use flashcore_ir::{
    Arg, BufferSpec, Cache, Element, GlobalPtr, KernelBuilder, Launch, SharedPtr, Source, Val, Var, Widen,
};
use flashcore_problem::{DType, Layout, Problem};

use super::Config;
use crate::Refusal;

/// log2(e): exponents are taken to base 2, so that exponentials are single `ex2` instructions.
pub(crate) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// What of a problem is baked into a kernel; all else is a launch argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub head_dim: u32,
    pub head_dim_v: u32,
    pub dtype: DType,
    pub softcap: bool,
    pub lse: bool,
    pub vector_bytes: u32,
}

impl Shape {
    pub(crate) fn new(problem: &Problem, vector_bytes: u32) -> Shape {
        Shape {
            head_dim: problem.head_dim() as u32,
            head_dim_v: problem.head_dim_v() as u32,
            dtype: problem.dtype(),
            softcap: problem.softcap().is_some(),
            lse: problem.return_lse(),
            vector_bytes,
        }
    }

    /// The kernel's entry name: the config's id and what else is baked in.
    pub(crate) fn kernel_name(&self, config: &Config) -> String {
        let id = config.id().replace('-', "_");
        let v = if self.head_dim_v == self.head_dim {
            String::new()
        } else {
            format!("v{}", self.head_dim_v)
        };
        let softcap = if self.softcap { "_softcap" } else { "" };
        let lse = if self.lse { "_lse" } else { "" };
        format!("scalar_{id}_{}_d{}{v}{softcap}{lse}", self.dtype, self.head_dim)
    }
}

/// Widths of memory accesses and what they need of strides.
pub(crate) struct Access;

impl Access {
    /// Bytes an access: the lever's values. 2 is for tensors whose rows start at odd halves.
    pub(crate) const WIDTHS: [u32; 4] = [16, 8, 4, 2];

    /// The widest access that the strides of all four tensors allow.
    pub(crate) fn widest(problem: &Problem) -> u32 {
        let element = problem.dtype().size_bytes() as u64;
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let fits = |bytes: u32| {
            layouts.iter().all(|layout| {
                row_strides(layout)
                    .iter()
                    .all(|&stride| (u64::from(stride) * element).is_multiple_of(u64::from(bytes)))
            })
        };
        let widths = Access::WIDTHS.into_iter().filter(|&bytes| u64::from(bytes) >= element);
        widths.clone().find(|&bytes| fits(bytes)).unwrap_or(element as u32)
    }

    pub(crate) fn check(problem: &Problem, config: &Config) -> Result<(), Refusal> {
        let (given, allowed) = (config.vector_bytes(), Access::widest(problem));
        if !Access::WIDTHS.contains(&given) || given < problem.dtype().size_bytes() as u32 {
            return Err(Refusal::Lever {
                lever: "vector_bytes",
                given,
                allowed: format!(
                    "16, 8, 4, 2, and not less than an element ({})",
                    problem.dtype().size_bytes()
                ),
            });
        }
        if given > allowed {
            return Err(Refusal::Alignment {
                given,
                allowed,
                suggestion: format!("scalar/{}", config.with_vector_bytes(allowed).id()),
            });
        }
        Ok(())
    }
}

/// Strides of batch, sequence and heads in elements; 0 where a dimension has one index and its stride is never used.
pub(crate) fn row_strides(layout: &Layout) -> [u32; 3] {
    let of = |dim: usize| {
        if layout.shape[dim] > 1 {
            layout.strides[dim] as u32
        } else {
            0
        }
    };
    [of(0), of(1), of(2)]
}

/// A tensor parameter: a pointer and its three outer strides in elements.
#[derive(Clone, Copy)]
pub(crate) struct TensorParam<'k, E> {
    base: GlobalPtr<'k, E>,
    batch_stride: Val<'k, u32>,
    seq_stride: Val<'k, u32>,
    head_stride: Val<'k, u32>,
}

impl<'k, E: Element> TensorParam<'k, E> {
    fn declare(k: &'k KernelBuilder, name: &str, base: GlobalPtr<'k, E>) -> Self {
        TensorParam {
            base,
            batch_stride: k.param(&format!("{name}_batch_stride")),
            seq_stride: k.param(&format!("{name}_seq_stride")),
            head_stride: k.param(&format!("{name}_head_stride")),
        }
    }

    /// The first row of a head.
    #[track_caller]
    pub(crate) fn head(&self, batch: Val<'k, u32>, head: Val<'k, u32>) -> GlobalPtr<'k, E> {
        self.base
            .offset_strided(batch, self.batch_stride)
            .offset_strided(head, self.head_stride)
    }

    /// A row of a head that starts at `head`.
    #[track_caller]
    pub(crate) fn row(&self, head: GlobalPtr<'k, E>, row: impl Source<'k, u32>) -> GlobalPtr<'k, E> {
        head.offset_strided(row, self.seq_stride)
    }
}

/// The parameters of every scalar kernel. [`launch`] gives the arguments in the same order.
pub(crate) struct Params<'k, E> {
    pub q: TensorParam<'k, E>,
    pub k: TensorParam<'k, E>,
    pub v: TensorParam<'k, E>,
    pub out: TensorParam<'k, E>,
    pub lse: Option<GlobalPtr<'k, f32>>,
    pub seq_len_q: Val<'k, u32>,
    pub seq_len_kv: Val<'k, u32>,
    pub num_heads: Val<'k, u32>,
    pub group_size: Val<'k, u32>,
    /// First and last visible key of row `i` are `i + key_lo` and `i + key_hi`, cut to the keys there are.
    pub key_lo: Val<'k, i32>,
    pub key_hi: Val<'k, i32>,
    /// Factor from scores to exponents of 2: `softmax_scale · log2(e)`, or `softcap · log2(e)`.
    exponent_scale: Val<'k, f32>,
    /// With soft cap: `softmax_scale / softcap`.
    softcap_scale: Option<Val<'k, f32>>,
}

impl<'k, E: Element> Params<'k, E> {
    pub(crate) fn declare(k: &'k KernelBuilder, shape: &Shape) -> Self {
        Params {
            q: TensorParam::declare(k, "q", k.param_ptr("q")),
            k: TensorParam::declare(k, "k", k.param_ptr("k")),
            v: TensorParam::declare(k, "v", k.param_ptr("v")),
            out: TensorParam::declare(k, "out", k.param_ptr_mut("out")),
            lse: shape.lse.then(|| k.param_ptr_mut("lse")),
            seq_len_q: k.param("seq_len_q"),
            seq_len_kv: k.param("seq_len_kv"),
            num_heads: k.param("num_heads"),
            group_size: k.param("group_size"),
            key_lo: k.param("key_lo"),
            key_hi: k.param("key_hi"),
            exponent_scale: k.param("exponent_scale"),
            softcap_scale: shape.softcap.then(|| k.param("softcap_scale")),
        }
    }

    /// The score of a key, not yet scaled, from the dot product of its row with the query's.
    #[track_caller]
    pub(crate) fn score(&self, dot: Val<'k, f32>) -> Val<'k, f32> {
        match self.softcap_scale {
            Some(scale) => tanh(dot * scale),
            None => dot,
        }
    }

    /// First visible key of a row, and one past the last (not below the first).
    #[track_caller]
    pub(crate) fn visible_keys(&self, row: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let row = row.reinterpret::<i32>();
        let end = (row + self.key_hi + 1).min(self.seq_len_kv.reinterpret::<i32>());
        let first = (row + self.key_lo).max(0);
        (first, end.max(first))
    }

    /// Stores the log-sum-exp of a row, in natural logarithms; −∞ where no key is visible.
    #[track_caller]
    pub(crate) fn store_lse(
        &self,
        batch_head: Val<'k, u32>,
        row: Val<'k, u32>,
        max: &RunningMax<'k>,
        sum: Val<'k, f32>,
    ) {
        if let Some(lse) = self.lse {
            let value = (sum.log2() - max.offset) * std::f32::consts::LN_2;
            let at = batch_head.fma(self.seq_len_q, row);
            lse.offset(at).store(sum.gt(0.0).select(value, f32::NEG_INFINITY));
        }
    }
}

/// The running maximum of a row's scores, and the exponent that it stands for.
///
/// Probabilities are `2^(score·scale + offset)` with `offset = −max·scale`, in one FMA: large scores
/// lose nothing to the rounding of their product. The offset is kept as it was rounded, so that going
/// from one to the next changes nothing but the scale.
#[derive(Clone, Copy)]
pub(crate) struct RunningMax<'k> {
    scale: Val<'k, f32>,
    max: Var<'k, f32>,
    offset: Var<'k, f32>,
}

impl<'k> RunningMax<'k> {
    #[track_caller]
    pub(crate) fn new<E: Element>(k: &'k KernelBuilder, params: &Params<'k, E>) -> Self {
        RunningMax {
            scale: params.exponent_scale,
            max: k.var(f32::NEG_INFINITY),
            offset: k.var(f32::MAX),
        }
    }

    /// Takes further scores into the maximum. Returns the factor for what was summed before: exactly 1
    /// where the maximum stays, 0 where nothing had been seen.
    #[track_caller]
    pub(crate) fn raise(&self, scores: Val<'k, f32>) -> Val<'k, f32> {
        self.max.max_assign(scores);
        // Finite even where no key has been seen: ∞ − ∞ is NaN.
        let offset = (-(self.max * self.scale)).min(f32::MAX);
        let rescale = (offset - self.offset).exp2();
        self.offset.set(offset);
        rescale
    }

    /// The probability of a score, not yet normalised: at most 1.
    #[track_caller]
    pub(crate) fn exp(&self, score: Val<'k, f32>) -> Val<'k, f32> {
        score.fma(self.scale, self.offset).exp2()
    }
}

/// `1/sum`, or 0 where no key was visible: such rows are zero.
#[track_caller]
pub(crate) fn normaliser<'k>(sum: Val<'k, f32>) -> Val<'k, f32> {
    sum.gt(0.0).select(sum.recip(), 0.0)
}

/// tanh from `ex2` and `rcp`: the hardware's `tanh.approx` is off by 2⁻¹¹, too coarse for f32.
///
/// Near zero `1 − 2/(e²ˣ + 1)` cancels, so there the Taylor series to x⁷ takes over (relative error
/// 6e-8 at its edge).
#[track_caller]
fn tanh<'k>(x: Val<'k, f32>) -> Val<'k, f32> {
    let k = x.builder();
    let power = (x * (2.0 * LOG2_E)).exp2();
    let far = (power + 1.0).recip().fma(-2.0, 1.0);
    let square = x * x;
    let series = square
        .fma(k.constant(-17.0 / 315.0), 2.0 / 15.0)
        .fma(square, -1.0 / 3.0)
        .fma(square, 1.0)
        * x;
    x.abs().lt(0.2).select(series, far)
}

/// Loads the elements of a row from global memory as f32.
#[track_caller]
pub(crate) fn load_row<'k, E: Widen>(at: GlobalPtr<'k, E>, count: u32, shape: &Shape) -> Vec<Val<'k, f32>> {
    at.load_f32s(count, shape.vector_bytes, Cache::ReadOnly)
}

/// Loads four neighbouring f32 from shared memory.
#[track_caller]
pub(crate) fn load4<'k>(at: SharedPtr<'k, f32>) -> [Val<'k, f32>; 4] {
    let values = at.load_words(4, Cache::Default);
    [values[0], values[1], values[2], values[3]]
}

/// The launch of a scalar kernel: arguments in the order of [`Params::declare`].
pub(crate) fn launch(problem: &Problem, shape: &Shape, blocks: usize, threads: u32, shared_bytes: u32) -> Launch {
    let bytes = |layout: &Layout| (layout.span() * problem.dtype().size_bytes()) as u64;
    let tensors = [
        ("q", problem.q_layout()),
        ("k", problem.k_layout()),
        ("v", problem.v_layout()),
        ("out", problem.o_layout()),
    ];
    let mut buffers = Vec::new();
    let mut args = Vec::new();
    for (name, layout) in tensors {
        args.push(Arg::Buffer {
            slot: buffers.len(),
            byte_offset: 0,
        });
        args.extend(row_strides(layout).map(Arg::U32));
        buffers.push(BufferSpec {
            name,
            bytes: bytes(layout),
            written: name == "out",
            align: shape.vector_bytes,
        });
    }
    if shape.lse {
        args.push(Arg::Buffer {
            slot: buffers.len(),
            byte_offset: 0,
        });
        buffers.push(BufferSpec {
            name: "lse",
            bytes: 4 * problem.lse_len() as u64,
            written: true,
            align: 4,
        });
    }
    let range = problem.key_range();
    args.extend([
        Arg::U32(problem.seq_len_q() as u32),
        Arg::U32(problem.seq_len_kv() as u32),
        Arg::U32(problem.num_heads() as u32),
        Arg::U32(problem.group_size() as u32),
        Arg::I32(range.lo),
        Arg::I32(range.hi),
    ]);
    args.push(Arg::F32(problem.softcap().unwrap_or(problem.softmax_scale()) * LOG2_E));
    args.extend(problem.softcap().map(|cap| Arg::F32(problem.softmax_scale() / cap)));
    Launch {
        grid: [blocks as u32, 1, 1],
        block: [threads, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: shared_bytes,
        buffers,
        args,
    }
}
