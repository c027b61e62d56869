//! What every family shares: the shape baked into a kernel, and its parameters.

use std::ops::Deref;

use flashcore_ir::{Element, GlobalPtr, KernelBuilder, Target, Val};
use flashcore_problem::{DType, Direction, KeyRange, Lengths, Name, Problem};

use super::block_range::Band;
use super::epilogue::Sinks;
use super::forward::Forward;
use super::lengths::{LengthKinds, LengthParams, TensorParam, kinds, row_strides};
use super::query_rows::Packing;
use super::score_mod::ScoreMod;
use super::split::Partials;
use super::tap::{self, Tap, TapParams};
use crate::args::{Args, Request};
use crate::{Refusal, refuse};

/// Alignment of addresses and strides in bytes for kernels whose asynchronous copies move 16 bytes each.
pub const ALIGNMENT: u32 = 16;

/// Elements that tensor cores multiply on every target from sm_80 on.
pub(crate) const SIXTEEN_BITS: [DType; 2] = [DType::F16, DType::BF16];

/// What of a problem is baked into a kernel; all else is a launch argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub head_dim: u32,
    pub head_dim_v: u32,
    pub dtype: DType,
    pub softcap: bool,
    pub alibi: bool,
    /// Dtype of the sinks, if the kernel adds them.
    pub sinks: Option<DType>,
    pub lse: bool,
    pub vector_bytes: u32,
    /// What the build stores in addition to its output.
    pub tap: Option<Tap>,
    /// Whether blocks share the keys of a row and leave [partials](super::split) of its output.
    pub split: bool,
    /// Whether blocks take their work from a [schedule](super::stream_k), and leave partials of tiles in pieces.
    pub listed: bool,
    /// Rows of the boxes in which pages are copied, if they are.
    pub page_rows: u32,
    /// Query heads that share a tile, where the kernel is made for their number.
    pub packing: Packing,
    /// Whether the launches of its plan [overlap](Shape::overlapping).
    pub overlaps: bool,
    pub lengths: LengthKinds,
}

impl Shape {
    pub(crate) fn new(problem: &Problem, vector_bytes: u32, tap: Option<Tap>) -> Shape {
        Shape {
            head_dim: problem.head_dim() as u32,
            head_dim_v: problem.head_dim_v() as u32,
            dtype: problem.dtype(),
            softcap: problem.softcap().is_some(),
            alibi: problem.alibi().is_some(),
            sinks: problem.sinks(),
            // A backward pass reads it, in its first step.
            lse: problem.return_lse() && tap.is_none() && problem.direction() == Direction::Forward,
            vector_bytes,
            tap,
            ..Shape::of_lengths(kinds(problem))
        }
    }

    /// The shape of a kernel that reads lengths and no tensors.
    pub(crate) fn of_lengths(lengths: LengthKinds) -> Shape {
        Shape {
            head_dim: 0,
            head_dim_v: 0,
            dtype: DType::F32,
            softcap: false,
            alibi: false,
            sinks: None,
            lse: false,
            vector_bytes: 4,
            tap: None,
            split: false,
            listed: false,
            page_rows: 0,
            packing: Packing::NONE,
            overlaps: false,
            lengths,
        }
    }

    /// Lets the launches of a plan overlap, if it has `several`: each begins while the one before it runs, and waits
    /// for that one's end itself, which hides the latency of a launch. Programmatic dependent launch (CUDA C++
    /// Programming Guide); not every target has it.
    pub(crate) fn overlapping(self, several: bool, target: Target) -> Shape {
        Shape {
            overlaps: several && target.limits().cluster_blocks > 1,
            ..self
        }
    }

    /// Waits for the end of the launch before this one, whose writes are visible then.
    #[track_caller]
    pub(crate) fn wait_for_launch_before(&self, k: &KernelBuilder) {
        if self.overlaps {
            k.dependency_wait();
        }
    }

    /// Lets the next launch begin. It waits itself for the end of this one.
    #[track_caller]
    pub(crate) fn begin_next_launch(&self, k: &KernelBuilder) {
        if self.overlaps {
            k.dependency_trigger();
        }
    }

    /// The shape of a main kernel in a plan of `splits` splits. If there are several, sinks and log-sum-exp are left to
    /// `combine`.
    pub(crate) fn in_splits(self, splits: u32) -> Shape {
        let split = splits > 1;
        Shape {
            split,
            lse: self.lse && !split,
            sinks: self.sinks.filter(|_| !split),
            ..self
        }
    }

    /// Whether elements have 8 bits: tensors then have a scale for each head, and V is transposed in the workspace by a
    /// launch before the main one, as operands of products must be.
    pub(crate) fn is_fp8(&self) -> bool {
        self.dtype == DType::E4M3
    }

