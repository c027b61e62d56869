//! Parses keyword arguments.

use std::str::FromStr;

use flashcore::{Alibi, DType, KernelId, Mask};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::error::{raise, type_, value};

/// Which axis of the caller's tensors is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axes {
    /// `[batch, seq, heads, head_dim]`: FlashAttention's convention.
    Bshd,
    /// `[batch, heads, seq, head_dim]`: SDPA's convention.
    Bhsd,
}

impl Axes {
    /// From the caller's order to `[batch, seq, heads, head_dim]`, and back: it is its own inverse.
    pub(crate) fn reorder<T: Copy>(self, of: [T; 4]) -> [T; 4] {
        let [b, x, y, d] = of;
        match self {
            Axes::Bshd => of,
            Axes::Bhsd => [b, y, x, d],
        }
    }

    pub(crate) fn names(self) -> &'static str {
        match self {
            Axes::Bshd => "[batch, seq, heads, head_dim]",
            Axes::Bhsd => "[batch, heads, seq, head_dim]",
        }
    }
}

/// The arguments besides the tensors.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) mask: Mask,
    pub(crate) softcap: Option<f32>,
    pub(crate) scale: Option<f32>,
    pub(crate) return_lse: bool,
    pub(crate) kernel: Option<KernelId>,
    pub(crate) axes: Axes,
    /// Set once they are imported.
    pub(crate) sinks: Option<DType>,
    pub(crate) alibi: Option<Alibi>,
    /// Multiprocessors that are left to other work, and keys of a split: of operators alone.
    pub(crate) sm_margin: u32,
    pub(crate) batch_invariant: Option<usize>,
}

impl Options {
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
            sinks: None,
            alibi: None,
            sm_margin: 0,
            batch_invariant: None,
            kernel: kernel.map(KernelId::from_str).transpose().map_err(raise)?,
            axes: match layout {
                "bshd" => Axes::Bshd,
                "bhsd" => Axes::Bhsd,
                _ => {
                    let (bshd, bhsd) = (Axes::Bshd.names(), Axes::Bhsd.names());
                    let allowed = format!("\"bshd\" ({bshd}) and \"bhsd\" ({bhsd})");
                    return Err(value(format!("layout is {layout:?}; allowed: {allowed}")));
                }
            },
        })
    }
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
