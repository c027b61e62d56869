//! What every family shares: the shape baked into a kernel, its parameters, and the arguments of a launch.

use std::ops::Deref;

use flashcore_ir::{Arg, BufferSpec, Element, GlobalPtr, KernelBuilder, Launch, Source, Val};
use flashcore_problem::{DType, Layout, Problem};

use crate::Config;
use crate::parts::Parts;
use crate::softmax::{LOG2_E, tanh};
use crate::stage::{self, StageParams, StopAfter};

/// What of a problem is baked into a kernel; all else is a launch argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub head_dim: u32,
    pub head_dim_v: u32,
    pub dtype: DType,
    pub softcap: bool,
    pub lse: bool,
    pub vector_bytes: u32,
    /// The stage that the build stops after, if it is not the whole.
    pub stop_after: Option<StopAfter>,
    /// Whether blocks share out the keys of a row and leave [parts](crate::parts) of its answer.
    pub split: bool,
}

impl Shape {
    pub(crate) fn new(problem: &Problem, vector_bytes: u32, stop_after: Option<StopAfter>) -> Shape {
        Shape {
            head_dim: problem.head_dim() as u32,
            head_dim_v: problem.head_dim_v() as u32,
            dtype: problem.dtype(),
            softcap: problem.softcap().is_some(),
            lse: problem.return_lse() && stop_after.is_none(),
            vector_bytes,
            stop_after,
            split: false,
        }
    }

    /// Whether the kernel leaves parts in place of an answer: it is split, and does not stop before there are any.
    pub(crate) fn leaves_parts(&self) -> bool {
        self.split && self.stop_after.is_none()
    }

    /// The kernel's entry name: the config's id and what else is baked in.
    pub(crate) fn kernel_name(&self, config: &Config) -> String {
        let id = config.to_string().replace(['/', '-'], "_");
        let v = if self.head_dim_v == self.head_dim {
            String::new()
        } else {
            format!("v{}", self.head_dim_v)
        };
        let softcap = if self.softcap { "_softcap" } else { "" };
        let lse = if self.lse { "_lse" } else { "" };
        let split = if self.split { "_split" } else { "" };
        let stage = self.stop_after.map_or(String::new(), |stage| format!("_{stage}"));
        format!("{id}_{}_d{}{v}{softcap}{lse}{split}{stage}", self.dtype, self.head_dim)
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
    pub seq_stride: Val<'k, u32>,
    head_stride: Val<'k, u32>,
}

impl<'k, E: Element> TensorParam<'k, E> {
    pub(crate) fn declare(k: &'k KernelBuilder, name: &str, base: GlobalPtr<'k, E>) -> Self {
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

/// The parameters of kernels that read and write tensors by address; what is not tensors by [`Deref`].
/// [`launch`] gives the arguments in the same order.
pub(crate) struct Params<'k, E> {
    pub q: TensorParam<'k, E>,
    pub k: TensorParam<'k, E>,
    pub v: TensorParam<'k, E>,
    pub out: TensorParam<'k, E>,
    rows: RowParams<'k>,
    /// Where a kernel that is split leaves its parts, in place of `out` and `lse`.
    pub parts: Option<Parts<'k>>,
}

impl<'k, E> Deref for Params<'k, E> {
    type Target = RowParams<'k>;

    fn deref(&self) -> &RowParams<'k> {
        &self.rows
    }
}

/// The parameters of every attention kernel after its tensors. [`add_rows`] gives the arguments in the same order.
pub(crate) struct RowParams<'k> {
    pub lse: Option<GlobalPtr<'k, f32>>,
    pub seq_len_q: Val<'k, u32>,
    pub seq_len_kv: Val<'k, u32>,
    pub num_heads: Val<'k, u32>,
    pub group_size: Val<'k, u32>,
    /// First and last visible key of row `i` are `i + key_lo` and `i + key_hi`, cut to the keys there are.
    pub key_lo: Val<'k, i32>,
    pub key_hi: Val<'k, i32>,
    /// Factor from scores to exponents of 2: `softmax_scale · log2(e)`, or `softcap · log2(e)`.
    pub exponent_scale: Val<'k, f32>,
    /// With soft cap: `softmax_scale / softcap`.
    softcap_scale: Option<Val<'k, f32>>,
    /// Where a build that stops after a stage stores it.
    pub stage: Option<StageParams<'k>>,
}

