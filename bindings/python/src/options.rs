//! The numbers of a call, and the one table of them: keyword arguments of `attention`, an operator's stack, or a tuple;
//! and the problem they and the tensors' layouts describe.

use std::str::FromStr;

use flashcore::{Alibi, DType, KernelId, Layout, Mask, Problem, ProblemBuilder};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyTuple};

use crate::call::{compute, explain};
use crate::error::{Error, raise, type_, value};
use crate::table::{GIVEN, K, OUT, Q, SCALES, SINKS, SLOPES, V};

/// A number of an operator: its name, its type in a schema, and the bits of its default if it has one.
pub(crate) struct Number(pub(crate) &'static str, pub(crate) Kind, pub(crate) Option<u64>);

/// Types of numbers.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Float,
    Bool,
    Int,
    SymInt,
}

impl Number {
    pub(crate) fn schema(&self) -> String {
        let Number(name, kind, default) = self;
        let (word, default) = match (kind, default.unwrap_or(0)) {
            (Kind::Float, bits) => ("float", format!("={:?}", f64::from_bits(bits))),
            (Kind::Bool, 0) => ("bool", "=False".to_string()),
            (Kind::Bool, _) => ("bool", "=True".to_string()),
            (Kind::Int, bits) => ("int", format!("={}", bits as i64)),
            (Kind::SymInt, bits) => ("SymInt", format!("={}", bits as i64)),
        };
        let default = if self.2.is_some() { &default[..] } else { "" };
        format!("{word} {name}{default}")
    }

    /// The bits of one in Python; `None` for another type.
    fn bits(&self, given: &Borrowed<'_, '_, PyAny>) -> Option<u64> {
        match self.1 {
            Kind::Float => Some(given.extract::<f64>().ok()?.to_bits()),
            Kind::Bool => Some(given.extract::<bool>().ok()?.into()),
            Kind::Int | Kind::SymInt => Some(given.extract::<i64>().ok()? as u64),
        }
    }
}

/// A negative side of the window has no limit; a softcap of 0 is none. `layout`: the sum of some constants below.
/// `deterministic` is for gradients: whether they are the same bits in every run. `sm_margin` multiprocessors are left
/// to other work; with `split_keys` over 0 a call is batch-invariant. Bounds are for packed rows and pages. `schedule`:
/// the number of one that `make_schedule` made, or 0.
pub(crate) const NUMBERS: [Number; 13] = [
    Number("softmax_scale", Kind::Float, None),
    Number("causal", Kind::Bool, Some(0)),
    Number("window_left", Kind::Int, Some(u64::MAX)),
    Number("window_right", Kind::Int, Some(u64::MAX)),
    Number("softcap", Kind::Float, Some(0)),
    Number("layout", Kind::Int, Some(0)),
    Number("return_lse", Kind::Bool, Some(1)),
    Number("deterministic", Kind::Bool, Some(0)),
    Number("sm_margin", Kind::Int, Some(0)),
    Number("split_keys", Kind::Int, Some(0)),
    Number("max_seqlen_q", Kind::SymInt, Some(0)),
    Number("max_seqlen_k", Kind::SymInt, Some(0)),
    Number("schedule", Kind::Int, Some(0)),
];

// A field more than these: have `Options::builder` set it (or `bind.rs`), and `schedule.rs` compare it for a schedule
// that is used again; then count it here.
const _: () = assert!(
    Problem::FIELDS.len() == 26,
    "Problem has a field that nothing here knows"
);

/// What `layout` is the sum of: q, k and v are `[batch, heads, seq, head_dim]`; so is the output; and so are dense
/// gradients and outputs in memory.
pub(crate) const GIVEN_BHSD: u64 = 1;
pub(crate) const OUT_BHSD: u64 = 2;
pub(crate) const MEMORY_BHSD: u64 = 4;
/// Of `_native.call` alone: the output's memory is that of `torch.empty_like(q)`; and three small tensors follow, as
/// those of PyTorch's flash kernel.
pub(crate) const MEMORY_OF_Q: u64 = 8;
pub(crate) const MORE: u64 = 16;
const BSHD_NAMES: &str = "[batch, seq, heads, head_dim]";
const BHSD_NAMES: &str = "[batch, heads, seq, head_dim]";

