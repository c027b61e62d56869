//! The tensors of an append in host memory.

use super::{Append, AppendValues, SlotMapping};
use crate::{DType, Layout, ProblemError, TensorView, TensorViewMut};

/// The tensors of an [`Append`] in host memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct AppendTensors<'a> {
    /// New rows of K, `[batch, seq_new, kv_heads, head_dim]` or packed `[1, total, kv_heads, head_dim]`.
    pub k_new: TensorView<'a>,
    /// New rows of V, the same with its `head_dim`.
    pub v_new: TensorView<'a>,
    /// The cache of K, written: `[cache_batch, capacity, kv_heads, head_dim]`, or in pages `[pages,
    /// page_size, kv_heads, head_dim]`.
    pub k_cache: TensorViewMut<'a>,
    /// The cache of V, written.
    pub v_cache: TensorViewMut<'a>,
    /// The arrays that [`Append::entries`] names.
    pub values: AppendValues<&'a [i32]>,
    /// A slot for each new row, where those say where rows go.
    pub slot_mapping: Option<SlotMapping<'a>>,
    /// Written, if [`Append::seqused_k`]: the keys of each sequence afterwards, `[batch]`.
    pub seqused_k: Option<&'a mut [i32]>,
    /// What a rotary embedding has besides.
    pub rotary: Option<RotaryTensors<'a>>,
}

impl<'a> AppendTensors<'a> {
    /// New rows of K and V, and the cache. The other fields are set where the append needs them.
    pub fn new(new: [TensorView<'a>; 2], [k_cache, v_cache]: [TensorViewMut<'a>; 2]) -> AppendTensors<'a> {
        let [k_new, v_new] = new;
        AppendTensors {
            k_new,
            v_new,
            k_cache,
            v_cache,
            values: AppendValues::default(),
            slot_mapping: None,
            seqused_k: None,
            rotary: None,
        }
    }
}

/// The tensors of a [`Rotary`](crate::Rotary) embedding in host memory.
#[derive(Debug)]
pub struct RotaryTensors<'a> {
    /// Cosines, `[1, positions, 1, rotary_dim / 2]`.
    pub cos: TensorView<'a>,
    /// Sines, of the same shape.
    pub sin: TensorView<'a>,
    /// Q; `None` where `q_out` holds it and is rotated in place.
    pub q: Option<TensorView<'a>>,
    /// Written: Q, rotated. Rows of no sequence stay as they are.
    pub q_out: TensorViewMut<'a>,
}

impl<'a> RotaryTensors<'a> {
    /// The tables, and Q to rotate in place.
    pub fn in_place(cos: TensorView<'a>, sin: TensorView<'a>, q: TensorViewMut<'a>) -> RotaryTensors<'a> {
        RotaryTensors {
            cos,
            sin,
            q: None,
            q_out: q,
        }
    }
}

impl AppendTensors<'_> {
    /// Checks that all tensors are those of an append.
    ///
    /// # Errors
    /// The first that is missing, of no use, or of another shape, dtype or layout.
    pub fn check(&self, append: &Append) -> Result<(), ProblemError> {
        append.check()?;
        let check = |tensor, layout: &Layout, given: &TensorView<'_>| check_tensor(tensor, append.dtype, layout, given);
        check("k_new", &append.k_new, &self.k_new)?;
        check("v_new", &append.v_new, &self.v_new)?;
        check("k_cache", &append.k_cache, &self.k_cache.as_view())?;
        check("v_cache", &append.v_cache, &self.v_cache.as_view())?;
        let lengths = |argument, why: &str| {
            let why = why.to_string();
            Err(ProblemError::Lengths { argument, why })
        };
        match (append.seqused_k, self.seqused_k.as_ref().map(|keys| keys.len())) {
            (true, Some(given)) if given == append.batch => {}
            (false, None) => {}
            (true, _) => {
                return lengths(
                    "seqused_k",
                    "must have an entry for each sequence: this append writes it",
                );
            }
            (false, Some(_)) => return lengths("seqused_k", "was given, but this append does not write it"),
        }
        match (&append.rotary, &self.rotary) {
            (None, None) => Ok(()),
            (Some(rotary), Some(tensors)) => {
                check("rotary_cos", &rotary.table(), &tensors.cos)?;
                check("rotary_sin", &rotary.table(), &tensors.sin)?;
                check("q_out", &rotary.q_out, &tensors.q_out.as_view())?;
                match &tensors.q {
                    Some(q) => check("q", &rotary.q, q),
                    None if rotary.q == rotary.q_out => Ok(()),
                    None => lengths("q", "was not given; in place, q and q_out have one layout"),
                }
            }
            (Some(_), None) => lengths("rotary_cos", "was not given, nor rotary_sin and q; this append rotates"),
            (None, Some(_)) => lengths("rotary_cos", "was given, but this append does not rotate"),
        }
    }
}

fn check_tensor(
    tensor: &'static str,
    dtype: DType,
    layout: &Layout,
    given: &TensorView<'_>,
) -> Result<(), ProblemError> {
    if given.dtype() != dtype {
        let (given, expected) = (given.dtype(), dtype);
        return Err(ProblemError::DType {
            tensor,
            given,
            expected,
        });
    }
    if given.layout() != layout {
        let message = format!("{tensor} has layout {:?}; this append needs {layout:?}", given.layout());
        return Err(ProblemError::Tensor { tensor, message });
    }
    Ok(())
}
