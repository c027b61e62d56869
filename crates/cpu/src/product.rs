//! The product `C += A·B` of row-major f32 matrices in the cache: those of the backward pass, and `P·V` of few rows.

use pulp::Simd;

/// f32 values of the widest vector: rows of B and C are padded to multiples of it.
pub(crate) const LANES: usize = 16;

/// Rows of C in registers at a time.
const ROWS: usize = 4;

/// `C += A·B`, `NV` vectors of columns at a time: `a` is `[rows][stride]`, of which the first `depth` columns count,
/// `b` `[depth][columns]`, `c` `[rows][columns]`; `columns` is a multiple of [`LANES`].
#[inline(always)] // into code that is compiled for an instruction set
pub(crate) fn multiply_add<S: Simd, const NV: usize>(
    simd: S,
    (a, stride, depth): (&[f32], usize, usize),
    b: &[f32],
    c: &mut [f32],
    columns: usize,
) {
    let (mut row, rows) = (0, c.len() / columns);
    while row < rows {
        let (a, c) = ((&a[row * stride..], stride, depth), &mut c[row * columns..]);
        row += match rows - row {
            ROWS.. => self::rows::<S, ROWS, NV>(simd, a, b, c, columns),
            2.. => self::rows::<S, 2, 4>(simd, a, b, c, columns),
            _ => self::rows::<S, 1, 4>(simd, a, b, c, columns),
        };
    }
}

/// The first `R` rows. Returns `R`.
#[inline(always)]
fn rows<S: Simd, const R: usize, const NV: usize>(
    simd: S,
    a: (&[f32], usize, usize),
    b: &[f32],
    c: &mut [f32],
    columns: usize,
) -> usize {
    let (mut at, vectors) = (0, columns / S::F32_LANES);
    while at < vectors {
        if vectors - at >= NV {
            block::<S, R, NV>(simd, a, b, c, columns, at);
            at += NV;
        } else {
            block::<S, R, 1>(simd, a, b, c, columns, at);
            at += 1;
        }
    }
    R
}

/// `NV` vectors of columns from the `at`th on.
#[inline(always)]
fn block<S: Simd, const R: usize, const NV: usize>(
    simd: S,
    (a, stride, depth): (&[f32], usize, usize),
    b: &[f32],
    c: &mut [f32],
    columns: usize,
    at: usize,
) {
    let load = |row: &[f32]| -> [S::f32s; NV] {
        let vectors = &S::as_simd_f32s(row).0[at..][..NV];
        std::array::from_fn(|i| vectors[i])
    };
    let mut acc: [[S::f32s; NV]; R] = std::array::from_fn(|r| load(&c[r * columns..][..columns]));
    let a: [&[f32]; R] = std::array::from_fn(|r| &a[r * stride..][..depth]);
    for (i, b) in b.chunks_exact(columns).take(depth).enumerate() {
        let b = load(b);
        for (acc, a) in acc.iter_mut().zip(&a) {
            let a = simd.splat_f32s(a[i]);
            for (acc, &b) in acc.iter_mut().zip(&b) {
                *acc = simd.mul_add_e_f32s(a, b, *acc);
            }
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        let row = &mut S::as_mut_simd_f32s(&mut c[r * columns..][..columns]).0[at..][..NV];
        for (c, &acc) in row.iter_mut().zip(acc) {
            *c = acc;
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::SimdLevel;

    struct Run<'r>(&'r [f32], &'r [f32], &'r mut [f32]);

    impl WithSimd for Run<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            multiply_add::<_, 2>(simd, (self.0, 9, 7), self.1, self.2, 48);
        }
    }

    #[test]
    fn products_of_small_integers_are_exact_at_every_level() {
        let value = |i: usize| (i * 7 % 11) as f32 - 5.0;
        let a: Vec<f32> = (0..6 * 9).map(value).collect();
        let b: Vec<f32> = (0..7 * 48).map(|i| value(i + 3)).collect();
        for level in SimdLevel::available() {
            let mut c = vec![1.0; 6 * 48];
            level.arch().unwrap().dispatch(Run(&a, &b, &mut c));
            for (i, &got) in c.iter().enumerate() {
                let want = (0..7).map(|k| a[i / 48 * 9 + k] * b[k * 48 + i % 48]).sum::<f32>();
                assert_eq!(got, 1.0 + want, "{level}: {i}");
            }
        }
    }
}