/// The arguments besides the tensors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) mask: Mask,
    pub(crate) softcap: Option<f32>,
    /// The usual one unless given.
    pub(crate) scale: Option<f32>,
    pub(crate) layout: u64,
    pub(crate) return_lse: bool,
    pub(crate) deterministic: bool,
    pub(crate) sm_margin: u32,
    /// Keys of a split.
    pub(crate) batch_invariant: Option<usize>,
    /// Bounds of lengths.
    pub(crate) max_q: i64,
    pub(crate) max_k: i64,
    /// Its number; 0 for none.
    pub(crate) schedule: i64,
    pub(crate) kernel: Option<KernelId>,
}

impl Options {
    /// Of keyword arguments.
    pub(crate) fn parse(
        causal: bool,
        window: Option<&Bound<'_, PyAny>>,
        softcap: Option<f32>,
        scale: Option<f32>,
        return_lse: bool,
        kernel: Option<&str>,
        layout: &str,
    ) -> PyResult<Options> {
        let (left, right) = window.map_or(Ok((None, None)), parse_window)?;
        Ok(Options {
            // Causal hides every key after the diagonal, whatever the window says of them.
            mask: Mask::window(left, if causal { Some(0) } else { right }),
            softcap,
            scale,
            return_lse,
            layout: match layout {
                "bshd" => 0,
                "bhsd" => GIVEN_BHSD | OUT_BHSD,
                _ => {
                    let allowed = format!("\"bshd\" ({BSHD_NAMES}) and \"bhsd\" ({BHSD_NAMES})");
                    return Err(value(format!("layout is {layout:?}; allowed: {allowed}")));
                }
            },
            kernel: kernel.map(KernelId::from_str).transpose().map_err(raise)?,
            ..Options::default()
        })
    }

    /// Of the bits of [`NUMBERS`], as a stack has them.
    pub(crate) fn of_bits(bits: &[u64; NUMBERS.len()]) -> Result<Options, Error> {
        let [
            _,
            causal,
            left,
            right,
            softcap,
            layout,
            lse,
            deterministic,
            margin,
            split_keys,
            max_q,
            max_k,
            schedule,
        ] = *bits;
        let side = |bits: u64| u32::try_from(bits as i64).ok();
        let (causal, softcap) = (causal as u8 != 0, f64::from_bits(softcap));
        let sm_margin = u32::try_from(margin as i64).map_err(|_| {
            let given = margin as i64;
            format!("sm_margin is {given}; it is a number of multiprocessors, at least 0")
        })?;
        let split_keys = usize::try_from(split_keys as i64)
            .map_err(|_| format!("batch_invariant is {}; a split has 1 key or more", split_keys as i64))?;
        Ok(Options {
            mask: Mask::window(side(left), if causal { Some(0) } else { side(right) }),
            softcap: (softcap != 0.0).then_some(softcap as f32),
            scale: (bits[0] != USUAL_SCALE).then_some(f64::from_bits(bits[0]) as f32),
            layout,
            return_lse: lse as u8 != 0,
            deterministic: deterministic as u8 != 0,
            sm_margin,
            batch_invariant: (split_keys > 0).then_some(split_keys),
            max_q: max_q as i64,
            max_k: max_k as i64,
            schedule: schedule as i64,
            kernel: None,
        })
    }

    /// The names of q's dimensions, for messages.
    pub(crate) fn dimensions(&self) -> &'static str {
        if self.layout & GIVEN_BHSD == 0 {
            BSHD_NAMES
        } else {
            BHSD_NAMES
        }
    }

    /// What is new and dense, in its order of dimensions.
    pub(crate) fn dense(&self, shape: [usize; 4]) -> Layout {
        match self.layout & MEMORY_BHSD {
            0 => Layout::bshd(shape),
            _ => Layout::bhsd(shape),
        }
    }

    /// A problem, to be told of other lengths than those of the layouts of q, k, v and out.
    pub(crate) fn builder(
        &self,
        dtype: DType,
        [q, k, v, o]: [&Layout; 4],
        (sinks, alibi): (Option<DType>, Option<Alibi>),
    ) -> ProblemBuilder {
        let mut problem = Problem::builder()
            .batch(q.shape[0])
            .seq_len_q(q.shape[1])
            .seq_len_kv(k.shape[1])
            .heads(q.shape[2], k.shape[2])
            .head_dim(q.shape[3])
            .head_dim_v(v.shape[3])
            .dtype(dtype)
            .mask(self.mask)
            .return_lse(self.return_lse)
            .sinks(sinks)
            .alibi(alibi)
            .layouts(*q, *k, *v, *o);
        if let Some(softcap) = self.softcap {
            problem = problem.softcap(softcap);
        }
        if let Some(scale) = self.scale {
            problem = problem.softmax_scale(scale);
        }
        if let Some(keys) = self.batch_invariant {
            problem = problem.batch_invariant(keys);
        }
        problem
    }
}

