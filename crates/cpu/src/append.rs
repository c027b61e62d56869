//! Appending to a cache on the host.

use flashcore_problem::append::{NewRow, QueryRow};
use flashcore_problem::{Append, AppendTensors, DType, Layout, Rotary, RotaryTensors, TensorView, TensorViewMut};

use crate::CpuError;
use crate::keys::{copy_row, store_row};

/// Writes new rows of K and V into a cache, and rotates K and Q if the append does.
///
/// ```
/// use flashcore_cpu::append;
/// use flashcore_problem::{Append, AppendTensors, AppendValues, DType, TensorView, TensorViewMut};
/// let (new, cache) = ([2, 1, 1, 2].into(), [2, 3, 1, 2].into());
/// let spec = Append::to_cache(DType::F32, [new, new], [cache, cache]);
/// let (rows, mut k, mut v) = ([1f32, 2., 3., 4.], [0f32; 12], [0f32; 12]);
/// let rows = TensorView::from_slice(new, &rows)?;
/// let caches = [TensorViewMut::from_slice(cache, &mut k)?, TensorViewMut::from_slice(cache, &mut v)?];
/// let mut tensors = AppendTensors::new([rows, rows], caches);
/// tensors.values = AppendValues { cache_seqlens: Some(&[2, 0]), ..AppendValues::default() };
/// append(&spec, tensors)?;
/// assert_eq!(k, [0., 0., 0., 0., 1., 2., 3., 4., 0., 0., 0., 0.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Tensors that are not the append's; values that contradict it ([`Append::findings`]). Nothing is
/// written then.
pub fn append(append: &Append, mut tensors: AppendTensors<'_>) -> Result<(), CpuError> {
    tensors.check(append)?;
    let (new, q, keys) = append.rows(&tensors.values, tensors.slot_mapping)?;
    if let Some(seqused_k) = tensors.seqused_k {
        seqused_k.copy_from_slice(&keys);
    }
    let rotary = tensors.rotary.as_ref().zip(append.rotary.as_ref());
    let rotation = rotary.map(|(tensors, rotary)| Rotation::new(rotary, &tensors.cos, &tensors.sin));
    for &NewRow { from, to, position } in &new {
        for h in 0..append.k_cache.shape[2] {
            match &rotation {
                Some(rotation) => rotation.row(&tensors.k_new, (from, h), &mut tensors.k_cache, (to, h), position),
                None => copy(&tensors.k_new, (from, h), &mut tensors.k_cache, (to, h)),
            }
            copy(&tensors.v_new, (from, h), &mut tensors.v_cache, (to, h));
        }
    }
    if let Some((
        RotaryTensors {
            cos,
            sin,
            q: from,
            mut q_out,
        },
        rotary,
    )) = tensors.rotary.zip(append.rotary)
    {
        let rotation = Rotation::new(&rotary, &cos, &sin);
        for QueryRow { at, position } in q {
            for h in 0..rotary.q.shape[2] {
                match &from {
                    Some(from) => rotation.row(from, (at, h), &mut q_out, (at, h), position),
                    None => rotation.row_in_place(&mut q_out, (at, h), position),
                }
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

fn copy(from: &TensorView<'_>, row: Row, to: &mut TensorViewMut<'_>, at: Row) {
    let (source, target) = (
        bytes_of(from.layout(), from.dtype(), row),
        bytes_of(to.layout(), to.dtype(), at),
    );
    to.bytes_mut()[target].copy_from_slice(&from.bytes()[source]);
}

/// A rotary embedding, with its tables.
struct Rotation<'t> {
    rotary: &'t Rotary,
    cos: &'t TensorView<'t>,
    sin: &'t TensorView<'t>,
}

impl<'t> Rotation<'t> {
    fn new(rotary: &'t Rotary, cos: &'t TensorView<'t>, sin: &'t TensorView<'t>) -> Rotation<'t> {
        Rotation { rotary, cos, sin }
    }

    fn row(&self, from: &TensorView<'_>, row: Row, to: &mut TensorViewMut<'_>, at: Row, position: usize) {
        copy(from, row, to, at);
        self.row_in_place(to, at, position);
    }

    /// Columns that are not rotated keep their bits.
    fn row_in_place(&self, x: &mut TensorViewMut<'_>, at: Row, position: usize) {
        let (dim, half) = (self.rotary.dim, self.rotary.dim / 2);
        let mut values = vec![0.0; 2 * dim];
        let (values, tables) = values.split_at_mut(dim);
        let (cos, sin) = tables.split_at_mut(half);
        copy_row(&x.as_view(), at.0[0], at.0[1], at.1, values);
        copy_row(self.cos, 0, position, 0, cos);
        copy_row(self.sin, 0, position, 0, sin);
        for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
            let [i, j] = if self.rotary.interleaved {
                [2 * pair, 2 * pair + 1]
            } else {
                [pair, pair + half]
            };
            let (a, b) = (values[i], values[j]);
            (values[i], values[j]) = (a * cos - b * *sin, a * *sin + b * cos);
        }
        let (dtype, bytes) = (x.dtype(), bytes_of(x.layout(), x.dtype(), at));
        store_row(dtype, values, &mut x.bytes_mut()[bytes][..dim * dtype.size_bytes()]);
    }
}
