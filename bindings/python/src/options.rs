//! The numbers of a call: keyword arguments of `attention`, an operator's stack, or a tuple; and the problem they and
//! the tensors' layouts describe.

use std::str::FromStr;

use flashcore::{Alibi, DType, KernelId, Layout, Mask, Problem, ProblemBuilder};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyTuple};

use crate::error::{Error, raise, type_, value};
use crate::table::NUMBERS;

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
#[derive(Clone, Copy, Debug)]
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
            deterministic: false,
            sm_margin: 0,
            batch_invariant: None,
            max_q: 0,
            max_k: 0,
            schedule: 0,
            kernel: kernel.map(KernelId::from_str).transpose().map_err(raise)?,
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

    /// A problem, to be told of other lengths than those of the layouts of q, k, v and out.
    pub(crate) fn builder(
        &self,
        dtype: DType,
        [q, k, v, o]: [&Layout; 4],
        sinks: Option<DType>,
        alibi: Option<Alibi>,
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
    // In the order of the table, whose defaults these are.
    let all = (-1i64) as u64;
    let mut bits = [USUAL_SCALE, 0, all, all, 0f64.to_bits(), 0, 1, 0, 0, 0, 0, 0, 0];
    if numbers.len() > bits.len() {
        return None;
    }
    for (n, number) in numbers.iter_borrowed().enumerate() {
        bits[n] = match n {
            0 if number.is_none() => USUAL_SCALE,
            0 | 4 => number.extract::<f64>().ok()?.to_bits(),
            1 | 6 | 7 => number.extract::<bool>().ok()?.into(),
            _ => number.extract::<i64>().ok()? as u64,
        };
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