impl<'k, E: Element> Params<'k, E> {
    pub(crate) fn declare(k: &'k KernelBuilder, shape: &Shape) -> Self {
        Params {
            q: TensorParam::declare(k, "q", k.param_ptr("q")),
            k: TensorParam::declare(k, "k", k.param_ptr("k")),
            v: TensorParam::declare(k, "v", k.param_ptr("v")),
            out: TensorParam::declare(k, "out", k.param_ptr_mut("out")),
            rows: RowParams::declare(k, shape),
            parts: shape.leaves_parts().then(|| Parts::to_write(k, shape.head_dim_v)),
        }
    }
}

impl<'k> RowParams<'k> {
    pub(crate) fn declare(k: &'k KernelBuilder, shape: &Shape) -> Self {
        RowParams {
            lse: shape.lse.then(|| k.param_ptr_mut("lse")),
            seq_len_q: k.param("seq_len_q"),
            seq_len_kv: k.param("seq_len_kv"),
            num_heads: k.param("num_heads"),
            group_size: k.param("group_size"),
            key_lo: k.param("key_lo"),
            key_hi: k.param("key_hi"),
            exponent_scale: k.param("exponent_scale"),
            softcap_scale: shape.softcap.then(|| k.param("softcap_scale")),
            stage: shape.stop_after.map(|stop| StageParams::declare(k, stop)),
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
        offset: Val<'k, f32>,
        sum: Val<'k, f32>,
    ) {
        if let Some(lse) = self.lse {
            let value = log_sum_exp(offset, sum);
            lse.offset(batch_head.fma(self.seq_len_q, row)).store(value);
        }
    }
}

/// The log-sum-exp of a row in natural logarithms, from its offset and sum; −∞ where no key is visible.
#[track_caller]
pub(crate) fn log_sum_exp<'k>(offset: Val<'k, f32>, sum: Val<'k, f32>) -> Val<'k, f32> {
    let value = (sum.log2() - offset) * std::f32::consts::LN_2;
    sum.gt(0.0).select(value, f32::NEG_INFINITY)
}

/// The launch of a kernel: arguments in the order of [`Params::declare`], but for those of parts.
pub(crate) fn launch(problem: &Problem, shape: &Shape, blocks: usize, threads: u32, shared_bytes: u32) -> Launch {
    let mut launch = Launch {
        grid: [blocks as u32, 1, 1],
        block: [threads, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: shared_bytes,
        buffers: Vec::new(),
        args: Vec::new(),
    };
    add_tensor(&mut launch, problem, shape, "q", problem.q_layout());
    add_tensor(&mut launch, problem, shape, "k", problem.k_layout());
    add_tensor(&mut launch, problem, shape, "v", problem.v_layout());
    add_tensor(&mut launch, problem, shape, "out", problem.o_layout());
    add_rows(&mut launch, problem, shape);
    launch
}

/// Adds the arguments of [`RowParams`].
pub(crate) fn add_rows(launch: &mut Launch, problem: &Problem, shape: &Shape) {
    if shape.lse {
        add_lse(launch, problem);
    }
    let range = stage::key_range(problem, shape.stop_after);
    launch.args.extend([
        Arg::U32(problem.seq_len_q() as u32),
        Arg::U32(problem.seq_len_kv() as u32),
        Arg::U32(problem.num_heads() as u32),
        Arg::U32(problem.group_size() as u32),
        Arg::I32(range.lo),
        Arg::I32(range.hi),
    ]);
    let exponent_scale = problem.softcap().unwrap_or(problem.softmax_scale()) * LOG2_E;
    launch.args.push(Arg::F32(exponent_scale));
    let softcap_scale = problem.softcap().map(|cap| Arg::F32(problem.softmax_scale() / cap));
    launch.args.extend(softcap_scale);
    if let Some(stop) = shape.stop_after {
        stage::extend_launch(launch, problem, stop);
    }
}

/// Adds a tensor and the arguments of its [`TensorParam`].
pub(crate) fn add_tensor(launch: &mut Launch, problem: &Problem, shape: &Shape, name: &'static str, layout: &Layout) {
    let slot = launch.buffers.len();
    launch.args.push(Arg::Buffer { slot, byte_offset: 0 });
    launch.args.extend(row_strides(layout).map(Arg::U32));
    launch.buffers.push(BufferSpec {
        name,
        bytes: (layout.span() * problem.dtype().size_bytes()) as u64,
        written: name == "out",
        align: shape.vector_bytes,
    });
}

/// Adds the log-sum-exp.
pub(crate) fn add_lse(launch: &mut Launch, problem: &Problem) {
    let slot = launch.buffers.len();
    launch.args.push(Arg::Buffer { slot, byte_offset: 0 });
    launch.buffers.push(BufferSpec {
        name: "lse",
        bytes: 4 * problem.lse_len() as u64,
        written: true,
        align: 4,
    });
}