    /// The kernel's entry name: the config's id and what else is baked in.
    pub(crate) fn kernel_name(&self, id: &str) -> String {
        let id = id.replace(['/', '-'], "_");
        let head_dims = self.head_dims_name();
        let softcap = if self.softcap { "_softcap" } else { "" };
        let alibi = if self.alibi { "_alibi" } else { "" };
        let sinks = self.sinks_name();
        let lse = if self.lse { "_lse" } else { "" };
        let split = if self.split { "_split" } else { "" };
        let packed = match self.packing {
            Packing::NONE => String::new(),
            packing if packing.spans_warpgroups() => format!("_g{}t", packing.heads()),
            packing => format!("_g{}", packing.heads()),
        };
        let tap = self.tap.map_or(String::new(), |tap| format!("_{tap}"));
        let listed = if self.listed { "_listed" } else { "" };
        let (lengths, overlaps) = (self.lengths_name(), self.overlaps_name());
        let pages = match self.page_rows {
            0 => String::new(),
            rows => format!("_p{rows}"),
        };
        format!(
            "{id}_{}_{head_dims}{softcap}{alibi}{sinks}{lse}{split}{packed}{listed}{lengths}{pages}{overlaps}{tap}",
            self.dtype
        )
    }

    /// The head sizes in a kernel's entry name: `d192v128`, or `d128` where they are the same.
    pub(crate) fn head_dims_name(&self) -> String {
        if self.head_dim_v == self.head_dim {
            format!("d{}", self.head_dim)
        } else {
            format!("d{}v{}", self.head_dim, self.head_dim_v)
        }
    }

    /// The sinks in a kernel's entry name.
    pub(crate) fn sinks_name(&self) -> String {
        self.sinks.map_or(String::new(), |dtype| format!("_sinks_{dtype}"))
    }

    /// In a kernel's entry name, that its launch overlaps with others.
    pub(crate) fn overlaps_name(&self) -> &'static str {
        if self.overlaps { "_overlaps" } else { "" }
    }

    /// The lengths in a kernel's entry name.
    pub(crate) fn lengths_name(&self) -> String {
        let names = Lengths::<()>::NAMES.into_iter();
        let names = names.filter(|name| self.lengths.named(name).is_some());
        names.map(|name| format!("_{name}")).collect()
    }
}

/// The parameters of kernels that read and write tensors by address; what is not tensors by [`Deref`].
#[derive(Clone)]
pub(crate) struct Params<'k, E> {
    pub q: TensorParam<'k, E>,
    pub k: TensorParam<'k, E>,
    pub v: TensorParam<'k, E>,
    pub out: TensorParam<'k, E>,
    pub(super) rows: RowParams<'k>,
    /// Where partials go: those of all rows in a split kernel, those of tiles in pieces in a listed one.
    pub partials: Option<Partials<'k>>,
}

impl<'k, E> Deref for Params<'k, E> {
    type Target = RowParams<'k>;

    fn deref(&self) -> &RowParams<'k> {
        &self.rows
    }
}

/// The parameters of every attention kernel after its tensors.
#[derive(Clone)]
pub(crate) struct RowParams<'k> {
    pub lse: Option<GlobalPtr<'k, f32>>,
    /// Rows of a head in `lse` where they are packed; else those of the sequence.
    pub(super) lse_rows: Option<Val<'k, u32>>,
    /// Lengths of the sequence; before [`Params::of_sequence`], their bounds.
    pub seq_len_q: Val<'k, u32>,
    pub seq_len_kv: Val<'k, u32>,
    pub num_heads: Val<'k, u32>,
    pub group_size: Val<'k, u32>,
    /// The keys that rows see.
    pub band: Band<Val<'k, i32>>,
    pub score_mod: ScoreMod<'k>,
    /// Of Q, K, V and P.
    pub dtype: DType,
    pub(super) sinks: Option<Sinks<'k>>,
    /// Where a build with a tap stores it.
    pub tap: Option<TapParams<'k>>,
    pub(super) lengths: Option<LengthParams<'k>>,
}

impl<'k, E: Element> Params<'k, E> {
    pub(crate) fn declare(k: &'k Args<'k, Forward>, shape: &Shape) -> Self {
        let align = shape.vector_bytes;
        Params {
            q: k.reads(Name::Q, align),
            k: k.reads(Name::K, align),
            v: k.reads(Name::V, align),
            out: k.writes(Name::Out, align),
            rows: RowParams::declare(k, shape),
            partials: (shape.split || shape.listed).then(|| Partials::declare(k, shape.head_dim_v, true)),
        }
    }
}

