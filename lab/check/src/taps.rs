//! What a build with a tap stored, as the reference has it.

use flashcore_kernels::tap::Tap;
use flashcore_problem::{POISON, Problem};

/// What a build with a tap found, as `reference_scores` and `reference_probabilities` have it: scores
/// as they are, probabilities normalised row by row, 0 where a key is hidden. Values are f32, `[batch,
/// num_heads, seq_len_q, seq_len_kv]`; those that should have been stored and were not keep their
/// poison.
///
/// `tap` and `offsets` (empty after scores) are the launch's buffers of these names, which must have
/// begun as [`POISON`].
pub(crate) fn finish(problem: &Problem, tap: Tap, values: &[f32], offsets: &[f32]) -> Vec<f32> {
    let mut values = values.to_vec();
    let (keys, rows) = (problem.seq_len_kv(), problem.seq_len_q());
    if tap != Tap::Probabilities || keys == 0 {
        return values;
    }
    for (index, (row, offsets)) in values.chunks_mut(keys).zip(offsets.chunks(keys)).enumerate() {
        let visible = problem.visible_keys(index % rows);
        for (key, value) in row.iter_mut().enumerate() {
            // What no row of a tile sees is never computed; if it is stored, it must be 0.
            if !visible.contains(&key) && unwritten(*value) {
                *value = 0.0;
            }
        }
        normalise(row, offsets);
    }
    values
}

fn unwritten(value: f32) -> bool {
    value.to_ne_bytes() == [POISON; 4]
}

/// Brings the values of a row to one maximum, and their sum to 1.
fn normalise(row: &mut [f32], offsets: &[f32]) {
    let exponent = |p: f32, offset: f32| f64::from(p).log2() - f64::from(offset);
    let present = |p: f32| p > 0.0 && !unwritten(p);
    let pairs = || row.iter().zip(offsets).filter(|(p, _)| present(**p));
    let highest = pairs().map(|(&p, &o)| exponent(p, o)).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = pairs().map(|(&p, &o)| (exponent(p, o) - highest).exp2()).sum();
    for (p, &offset) in row.iter_mut().zip(offsets) {
        if present(*p) {
            *p = ((exponent(*p, offset) - highest).exp2() / sum) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_brought_to_one_maximum() {
        let problem = Problem::builder().heads(1, 1).head_dim(64);
        let problem = problem.seq_len_q(1).seq_len_kv(2).build().unwrap();
        // Both scores were 3; the second was met after the maximum had risen from 1 to 3.
        let p = finish(&problem, Tap::Probabilities, &[4.0, 1.0], &[-1.0, -3.0]);
        assert_eq!(p, [0.5, 0.5]);
    }
}