/// Bits of no scale that a caller can give: they stand for the usual one.
pub(crate) const USUAL_SCALE: u64 = u64::MAX;

/// The bits of [`NUMBERS`], from the first of them in a tuple; `None` where one has another type.
pub(crate) fn bits_of(numbers: &Bound<'_, PyTuple>) -> Option<[u64; NUMBERS.len()]> {
    let mut bits = NUMBERS.map(|number| number.2.unwrap_or(USUAL_SCALE));
    if numbers.len() > bits.len() {
        return None;
    }
    for (n, given) in numbers
        .iter_borrowed()
        .enumerate()
        .filter(|(n, given)| *n > 0 || !given.is_none())
    {
        bits[n] = NUMBERS[n].bits(&given)?;
    }
    Some(bits)
}

/// `(left, right)`, each a count of keys or None.
fn parse_window(window: &Bound<'_, PyAny>) -> PyResult<(Option<u32>, Option<u32>)> {
    let sides = window.try_iter().ok();
    let sides = sides.and_then(|sides| sides.take(3).collect::<PyResult<Vec<_>>>().ok());
    let Some([left, right]) = sides.as_deref() else {
        return Err(type_(format!(
            "window is {}; it must be a pair (left, right) of how many keys before and after the diagonal are visible, \
             None for no limit on that side",
            window.repr()?
        )));
    };
    Ok((parse_side("left", left)?, parse_side("right", right)?))
}

fn parse_side(side: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    if given.is_none() {
        return Ok(None);
    }
    let allowed = "allowed are counts of keys from 0 to 2^32 - 1, and None for no limit";
    // Python's integers and NumPy's, whose `__index__` Python takes for one.
    let is_whole = given.is_instance_of::<PyInt>() || given.call_method0("__index__").is_ok();
    if !is_whole || given.is_instance_of::<PyBool>() {
        return Err(type_(format!("window's {side} side is {}; {allowed}", given.repr()?)));
    }
    given.extract().map(Some).map_err(|_| {
        value(format!(
            "window's {side} side is {given}; {allowed} (what other libraries write as -1)"
        ))
    })
}

/// Functions with the arguments of `attention`.
macro_rules! with_arguments {
    ($(#[$about:meta])* $name:ident => $serve:path) => {
        $(#[$about])*
        #[pyfunction]
        #[pyo3(signature = (
            q, k, v, *, causal=false, window=None, softcap=None, scale=None, out=None, return_lse=false, kernel=None,
            layout="bshd", stream=None, q_scale=None, k_scale=None, v_scale=None, sinks=None, alibi_slopes=None,
        ))]
        #[allow(clippy::too_many_arguments)] // Python's keyword arguments
        pub(crate) fn $name<'py>(
            py: Python<'py>,
            q: &Bound<'py, PyAny>,
            k: &Bound<'py, PyAny>,
            v: &Bound<'py, PyAny>,
            causal: bool,
            window: Option<&Bound<'py, PyAny>>,
            softcap: Option<f32>,
            scale: Option<f32>,
            out: Option<&Bound<'py, PyAny>>,
            return_lse: bool,
            kernel: Option<&str>,
            layout: &str,
            stream: Option<&Bound<'py, PyAny>>,
            q_scale: Option<&Bound<'py, PyAny>>,
            k_scale: Option<&Bound<'py, PyAny>>,
            v_scale: Option<&Bound<'py, PyAny>>,
            sinks: Option<&Bound<'py, PyAny>>,
            alibi_slopes: Option<&Bound<'py, PyAny>>,
        ) -> PyResult<Bound<'py, PyAny>> {
            let options = Options::parse(causal, window, softcap, scale, return_lse, kernel, layout)?;
            let mut given: [Option<&Bound<'py, PyAny>>; GIVEN + 1] = [None; GIVEN + 1];
            (given[Q], given[K], given[V], given[OUT]) = (Some(q), Some(k), Some(v), out);
            (given[SCALES], given[SCALES + 1], given[SCALES + 2]) = (q_scale, k_scale, v_scale);
            (given[SINKS], given[SLOPES]) = (sinks, alibi_slopes);
            $serve(py, given, stream, options)
        }
    };
}