impl<'k> RowParams<'k> {
    pub(crate) fn declare<R: Request>(k: &'k Args<'k, R>, shape: &Shape) -> Self {
        let lse = shape.lse.then(|| declare_lse(k));
        let seq_len_q = k.count("seq_len_q", Problem::seq_len_q);
        let seq_len_kv = k.count("seq_len_kv", Problem::seq_len_kv);
        let tap = shape.tap;
        RowParams {
            lse,
            lse_rows: None,
            seq_len_q,
            seq_len_kv,
            num_heads: k.count("num_heads", Problem::num_heads),
            group_size: k.count("group_size", Problem::group_size),
            band: Band {
                lo: k.number("key_lo", move |request| key_range(request.problem(), tap).lo),
                hi: k.number("key_hi", move |request| key_range(request.problem(), tap).hi),
                len: seq_len_kv.reinterpret(),
            },
            score_mod: ScoreMod::declare(k, shape),
            dtype: shape.dtype,
            sinks: shape.sinks.map(|dtype| Sinks::declare(k, dtype)),
            tap: shape.tap.map(|tap| TapParams::declare(k, tap)),
            lengths: LengthParams::declare(k, shape.lengths),
        }
    }

    /// First visible key of a row, and one past the last (not below the first).
    #[track_caller]
    pub(crate) fn visible_keys(&self, row: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        self.band.visible(row.reinterpret())
    }
}

/// The log-sum-exp that a kernel stores.
pub(crate) fn declare_lse<'k, R: Request>(k: &'k Args<'k, R>) -> GlobalPtr<'k, f32> {
    k.output("lse", 4, |request| request.problem().lse_len())
}

/// The keys that rows see, as arguments say it. A sequence adds what depends on its lengths.
pub(super) fn key_range(problem: &Problem, tap: Option<Tap>) -> KeyRange {
    if problem.has_lengths() {
        problem.key_range_of(0, 0)
    } else {
        tap::key_range(problem, tap)
    }
}

/// Refuses dtypes that a family does not serve.
pub(crate) fn check_dtype(problem: &Problem, family: &'static str, serves: &[DType]) -> Result<(), Refusal> {
    if !serves.contains(&problem.dtype()) {
        let (what, remedy) = match problem.dtype() {
            DType::E4M3 => ("e4m3 tensors", "family wgmma does, on Hopper"),
            DType::F32 => ("f32 tensors", "family scalar does"),
            DType::F16 => ("fp16 tensors", "family mma does"),
            DType::BF16 => ("bf16 tensors", "family mma does"),
        };
        return Err(Refusal::unsupported(family, what, remedy));
    }
    Ok(())
}

/// The grid of a launch, if a GPU can count its blocks: bounds of lengths can be far above what tensors hold.
pub(crate) fn grid(family: &'static str, blocks: [usize; 3]) -> Result<[u32; 3], Refusal> {
    const MAX_GRID: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];
    refuse!(blocks.iter().zip(MAX_GRID).any(|(&blocks, most)| blocks > most) =>
        family, "lower the batch, the lengths or the number of heads",
        "a grid of {blocks:?} blocks (at most {MAX_GRID:?})");
    Ok(blocks.map(|blocks| blocks as u32))
}

/// Blocks of `rows` query rows of all heads.
pub(crate) fn query_blocks(problem: &Problem, rows: u32) -> usize {
    problem.seq_len_q().div_ceil(rows as usize) * problem.batch() * problem.num_heads()
}

/// Blocks of `rows` keys of all heads.
pub(crate) fn key_blocks(problem: &Problem, rows: u32) -> usize {
    problem.seq_len_kv().div_ceil(rows as usize) * problem.batch() * problem.num_kv_heads()
}

/// Remedy where every other family serves a problem.
pub(crate) const OTHER_FAMILIES: &str = "families mma, scalar and on Hopper wgmma do";

/// Refuses lengths and pages that are values on the device.
pub(crate) fn check_lengths(problem: &Problem, family: &'static str, remedy: &'static str) -> Result<(), Refusal> {
    refuse!(problem.has_lengths() => family, remedy, "packed sequences, caches with lengths or pages");
    Ok(())
}

/// Refuses what kernels on tensor-core operands and 16-byte copies do not serve.
pub(crate) fn check_problem(problem: &Problem, family: &'static str, serves: &[DType]) -> Result<(), Refusal> {
    check_dtype(problem, family, serves)?;
    let bytes = problem.dtype().size_bytes() as u32;
    let odd = all_strides(problem).find(|stride| !stride.is_multiple_of(ALIGNMENT / bytes));
    let Some(stride) = odd else {
        return Ok(());
    };
    let start = bytes * (stride & stride.wrapping_neg());
    let remedy = match problem.dtype() {
        DType::E4M3 => "no family does for e4m3: pad them to multiples of 16 B, or use the CPU",
        _ => "family scalar does",
    };
    let what = format!("rows that start at multiples of {start} B (it copies 16 B at a time)");
    Err(Refusal::unsupported(family, what, remedy))
}

/// Bytes of the widest accesses, 16 at most, that may begin at all of these bytes.
pub(crate) fn widest_access(starts: impl Iterator<Item = usize>) -> u32 {
    let all = starts.fold(ALIGNMENT as usize, |all, start| all | start);
    1 << all.trailing_zeros()
}

/// The [`row_strides`] of all tensors.
pub(crate) fn all_strides(problem: &Problem) -> impl Iterator<Item = u32> {
    problem.layouts().flat_map(row_strides)
}
