//! Appending to a cache on the host.

use flashcore_problem::append::{NewRow, QueryRow};
use flashcore_problem::{Append, DType, Host, Layout, Name, Operands, Rotary, TensorView};

use crate::CpuError;
use crate::keys::{copy_row, store_row, widen_row};

/// Writes new rows of K and V into a cache, and rotates K and Q if the append does. Operands are checked.
///
/// # Errors
/// Values that contradict the append ([`Append::findings`]). Nothing is written then.
pub(crate) fn run(append: &Append, mut operands: Operands<'_, Host>) -> Result<(), CpuError> {
    let (values, slots) = operands.append_values()?;
    let rows = append.rows(&values, slots)?;
    if let Some(seqused_k) = operands.take_values(Name::SequsedK)? {
        seqused_k.copy_from_slice(&rows.seqused_k);
    }
    let mut written = |name, layout| -> Result<Written<'_>, CpuError> {
        let (dtype, bytes) = (append.dtype, operands.take_bytes(name)?);
        Ok(Written { dtype, layout, bytes })
    };
    let mut k_cache = written(Name::KCache, append.k_cache)?;
    let mut v_cache = written(Name::VCache, append.v_cache)?;
    let rotated = append
        .rotary
        .map(|rotary| written(Name::QOut, rotary.q_out))
        .transpose()?;
    let (k_new, v_new) = (operands.tensor(Name::KNew)?, operands.tensor(Name::VNew)?);
    let rotation = match append.rotary {
        Some(rotary) => Some(Rotation {
            rotary,
            cos: operands.tensor(Name::RotaryCos)?,
            sin: operands.tensor(Name::RotarySin)?,
        }),
        None => None,
    };
    for &NewRow { from, to, position } in &rows.new {
        for h in 0..append.k_cache.shape[2] {
            copy(&k_new, (from, h), &mut k_cache, (to, h));
            if let Some(rotation) = &rotation {
                rotation.turn(&mut k_cache, (to, h), position);
            }
            copy(&v_new, (from, h), &mut v_cache, (to, h));
        }
    }
    if let Some((rotation, mut q_out)) = rotation.zip(rotated) {
        // Without Q its rows are where they are rotated.
        let from = operands.get(Name::Q).map(|_| operands.tensor(Name::Q)).transpose()?;
        for QueryRow { at, position } in rows.q {
            for h in 0..rotation.rotary.q.shape[2] {
                if let Some(from) = &from {
                    copy(from, (at, h), &mut q_out, (at, h));
                }
                rotation.turn(&mut q_out, (at, h), position);
            }
        }
    }
    Ok(())
}

/// The first two indices of a row, and its head.
type Row = ([usize; 2], usize);

/// The bytes of a row.
fn bytes_of(layout: &Layout, dtype: DType, ([b, s], h): Row) -> std::ops::Range<usize> {
    let at = layout.offset(b, s, h, 0) * dtype.size_bytes();
    at..at + layout.shape[3] * dtype.size_bytes()
}

/// A tensor that is written.
struct Written<'w> {
    dtype: DType,
    layout: Layout,
    bytes: &'w mut [u8],
}

impl Written<'_> {
    fn row(&mut self, row: Row) -> &mut [u8] {
        &mut self.bytes[bytes_of(&self.layout, self.dtype, row)]
    }
}

fn copy(from: &TensorView<'_>, row: Row, to: &mut Written<'_>, at: Row) {
    to.row(at)
        .copy_from_slice(&from.bytes()[bytes_of(from.layout(), from.dtype(), row)]);
}

/// A rotary embedding, with its tables.
struct Rotation<'t> {
    rotary: Rotary,
    cos: TensorView<'t>,
    sin: TensorView<'t>,
}

impl Rotation<'_> {
    /// Columns that are not rotated keep their bits.
    fn turn(&self, x: &mut Written<'_>, at: Row, position: usize) {
        let (dim, half) = (self.rotary.dim, self.rotary.dim / 2);
        let mut values = vec![0.0; 2 * dim];
        let (values, tables) = values.split_at_mut(dim);
        let (cos, sin) = tables.split_at_mut(half);
        let dtype = x.dtype;
        let row = &mut x.row(at)[..dim * dtype.size_bytes()];
        widen_row(dtype, row, values);
        copy_row(&self.cos, 0, position, 0, cos);
        copy_row(&self.sin, 0, position, 0, sin);
        for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
            let [i, j] = if self.rotary.interleaved {
                [2 * pair, 2 * pair + 1]
            } else {
                [pair, pair + half]
            };
            let (a, b) = (values[i], values[j]);
            (values[i], values[j]) = (a * cos - b * *sin, a * *sin + b * cos);
        }
        store_row(dtype, values, row);
    }
}