with_arguments! {
/// Computes softmax(scale * q @ k.T, masked) @ v for every batch and head.
///
/// Tensors are [batch, seq, heads, head_dim] of float16, bfloat16, float32 or float8_e4m3fn, with
/// any strides but the last, which is 1: slices and permutations are not copied. They may belong to
/// PyTorch, JAX, CuPy, NumPy or any other library with DLPack, all on one device: CPU tensors are
/// computed on all cores, CUDA tensors on their GPU. k and v may have fewer heads than q (each
/// serves an equal number of q's heads), and v another head_dim.
///
/// Parameters
/// ----------
/// q : tensor ``[batch, seq_q, heads, head_dim]``
/// k : tensor ``[batch, seq_kv, kv_heads, head_dim]``
///     ``kv_heads`` divides ``heads``.
/// v : tensor ``[batch, seq_kv, kv_heads, head_dim_v]``
/// causal : bool
///     A query attends to no key after its position. The mask is aligned bottom-right (the last query at the last key),
///     as in FlashAttention since 2.1. PyTorch's is_causal is aligned top-left.
/// window : (left, right), optional
///     How many keys before and after its position a query attends to; None for no limit. With causal, right is 0.
/// softcap : float, optional
///     Scaled scores s become ``softcap * tanh(s / softcap)``.
/// scale : float, optional
///     The factor on ``q @ k.T``; ``head_dim ** -0.5`` unless given.
/// out : tensor ``[batch, seq_q, heads, head_dim_v]``, optional
///     For the output; it shares no memory with an input. Otherwise q's library allocates it: PyTorch, CuPy or NumPy;
///     for other libraries NumPy on the CPU, and on CUDA devices out is required.
/// return_lse : bool
///     Return the log-sum-exp, too.
/// kernel : str, optional
///     The id of the kernel to use; chosen unless given. `plan` returns which is chosen, and why.
/// layout : {"bshd", "bhsd"}
///     "bhsd" for tensors ``[batch, heads, seq, head_dim]``, as in PyTorch's SDPA.
/// stream : stream object or int, optional
///     For CUDA tensors, the stream to run on; an integer is a cudaStream_t, which must outlive the work. Unless given,
///     PyTorch's or CuPy's current stream, and for other libraries the legacy default stream.
/// q_scale, k_scale, v_scale : tensor ``[batch, kv_heads]``, optional
///     For float8_e4m3fn tensors, float32, dense, on the tensors' device. An element's value is the element times the
///     scale of its batch and K/V head. Finite and above 0, which is checked on the CPU only. 1 unless given. The
///     output is bfloat16.
/// sinks : tensor ``[heads]``, optional
///     float32, float16 or bfloat16, dense: a logit of each query head that counts in the sum of its rows' softmax, and
///     has no value (s_aux of gpt-oss). -inf is none. The log-sum-exp includes it.
/// alibi_slopes : tensor ``[heads]`` or ``[batch, heads]``, optional
///     float32, dense, at least 0: ``slope * |i - j|`` is subtracted from the scaled, capped score of a query at
///     position i and a key at position j; the last query is at the last key.
///
/// Returns
/// -------
/// out : tensor ``[batch, seq_q, heads, head_dim_v]``
///     Rows that see no key are zero.
/// lse : float32 ``[batch, heads, seq_q]``, if return_lse
///     The natural logarithm of each row's sum of exponentials; -inf for rows that see no key.
///
/// Raises
/// ------
/// TypeError
///     An argument is not a tensor or number, or the dtypes are not one of the four, or differ.
/// ValueError
///     Invalid shapes, strides, devices or options, or a problem that no kernel serves.
/// RuntimeError
///     The device or its driver failed, or the process was forked after its first call.
///
/// Notes
/// -----
/// The call returns once the work is in the stream. It can be captured into a CUDA graph after a
/// first call has compiled the kernel. For CUDA tensors of libraries other than PyTorch and CuPy it
/// waits for the work, since they may reuse the memory as soon as it returns. Only the forward pass
/// is computed: PyTorch tensors that require a gradient are refused unless gradients are off
/// (torch.no_grad()). The functions of flashcore_attn.flash_attn_interface are differentiable.
attention => compute
}

with_arguments! {
/// How `attention` would compute this call, as a dict; nothing is computed or compiled.
///
/// It has problem, device, kernel, why, row (of a plan table that chose the kernel: the table's
/// name and a number; None where heuristics did), notes (on plan tables that cannot be used) and
/// flops (of the two products, over visible keys only), and on a GPU also target, grid, block,
/// cluster, shared_bytes (a block), workspace_bytes, before and then (the names of kernels that run
/// before and after the one described) and considered: pairs of a kernel and why it was refused
/// (None: chosen). Takes the arguments of `attention` and raises what it would raise; `out` is not written.
plan => explain
}
